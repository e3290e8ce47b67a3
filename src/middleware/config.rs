//! Settings of a layer, and the state that its services share.

use std::sync::{Arc, atomic::AtomicBool};

use http::{
    Method,
    header::{
        ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, TRANSFER_ENCODING,
    },
};

use super::{
    access::AccessList,
    adjust::AdjustConfig,
    drain::DrainConfig,
    hold::HoldConfig,
    overcommit::{InFlight, Overcommit},
    penalty::RulePenalty,
    queue::{Bounds, Queue, QueuedRequest},
    retry_after::Retries,
};
use crate::{
    advice::{FirstCheck, NestingCheck, UNCHARGED, warn_of_no_charge},
    decision::{Decision, Outcome, Source, UNKNOWN_WAIT},
    fingerprint::FingerprintKey,
    head::RequestHead,
    headers::{HeaderPolicy, Template},
    observe::{self, DecisionEvent, MeteredRule, Metrics, OnDecision},
    rule::{Bypass, Candidates, Controller, Measurement, OwnedCandidates, RuleInfo, RuleName},
    store::{Charge, Store, without_queueing},
    toggle::Toggle,
};

/// The default number of requests that may queue at once.
pub(crate) const MAX_WAITERS: usize = 1_024;

/// Settings of a layer, and the state that its services share.
#[derive(Clone)]
pub(crate) struct LayerConfig {
    pub(crate) headers: HeaderPolicy,
    /// The header fields for the quotas and `headers`, prepared for each service.
    pub(crate) template: Arc<Template>,
    pub(crate) exposes_decision: bool,
    pub(crate) exempt_preflights: bool,
    /// `false` if neither a list nor an exemption is set. `true` until [`prepare`](Self::prepare) looks.
    pub(crate) has_exceptions: bool,
    /// While on, no request is denied.
    pub(crate) report_only: Toggle,
    pub(crate) retries: Retries,
    /// `true` if a rule may have slots.
    pub(super) may_hold: bool,
    /// `true` if a rule lets requests wait.
    pub(crate) may_queue: bool,
    pub(crate) queue_bounds: Bounds,
    pub(crate) queue: Arc<Queue>,
    /// While off, all requests pass without a charge.
    pub(crate) enabled: Toggle,
    pub(crate) allow: Vec<AccessList>,
    pub(crate) deny: Vec<AccessList>,
    pub(crate) overcommit: Option<Overcommit>,
    pub(crate) adjustment: Option<AdjustConfig>,
    pub(crate) penalties: Vec<Arc<RulePenalty>>,
    pub(crate) hold: Arc<HoldConfig>,
    pub(super) drain: Arc<DrainConfig>,
    pub(crate) adaptive: Vec<AdaptiveRule>,
    pub(crate) metrics: Metrics,
    /// The hooks of rules and of the user.
    pub(crate) hooks: Vec<Arc<dyn OnDecision>>,
    /// The secret for fingerprints of keys in logs, spans and explanations.
    pub(crate) secret: Option<FingerprintKey>,
    /// `true` if an admin page has the toggles and the secret.
    pub(crate) is_on_admin_page: bool,
    /// `true` if every request has a [`ResponseContext`](super::context::ResponseContext), and until
    /// [`prepare`](Self::prepare) looks.
    pub(crate) has_context: bool,
    pub(super) nesting: Arc<NestingCheck>,
    pub(super) charging: Arc<FirstCheck<UNCHARGED>>,
    /// `true` once the log has the mistakes of the layer.
    pub(crate) advised: Arc<AtomicBool>,
}

/// A rule with an adaptive limit.
#[derive(Clone)]
pub(crate) struct AdaptiveRule {
    rule: RuleName,
    controller: Arc<Controller>,
}

impl AdaptiveRule {
    fn new(info: &RuleInfo<'_>) -> Option<Self> {
        Some(Self {
            rule: info.name,
            controller: info.live?.controller.clone()?,
        })
    }

    /// Measures a request that was charged under the rule.
    pub(super) fn measure(
        &self,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) -> Option<Measurement> {
        let charge = Charge::find(charges, self.rule).filter(|_| decision.charged(self.rule))?;
        Some(self.controller.hold(charge.cost))
    }
}

fn metered(info: &RuleInfo<'_>) -> MeteredRule {
    MeteredRule {
        name: info.name,
        is_chosen: info.is_chosen(),
    }
}

/// The reason to run a request that would otherwise be rejected.
pub(crate) enum Override {
    ReportOnly,
    Overcommit(InFlight),
}

impl Override {
    /// Returns the reason for an explanation.
    pub(super) fn text(&self) -> &'static str {
        match self {
            Self::ReportOnly => "the layer only reports",
            Self::Overcommit(_) => "the layer overcommits, and there is capacity",
        }
    }
}

impl LayerConfig {
    /// Creates the default settings for these rules. `accounts` is the identity of the store's accounts.
    pub(crate) fn new(infos: &[RuleInfo<'_>], accounts: Option<usize>) -> Self {
        Self {
            headers: HeaderPolicy::default(),
            template: Arc::new(Template::new(HeaderPolicy::default(), infos)),
            exposes_decision: false,
            exempt_preflights: false,
            has_exceptions: true,
            report_only: Toggle::off(),
            retries: Retries::new(infos),
            may_hold: infos.iter().any(RuleInfo::may_hold),
            may_queue: infos.iter().any(|info| info.queues),
            queue_bounds: Bounds {
                all: MAX_WAITERS,
                per_key: None,
            },
            queue: Arc::default(),
            enabled: Toggle::on(),
            allow: Vec::new(),
            deny: Vec::new(),
            overcommit: None,
            adjustment: None,
            penalties: Vec::new(),
            hold: Arc::default(),
            drain: Arc::default(),
            adaptive: infos.iter().filter_map(AdaptiveRule::new).collect(),
            metrics: Metrics::new(infos.iter().map(metered)),
            hooks: infos.iter().filter_map(RuleInfo::hook).collect(),
            secret: None,
            is_on_admin_page: false,
            has_context: true,
            nesting: Arc::new(NestingCheck::new(accounts)),
            charging: Arc::default(),
            advised: Arc::default(),
        }
    }

    /// Checks the toggle, the access lists and the exemption of preflights.
    ///
    /// # Errors
    ///
    /// Fails if the request bypasses the rules. The error is the reason.
    #[inline]
    pub(crate) fn check_bypass(&self, head: &RequestHead<'_>) -> Result<(), Bypass> {
        if !self.enabled.is_on() {
            return Err(Bypass::Exempt("the layer is switched off"));
        }
        if !self.has_exceptions {
            return Ok(());
        }
        if self.allow.iter().any(|list| list.allows(head)) {
            return Err(Bypass::Exempt("it is on an allow list"));
        }
        self.deny.iter().try_for_each(|list| list.deny(head))?;
        if self.exempt_preflights && is_preflight(head) {
            return Err(Bypass::Exempt("it is a CORS preflight"));
        }
        Ok(())
    }

    /// Records a request that passed without a charge.
    #[cold]
    pub(super) fn miss_charge(&self) {
        if self.charging.record_miss() {
            warn_of_no_charge();
        }
    }

    /// Records a request that bypassed the rules, unless the layer is off.
    pub(super) fn record_exempt(&self) {
        // Charged requests are recorded only while the layer samples. A later one that is not charged would
        // make a layer that charges look as if it never did.
        if self.enabled.is_on() && self.nesting.sample() {
            self.miss_charge();
        }
    }

    /// Returns `true` if a request cannot wait although a rule lets it: the layer is report-only, the
    /// request needs several slots, or the queue is full or closed.
    fn must_not_queue(&self, charges: &[Charge<'_>]) -> bool {
        if !charges.iter().any(Charge::queues) {
            return false;
        }
        self.report_only.is_on()
            || charges.iter().any(Charge::takes_several_slots)
            || self.queue.is_full(charges, self.queue_bounds)
    }

    /// Returns a copy of the charges that a request would be decided by now.
    pub(super) fn owned_now(&self, all: Candidates<'_, '_>) -> OwnedCandidates {
        if !self.must_not_queue(all.charges) {
            return all.into();
        }
        let charges = &without_queueing(all.charges);
        Candidates { charges, ..all }.into()
    }

    /// Returns a reason to run a request that would otherwise be rejected, or `None` to reject it.
    #[inline]
    pub(crate) fn override_denial(&self, decision: Option<&Decision>) -> Option<Override> {
        if self.report_only.is_on() {
            return Some(Override::ReportOnly);
        }
        let overcommit = self.overcommit.as_ref()?;
        if !decision.is_some_and(Decision::may_pass_beyond) {
            return None;
        }
        overcommit.try_enter().map(Override::Overcommit)
    }

    /// Makes the wait of each denial unknown that a larger adaptive limit would end. If there are no other
    /// denials, the source is an overload.
    #[inline]
    pub(crate) fn mark_overload(&self, decision: &mut Decision, charges: &[Charge<'_>]) {
        if self.adaptive.is_empty() || decision.is_blocked() {
            return;
        }
        let mut is_by_adaptive = false;
        let mut is_by_others = false;
        for outcome in &mut decision.outcomes {
            if !outcome.denies() {
                continue;
            }
            if self.may_fit_later(outcome, charges) {
                is_by_adaptive = true;
                outcome.set_retry_ns(UNKNOWN_WAIT);
            } else {
                is_by_others = true;
            }
        }
        if is_by_adaptive && !is_by_others {
            decision.source = Source::Overload;
        }
    }

    /// Returns `true` if the limit of an outcome is adaptive, and at its highest admits the charge.
    fn may_fit_later(&self, outcome: &Outcome, charges: &[Charge<'_>]) -> bool {
        // Only the outcome of slots is that of the adaptive limit.
        if outcome.held().is_none() {
            return false;
        }
        let rule = outcome.rule();
        let mut adaptive = self.adaptive.iter();
        let Some(adaptive) = adaptive.find(|adaptive| adaptive.rule == rule) else {
            return false;
        };
        let max = u64::from(adaptive.controller.max);
        Charge::find(charges, rule).is_some_and(|charge| charge.demand().need() <= max)
    }

    /// Returns `true` if anything reads the decisions.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        cfg!(feature = "metrics") || !self.hooks.is_empty() || observe::has_subscriber()
    }

    /// Panics if an admin page shows the setting, since it would change a toggle that the layer no longer
    /// has.
    #[track_caller]
    pub(crate) fn assert_not_on_admin_page(&self, setting: &str) {
        assert!(
            !self.is_on_admin_page,
            "{setting} after Admin::watch: the admin page has the earlier value; set it before watch"
        );
    }

    /// Calls the hooks, and records metrics and log lines.
    pub(crate) fn notify(&self, event: &DecisionEvent<'_>) {
        if observe::has_subscriber() {
            observe::record(event);
        }
        self.metrics.on_decision(event);
        self.hooks.iter().for_each(|hook| hook.on_decision(event));
    }

    /// Prepares what a request needs of settings that no longer change.
    pub(crate) fn prepare(&mut self, infos: &[RuleInfo<'_>]) {
        self.template = Arc::new(Template::new(self.headers, infos));
        let has_lists = !self.allow.is_empty() || !self.deny.is_empty();
        self.has_exceptions = has_lists || self.exempt_preflights;
        self.has_context = self.exposes_decision
            || self.adjustment.is_some()
            || self.overcommit.is_some()
            || self
                .penalties
                .iter()
                .any(|penalty| penalty.reads_responses());
    }

    /// Adds a request to the queue. Returns `None` if the queue is full or closed, or the layer is
    /// report-only.
    pub(super) fn enter_queue<S: Store>(
        &self,
        charges: &[Charge<'_>],
    ) -> Option<Box<QueuedRequest<S>>> {
        if self.report_only.is_on() {
            return None;
        }
        self.queue.enter(charges, self.queue_bounds)
    }

    /// Returns the penalties under which a denial for lack of a place in the queue is a strike: those whose
    /// key fills its own part of the queue, or does not queue.
    pub(super) fn penalties_despite_full_queue(&self, charges: &[Charge<'_>]) -> PenaltySet {
        let mut striking = PenaltySet::NONE;
        for (at, penalty) in self.penalties.iter().enumerate() {
            let charge = penalty.find(charges);
            if charge.is_some_and(|charge| self.queue.is_full_by_own_key(charge, self.queue_bounds))
            {
                striking.insert(at);
            }
        }
        striking
    }

    /// Returns the penalties under which a denial is a strike after a wait. That the layer ends all waits is
    /// no fault of the client.
    pub(super) fn penalties_after_wait(&self) -> PenaltySet {
        if self.queue.is_closed() {
            PenaltySet::NONE
        } else {
            PenaltySet::ALL
        }
    }

    /// Returns the penalties of a set.
    pub(super) fn penalties(&self, set: PenaltySet) -> impl Iterator<Item = &Arc<RulePenalty>> {
        let all = self.penalties.iter().enumerate();
        all.filter(move |(at, _)| set.contains(*at))
            .map(|(_, penalty)| penalty)
    }
}

/// A set of penalties of a layer. Those from the 64th on are in it together.
#[derive(Clone, Copy)]
pub(super) struct PenaltySet(u64);

impl PenaltySet {
    pub(super) const ALL: Self = Self(u64::MAX);
    pub(super) const NONE: Self = Self(0);

    fn insert(&mut self, at: usize) {
        self.0 |= 1 << at.min(63);
    }

    fn contains(self, at: usize) -> bool {
        self.0 >> at.min(63) & 1 == 1
    }
}

/// Returns `true` for a CORS preflight without a body (Fetch standard, section 3.2.2).
///
/// A gRPC call is never a preflight, because it has a `content-type`.
fn is_preflight(head: &RequestHead<'_>) -> bool {
    let RequestHead {
        method, headers, ..
    } = head;
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && !headers.contains_key(CONTENT_TYPE)
        && !headers.contains_key(TRANSFER_ENCODING)
        && headers
            .get_all(CONTENT_LENGTH)
            .iter()
            .all(|length| length == "0")
}
