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
    penalty::{RulePenalty, Watched},
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
    observe::{self, DecisionEvent, Metrics, OnDecision},
    rule::{Bypass, Controller, Measurement, RuleInfo, RuleName},
    store::{Charge, Store},
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
    /// The controllers of rules with adaptive limits.
    pub(crate) adaptive: Vec<(RuleName, Arc<Controller>)>,
    pub(crate) metrics: Metrics,
    /// The hooks of rules and of the user.
    pub(crate) hooks: Vec<Arc<dyn OnDecision>>,
    /// The secret for fingerprints of keys in logs, spans and explanations.
    pub(crate) secret: Option<FingerprintKey>,
    /// `true` if an admin page has the toggles and the secret.
    pub(crate) is_watched: bool,
    /// `true` if every request has a [`ResponseContext`], and until [`prepare`](Self::prepare) looks.
    pub(crate) has_context: bool,
    pub(super) nesting: Arc<NestingCheck>,
    pub(super) charging: Arc<FirstCheck<UNCHARGED>>,
    /// `true` once the log has the mistakes of the layer.
    pub(crate) advised: Arc<AtomicBool>,
}

/// The reason to run a request that would otherwise be rejected.
pub(crate) enum Override {
    ReportOnly,
    Overcommit(InFlight),
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
            adaptive: infos
                .iter()
                .filter_map(|info| Some((info.name, info.live?.controller.clone()?)))
                .collect(),
            metrics: Metrics::new(infos.iter().map(|info| (info.name, info.is_chosen()))),
            hooks: infos.iter().filter_map(RuleInfo::hook).collect(),
            secret: None,
            is_watched: false,
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

    /// Returns `true` if the queue is full or closed, the request needs several slots, or the layer is
    /// report-only.
    #[inline]
    pub(crate) fn must_not_queue(&self, charges: &[Charge<'_>]) -> bool {
        let takes_several = || charges.iter().any(Charge::takes_several_slots);
        charges.iter().any(Charge::queues)
            && (self.report_only.is_on()
                || takes_several()
                || self.queue.is_full(charges, self.queue_bounds))
    }

    /// Returns a reason to run a request that would otherwise be rejected, or `None` to reject it.
    #[inline]
    pub(crate) fn override_denial(&self, decision: Option<&Decision>) -> Option<Override> {
        if self.report_only.is_on() {
            return Some(Override::ReportOnly);
        }
        let overcommit = self
            .overcommit
            .as_ref()
            .filter(|_| decision.is_some_and(Decision::may_pass_beyond))?;
        overcommit.try_enter().map(Override::Overcommit)
    }

    /// Makes the wait of each denial by an adaptive limit unknown, because a larger limit may allow the
    /// request. If only adaptive limits deny, the source is an overload.
    #[inline]
    pub(crate) fn mark_overload(&self, decision: &mut Decision, charges: &[Charge<'_>]) {
        if self.adaptive.is_empty() || decision.is_blocked() {
            return;
        }
        let need_and_max = |outcome: &Outcome| {
            let charge = charges
                .iter()
                .find(|charge| charge.rule == outcome.rule())?;
            let controller = self
                .adaptive
                .iter()
                .find(|(rule, _)| *rule == charge.rule)?;
            (outcome.held().is_some()).then(|| (charge.demand().need(), controller.1.max))
        };
        let mut adaptive = 0;
        let mut others = 0;
        for outcome in decision
            .outcomes
            .iter_mut()
            .filter(|outcome| outcome.denies())
        {
            let Some((need, max)) = need_and_max(outcome) else {
                others += 1;
                continue;
            };
            adaptive += 1;
            if need <= max.into() {
                outcome.set_retry_ns(UNKNOWN_WAIT);
            }
        }
        if adaptive > 0 && others == 0 {
            decision.source = Source::Overload;
        }
    }

    /// Returns `true` if anything reads the decisions.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        cfg!(feature = "metrics") || !self.hooks.is_empty() || observe::has_subscriber()
    }

    /// An admin page would change a toggle that the layer no longer has.
    #[track_caller]
    pub(crate) fn assert_unwatched(&self, setting: &str) {
        assert!(
            !self.is_watched,
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
        let may_queue = !self.report_only.is_on();
        may_queue
            .then(|| self.queue.enter(charges, self.queue_bounds))
            .flatten()
    }

    /// Returns the penalties under which a denial is a strike although the queue has no place for the
    /// request: the requests of its own key alone fill the part of the key.
    pub(super) fn penalties_despite_full_queue(&self, charges: &[Charge<'_>]) -> PenaltySet {
        let mut striking = PenaltySet::NONE;
        for (at, penalty) in self.penalties.iter().enumerate() {
            let charge = penalty.find(charges);
            if charge.is_some_and(|charge| self.queue.is_key_full(charge, self.queue_bounds)) {
                striking.insert(at);
            }
        }
        striking
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
    watched: SmallVec<[Watched; 1]>,
    slot: Option<(Slot, Arc<HoldConfig>)>,
    measured: SmallVec<[Measurement; 1]>,
    _in_flight: Option<InFlight>,
    /// For the first requests: the rules that charged the request.
    counted: Option<(Arc<NestingCheck>, SmallVec<[RuleName; 4]>)>,
    /// `true` for the first requests.
    is_early: bool,
}

impl ResponseContext {
    /// Returns the context of a request that bypassed the store.
    pub(super) fn uncharged(settings: &LayerConfig) -> Option<Box<Self>> {
        let bypass = || Decision::allow().with_source(Source::Bypass);
        let exposed = settings
            .adjustment
            .as_ref()
            .filter(|config| config.exposed.is_some());
        let charge = exposed.map(|config| ChargeHandle::new(config, &[], bypass(), false));
        let decision = settings.exposes_decision.then(|| Box::new(bypass()));
        let is_used = charge.is_some() || decision.is_some();
        is_used.then(|| {
            Box::new(Self {
                charge,
                decision,
                ..Self::default()
            })
        })
    }

    /// Writes header fields and extensions to a response, adjusts the charge, and makes the body
    /// hold the slots.
    pub(super) fn apply<B: 'static>(self: Box<Self>, mut response: Response<B>) -> Response<B> {
        if self.is_early && response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
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
        self.watched
            .iter()
            .for_each(|watched| watched.classify(&response));
        let Some((mut slot, config)) = self.slot else {
            return response;
        };
        if !self.measured.is_empty() {
            let overloaded = config.is_overloaded(&response);
            self.measured
                .into_iter()
                .for_each(|measured| measured.complete(overloaded));
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !config.exposed {
            warn_of_upgrade();
        }
        slot.end_head();
        config.hold(slot, response)
    }

    /// Inserts the extensions for the handler, which is called next.
    pub(super) fn attach(&mut self, extensions: &mut Extensions) {
        if let Some((nesting, rules)) = self.counted.take() {
            nesting.record(&rules, extensions);
        }
        if let Some(decision) = &self.decision {
            extensions.insert(Decision::clone(decision));
        }
        if let Some(charge) = &self.charge {
            charge.expose(extensions);
        }
        if let Some((slot, config)) = &self.slot {
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
        if decision.slot.is_some() {
            for it in charges {
                settings.metrics.hold(decision, it.rule, it.quotas, it.cost);
            }
        }
        // The slots move to the context first, so that the clones of the decision below hold none.
        if let Some(slot) = decision.take_slot() {
            context.slot = Some((slot, settings.hold.clone()));
            for (rule, controller) in &settings.adaptive {
                let mut charges = charges.iter();
                let charge = charges.find(|charge| charge.rule == *rule && decision.charged(*rule));
                context
                    .measured
                    .extend(charge.map(|charge| controller.hold(charge.cost)));
            }
        }
        for it in settings
            .penalties
            .iter()
            .filter(|_| !settings.report_only.is_on())
        {
            context.watched.extend(Watched::new(it, decision, charges));
        }
        // A request that overcommits is not charged.
        let is_charged = decision.is_allowed() && in_flight.is_none();
        if is_charged && settings.nesting.is_early() {
            context.check_early_request(settings, decision, charges);
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

    /// Checks one of the first requests for mistakes of the layer.
    fn check_early_request(
        &mut self,
        settings: &LayerConfig,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) {
        let counts = |it: &&Charge<'_>| it.cost > 0 && decision.charged(it.rule);
        let rules = charges
            .iter()
            .filter(counts)
            .map(|charge| charge.rule)
            .collect();
        let is_free = charges
            .iter()
            .all(|it| it.cost == 0 || it.quotas.is_empty());
        // The cost may be known only after the response.
        let may_cost_later = settings.adjustment.is_some();
        if is_free && !may_cost_later {
            settings.miss_charge();
        } else {
            settings.charging.record_hit();
        }
        self.counted = Some((settings.nesting.clone(), rules));
        self.is_early = true;
    }
}
