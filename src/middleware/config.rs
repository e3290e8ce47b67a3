//! Settings of a layer, and their effects on the handler and the response.

use std::sync::{Arc, atomic::AtomicBool};

use http::{
    Extensions, Method, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE,
        ORIGIN, TRANSFER_ENCODING,
    },
};

use smallvec::SmallVec;

use super::{
    access::AccessList,
    adjust::{AdjustConfig, ChargeHandle},
    drain::DrainConfig,
    hold::HoldConfig,
    overcommit::{InFlight, Overcommit},
    penalty::{PendingStrike, RulePenalty},
    queue::{Bounds, Queue, QueuedRequest},
    retry_after::Retries,
};
use crate::{
    advice::{
        FirstCheck, NestingCheck, UNCHARGED, warn_of_inner_cors, warn_of_no_charge, warn_of_upgrade,
    },
    decision::{Decision, Outcome, Slot, Source, UNKNOWN_WAIT},
    fingerprint::FingerprintKey,
    head::RequestHead,
    headers::{HeaderPolicy, Lines, Template},
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
    /// `true` if every request has a [`ResponseContext`], and until [`prepare`](Self::prepare) looks.
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
    fn measure(&self, decision: &Decision, charges: &[Charge<'_>]) -> Option<Measurement> {
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
    /// Creates the default settings for these rules, on a store with these accounts.
    pub(crate) fn new(infos: &[RuleInfo<'_>], accounts: Option<usize>) -> Self {
        Self {
            headers: HeaderPolicy::default(),
            template: Arc::new(Template::new(HeaderPolicy::default(), infos)),
            exposes_decision: false,
            exempt_preflights: false,
            has_exceptions: true,
            report_only: Toggle::off(),
            retries: Retries::default(),
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
    fn miss_charge(&self) {
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

    /// Makes the wait of each denial by an adaptive limit unknown, because a larger limit may allow the
    /// request. If only adaptive limits deny, the source is an overload.
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
            let Some(max) = self.adaptive_max(outcome) else {
                is_by_others = true;
                continue;
            };
            is_by_adaptive = true;
            let charge = Charge::find(charges, outcome.rule());
            if charge.is_some_and(|charge| charge.demand().need() <= max.into()) {
                outcome.set_retry_ns(UNKNOWN_WAIT);
            }
        }
        if is_by_adaptive && !is_by_others {
            decision.source = Source::Overload;
        }
    }

    /// Returns the highest limit of an outcome, if the limit is adaptive.
    fn adaptive_max(&self, outcome: &Outcome) -> Option<u32> {
        // Only the outcome of slots is that of the adaptive limit.
        outcome.held()?;
        let mut adaptive = self.adaptive.iter();
        let found = adaptive.find(|adaptive| adaptive.rule == outcome.rule())?;
        Some(found.controller.max)
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
    pub(super) fn penalties(&self, set: PenaltySet) -> impl Iterator<Item = &RulePenalty> {
        let all = self.penalties.iter().enumerate();
        all.filter(move |(at, _)| set.contains(*at))
            .map(|(_, penalty)| &**penalty)
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

/// Everything that a decision adds to the handler and to the response, for layers and rules that
/// need more than header fields.
#[derive(Default)]
pub(crate) struct ResponseContext {
    lines: Option<Lines>,
    /// Boxed, because few layers expose it and moving it is slow.
    decision: Option<Box<Decision>>,
    charge: Option<ChargeHandle>,
    /// For penalties by response.
    strikes: SmallVec<[PendingStrike; 1]>,
    held: Option<HeldSlot>,
    measured: SmallVec<[Measurement; 1]>,
    _in_flight: Option<InFlight>,
    /// Set for one of the first requests.
    sampled: Option<SampledRequest>,
}

/// The slots of a request, and how long to hold them.
struct HeldSlot {
    slot: Slot,
    config: Arc<HoldConfig>,
}

/// One of the first requests, and the rules that charged it.
struct SampledRequest {
    nesting: Arc<NestingCheck>,
    rules: SmallVec<[RuleName; 4]>,
}

impl ResponseContext {
    /// Returns the context of a request that bypassed the store, if it needs one.
    pub(super) fn uncharged(settings: &LayerConfig) -> Option<Box<Self>> {
        let bypass = || Decision::allow().with_source(Source::Bypass);
        let exposing = settings
            .adjustment
            .as_ref()
            .filter(|config| config.exposed.is_some());
        let charge = exposing.map(|config| ChargeHandle::new(config, &[], bypass(), false));
        let decision = settings.exposes_decision.then(|| Box::new(bypass()));
        if charge.is_none() && decision.is_none() {
            return None;
        }
        Some(Box::new(Self {
            charge,
            decision,
            ..Self::default()
        }))
    }

    /// Writes header fields and extensions to a response, adjusts the charge, and makes the body
    /// hold the slots.
    pub(super) fn apply<B: 'static>(self: Box<Self>, mut response: Response<B>) -> Response<B> {
        if self.sampled.is_some() && response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            warn_of_inner_cors();
        }
        if let Some(lines) = self.lines {
            lines.write(response.headers_mut());
        }
        if let Some(decision) = self.decision {
            response.extensions_mut().insert(*decision);
        }
        if let Some(charge) = &self.charge {
            charge.classify(&response);
        }
        for strike in &self.strikes {
            strike.classify(&response);
        }
        match self.held {
            Some(held) => held.end_head(self.measured, response),
            None => response,
        }
    }

    /// Starts the measurements, and inserts the extensions for the handler, which is called next.
    pub(super) fn begin_handler(&mut self, extensions: &mut Extensions) {
        if let Some(SampledRequest { nesting, rules }) = &self.sampled {
            nesting.record(rules, extensions);
        }
        if let Some(decision) = &self.decision {
            extensions.insert(Decision::clone(decision));
        }
        if let Some(charge) = &self.charge {
            charge.expose(extensions);
        }
        if let Some(HeldSlot { slot, config }) = &self.held {
            self.measured.iter_mut().for_each(Measurement::start);
            if config.exposed {
                extensions.insert(slot.clone());
            }
        }
    }

    #[inline(never)]
    pub(super) fn new(
        lines: Option<Lines>,
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        in_flight: Option<InFlight>,
    ) -> Box<Self> {
        // Filled in place, because moving it is slow.
        let mut context = Box::<Self>::default();
        context.lines = lines;
        // The slots move to the context first, so that the clones of the decision below hold none.
        context.hold_slots(settings, decision, charges);
        if !settings.report_only.is_on() {
            for penalty in &settings.penalties {
                let strike = PendingStrike::new(penalty, decision, charges);
                context.strikes.extend(strike);
            }
        }
        // A request that overcommits is not charged.
        let is_charged = decision.is_allowed() && in_flight.is_none();
        if is_charged && settings.nesting.sample() {
            context.check_sampled(settings, decision, charges);
        }
        context.decision = settings.exposes_decision.then(|| decision.clone().into());
        context.charge = settings.adjustment.as_ref().map(|config| {
            let is_kept = is_charged && !decision.cause().is_undone();
            ChargeHandle::new(config, charges, decision.clone(), is_kept)
        });
        context._in_flight =
            in_flight.or_else(|| settings.overcommit.as_ref().map(Overcommit::enter));
        context
    }

    /// Takes the slots from the decision, and begins to count and to measure them.
    #[inline(always)]
    fn hold_slots(
        &mut self,
        settings: &LayerConfig,
        decision: &mut Decision,
        charges: &[Charge<'_>],
    ) {
        if decision.slot.is_none() {
            return;
        }
        for charge in charges {
            let Charge {
                rule, quotas, cost, ..
            } = *charge;
            settings.metrics.hold(decision, rule, quotas, cost);
        }
        self.held = decision.take_slot().map(|slot| HeldSlot {
            slot,
            config: settings.hold.clone(),
        });
        for adaptive in &settings.adaptive {
            self.measured.extend(adaptive.measure(decision, charges));
        }
    }

    /// Checks one of the first requests for mistakes of the layer.
    fn check_sampled(
        &mut self,
        settings: &LayerConfig,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) {
        let is_free = |charge: &Charge<'_>| charge.cost == 0 || charge.quotas.is_empty();
        // The cost may be known only after the response.
        let may_cost_later = settings.adjustment.is_some();
        if charges.iter().all(is_free) && !may_cost_later {
            settings.miss_charge();
        } else {
            settings.charging.record_hit();
        }
        let counting = charges
            .iter()
            .filter(|charge| charge.cost > 0 && decision.charged(charge.rule));
        self.sampled = Some(SampledRequest {
            nesting: settings.nesting.clone(),
            rules: counting.map(|charge| charge.rule).collect(),
        });
    }
}

impl HeldSlot {
    /// Ends what lasts until the head of the response is ready. The body holds the slots from here on.
    #[inline(always)]
    fn end_head<B: 'static>(
        mut self,
        measured: SmallVec<[Measurement; 1]>,
        response: Response<B>,
    ) -> Response<B> {
        let config = self.config;
        if !measured.is_empty() {
            let is_overloaded = config.is_overloaded(&response);
            for measurement in measured {
                measurement.complete(is_overloaded);
            }
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !config.exposed {
            warn_of_upgrade();
        }
        self.slot.end_head();
        config.hold(self.slot, response)
    }
}
