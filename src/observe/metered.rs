//! Metrics through the `metrics` facade.

use std::{
    array::from_fn,
    borrow::Cow,
    hash::BuildHasher,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use foldhash::quality::FixedState;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use parking_lot::Mutex;

use super::{DecisionEvent, MeteredRule, OnDecision};
use crate::{
    decision::{Cause, Decision, Hold, Outcome, Source},
    name::RuleName,
    quota::Quota,
};

/// The metrics of a layer. Each metric is registered on first use.
#[derive(Clone)]
pub(crate) struct Metrics {
    rules: Arc<[RuleMetrics]>,
    /// The histograms by their label `store`.
    durations: Arc<[Labelled<Histogram>; Source::STORES]>,
    attempts: Arc<OnceLock<Histogram>>,
}

struct RuleMetrics {
    rule: RuleName,
    /// `true` if the quotas are chosen for each request, so that the rule has no single limit.
    is_chosen: bool,
    /// A hash of the quotas whose limits the gauges have, or 0.
    quotas: AtomicU64,
    limits: Mutex<Vec<LimitGauge>>,
    /// The counters by their label `result`.
    results: [Labelled<Counter>; Cause::LABELS],
    near: OnceLock<Counter>,
    utilization: OnceLock<Histogram>,
    slots: OnceLock<ActiveMetrics>,
    queue: OnceLock<ActiveMetrics>,
}

/// The metrics of what lasts for a time.
#[derive(Clone, Debug)]
struct ActiveMetrics {
    /// The units now.
    gauge: Gauge,
    duration: Histogram,
}

/// Held slots or a request that waits. They count in a gauge until this value is dropped, which
/// records their time.
#[derive(Debug)]
pub(crate) struct Active {
    metrics: ActiveMetrics,
    units: f64,
    since: tokio::time::Instant,
}

/// The gauge of the limit of a quota.
#[derive(Clone)]
struct LimitGauge {
    name: Cow<'static, str>,
    gauge: Gauge,
}

/// A metric with the value of its label, once it is used.
type Labelled<T> = OnceLock<(&'static str, T)>;

impl Metrics {
    /// Creates the metrics of a layer with these rules.
    pub(crate) fn new(rules: impl Iterator<Item = MeteredRule>) -> Self {
        describe();
        let mut rules: Vec<_> = rules.map(RuleMetrics::new).collect();
        // Rules without quotas may have equal names.
        rules.sort_by_key(|rule| rule.rule.as_str());
        rules.dedup_by_key(|rule| rule.rule);
        let durations = Arc::new(from_fn(|_| OnceLock::new()));
        Self {
            rules: rules.into(),
            durations,
            attempts: Arc::default(),
        }
    }

    /// Records the store calls of a request that had a choice.
    pub(crate) fn attempted(&self, calls: u32) {
        self.attempts
            .get_or_init(|| histogram!("ratelimit.attempts"))
            .record(calls);
    }

    /// Records the time until the store answered.
    #[inline]
    pub(crate) fn answered(&self, decision: &Decision, started: Instant) {
        let store = decision.source().store();
        let duration = labelled(&*self.durations, store, || {
            // The recorder may be younger than the layer.
            describe();
            histogram!("ratelimit.decision.duration", "store" => store)
        });
        if let Some(duration) = duration {
            duration.record(started.elapsed());
        }
    }

    /// Counts slots that an allowed request takes by the quotas of a rule, until they are free.
    pub(crate) fn hold(
        &self,
        decision: &mut Decision,
        rule: RuleName,
        quotas: &[Quota],
        cost: u32,
    ) {
        if cost == 0 || !decision.charged(rule) {
            return;
        }
        let Some(quota) = quotas.iter().find(|quota| quota.is_concurrent()) else {
            return;
        };
        let Some(metered) = self.rules.iter().find(|metered| metered.rule == rule) else {
            return;
        };
        let slots = metered
            .slots
            .get_or_init(|| metered.active("ratelimit.active_slots", "ratelimit.slot.duration"));
        let active = Active::new(slots, cost);
        decision.hold(Hold::on_free(|| drop(active)).until_head(quota.sheds()));
    }

    /// Counts a request that waits by this decision, until the returned value is dropped. `queues`
    /// returns `true` for a rule whose requests may wait.
    pub(crate) fn count_waiting(
        &self,
        decision: &Decision,
        queues: impl Fn(RuleName) -> bool,
    ) -> Option<Active> {
        let name = decision
            .binding_among(|outcome| queues(outcome.rule()))
            .or_else(|| decision.binding())?
            .rule();
        let rule = self.rules.iter().find(|metered| metered.rule == name)?;
        let queue = rule
            .queue
            .get_or_init(|| rule.active("ratelimit.queued_requests", "ratelimit.time_in_queue"));
        Some(Active::new(queue, 1))
    }
}

impl RuleMetrics {
    fn new(MeteredRule { name, is_chosen }: MeteredRule) -> Self {
        Self {
            rule: name,
            is_chosen,
            quotas: AtomicU64::new(0),
            limits: Mutex::default(),
            results: from_fn(|_| OnceLock::new()),
            near: OnceLock::new(),
            utilization: OnceLock::new(),
            slots: OnceLock::new(),
            queue: OnceLock::new(),
        }
    }

    /// Sets the gauges of the limits, if these are new quotas.
    fn set_limits(&self, quotas: &[Quota]) {
        if self.is_chosen {
            return;
        }
        let known = self.quotas.load(Relaxed);
        let hash = FixedState::default().hash_one(quotas).max(1);
        if known == hash {
            return;
        }
        self.replace_gauges(quotas);
        // Another thread has set the gauges meanwhile, maybe from an older plan.
        let swapped = self.quotas.compare_exchange(known, hash, Relaxed, Relaxed);
        if swapped.is_err() {
            self.quotas.store(0, Relaxed);
        }
    }

    /// Sets the gauges of these quotas. The gauge of a quota that the plan no longer has becomes 0.
    fn replace_gauges(&self, quotas: &[Quota]) {
        let mut limits = Vec::with_capacity(quotas.len());
        for quota in quotas {
            let name = quota.name_in(self.rule, quotas);
            let policy = self.rule.as_str();
            let gauge = gauge!("ratelimit.limit", "policy" => policy, "quota" => name.clone());
            gauge.set(quota.limit());
            limits.push(LimitGauge { name, gauge });
        }
        let before = mem::replace(&mut *self.limits.lock(), limits.clone());
        for old in before {
            if limits.iter().all(|limit| limit.name != old.name) {
                old.gauge.set(0);
            }
        }
    }

    /// Counts a decision with this result.
    fn count(&self, result: &'static str) {
        let policy = self.rule.as_str();
        let counter = labelled(
            &self.results,
            result,
            || counter!("ratelimit.decisions", "policy" => policy, "result" => result),
        );
        if let Some(counter) = counter {
            counter.increment(1);
        }
    }

    /// Records the largest share that the key of a decision has used of a quota of the rule, and
    /// counts an allowed request that is close to the limit.
    fn record_utilization(&self, decision: &Decision) {
        let used = decision
            .outcomes()
            .iter()
            .filter_map(|outcome| self.used(outcome));
        let Some(most) = used.reduce(f64::max).filter(|_| !decision.is_blocked()) else {
            return;
        };
        let policy = self.rule.as_str();
        self.utilization
            .get_or_init(|| histogram!("ratelimit.utilization", "policy" => policy))
            .record(most);
        if decision.is_allowed() && most >= 0.8 {
            self.near
                .get_or_init(|| counter!("ratelimit.near_limit", "policy" => policy))
                .increment(1);
        }
    }

    /// Returns the used share of a quota of the rule.
    fn used(&self, outcome: &Outcome) -> Option<f64> {
        let limit = outcome.limit();
        if outcome.rule() != self.rule || limit == 0 || outcome.is_passed_over() {
            return None;
        }
        Some(f64::from(limit.saturating_sub(outcome.remaining())) / f64::from(limit))
    }

    fn active(&self, gauge: &'static str, duration: &'static str) -> ActiveMetrics {
        let policy = self.rule.as_str();
        ActiveMetrics {
            gauge: gauge!(gauge, "policy" => policy),
            duration: histogram!(duration, "policy" => policy),
        }
    }
}

impl Active {
    fn new(metrics: &ActiveMetrics, units: u32) -> Self {
        let units = units.into();
        let since = tokio::time::Instant::now();
        metrics.gauge.increment(units);
        Self {
            metrics: metrics.clone(),
            units,
            since,
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.metrics.gauge.decrement(self.units);
        self.metrics.duration.record(self.since.elapsed());
    }
}

impl OnDecision for Metrics {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Ok(decision) = event.decision else {
            if !event.is_admitted {
                counter!("ratelimit.unidentified").increment(1);
            }
            return;
        };
        for metered in &*self.rules {
            if let Some(charged) = (event.charged)(metered.rule) {
                metered.set_limits(charged.quotas);
                metered.record_utilization(decision);
            }
            if let Some(cause) = event.cause(metered.rule) {
                metered.count(cause.label(event.is_admitted));
            }
        }
    }
}

/// Returns the metric with this label, which is made on first use.
fn labelled<'m, T>(
    all: &'m [Labelled<T>],
    label: &'static str,
    make: impl Fn() -> T,
) -> Option<&'m T> {
    // The first cell that is free gets the label. The search stops there.
    let mut known = all.iter().map(|one| one.get_or_init(|| (label, make())));
    known.find(|(of, _)| *of == label).map(|(_, metric)| metric)
}

/// A metric and its description.
type Described = (&'static str, &'static str);

const COUNTERS: [Described; 6] = [
    (
        "ratelimit.decisions",
        "Requests by the rules that charged them, or of denied ones by those that denied them.",
    ),
    ("ratelimit.near_limit", "Allowed requests close to a limit."),
    (
        "ratelimit.unidentified",
        "Requests rejected without a usable key, or by a deny list.",
    ),
    (
        "ratelimit.store.errors",
        "Calls that a store failed to decide.",
    ),
    (
        "ratelimit.overflows",
        "Decisions on accounts that new keys share in a full store.",
    ),
    (
        "ratelimit.blocks.denied",
        "Blocks that the embedded store had no room for.",
    ),
];

const DURATIONS: [Described; 3] = [
    (
        "ratelimit.decision.duration",
        "Time until the store answers.",
    ),
    (
        "ratelimit.slot.duration",
        "Time for which a request holds its slots.",
    ),
    (
        "ratelimit.time_in_queue",
        "Time for which a request waits before it runs or is denied.",
    ),
];

const DISTRIBUTIONS: [Described; 2] = [
    (
        "ratelimit.attempts",
        "Store calls of each request that had a choice between charges.",
    ),
    (
        "ratelimit.utilization",
        "Share of its quota that the key of a request has used, after the decision.",
    ),
];

const GAUGES: [Described; 5] = [
    ("ratelimit.keys", "Accounts in debt in the embedded store."),
    (
        "ratelimit.capacity",
        "Accounts that the embedded store can hold.",
    ),
    (
        "ratelimit.limit",
        "Units that a key can use at once, or slots that it can hold.",
    ),
    (
        "ratelimit.active_slots",
        "Slots that the requests of this process hold.",
    ),
    (
        "ratelimit.queued_requests",
        "Requests that wait for a rate or a slot.",
    ),
];

/// Registers the descriptions of all metrics, and the counters without labels.
///
/// Such a counter starts at 0, because an increase from no value to 1 is not an increase.
#[cold]
fn describe() {
    for (name, text) in COUNTERS {
        describe_counter!(name, Unit::Count, text);
    }
    for name in [
        "ratelimit.unidentified",
        "ratelimit.overflows",
        "ratelimit.blocks.denied",
    ] {
        counter!(name).increment(0);
    }
    for (name, text) in DURATIONS {
        describe_histogram!(name, Unit::Seconds, text);
    }
    for (name, text) in DISTRIBUTIONS {
        describe_histogram!(name, Unit::Count, text);
    }
    let breaker = "The breaker of the store: 0 closed, 1 probing, 2 open.";
    describe_gauge!("ratelimit.store.circuit", breaker);
    for (name, text) in GAUGES {
        describe_gauge!(name, Unit::Count, text);
    }
}

/// Counts a failed store call.
pub(crate) fn store_failed(kind: &'static str) {
    counter!("ratelimit.store.errors", "kind" => kind).increment(1);
}

/// Sets the state of a circuit breaker: closed (0), probing (1) or open (2).
///
/// On a cluster, each server has a breaker.
pub(crate) fn circuit(server: Option<&str>, state: u8) {
    let gauge = match server {
        Some(server) => gauge!("ratelimit.store.circuit", "server" => server.to_owned()),
        None => gauge!("ratelimit.store.circuit"),
    };
    gauge.set(state);
}

/// Counts a decision on a shared account. New keys share an account while the store is full.
pub(crate) fn overflowed() {
    counter!("ratelimit.overflows").increment(1);
}

/// Counts a key that could not be blocked because the store is full.
pub(crate) fn block_denied() {
    counter!("ratelimit.blocks.denied").increment(1);
}

/// Sets the gauges of an embedded store.
pub(crate) fn set_keys(active: usize, capacity: usize) {
    gauge!("ratelimit.keys").set(active as f64);
    gauge!("ratelimit.capacity").set(capacity as f64);
}
