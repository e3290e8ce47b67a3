//! Metrics through the `metrics` facade.

use std::{
    array::from_fn,
    sync::{Arc, OnceLock},
    time::Instant,
};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::{DecisionEvent, OnDecision, Verdict};
use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
};

/// The metrics of a layer. Each metric is registered on first use.
#[derive(Clone)]
pub(super) struct Metrics {
    rules: Arc<[RuleCounters]>,
    durations: Arc<[OnceLock<Histogram>; STORES.len()]>,
}

struct RuleCounters {
    rule: RuleName,
    verdicts: [OnceLock<Counter>; VERDICTS],
    near: OnceLock<Counter>,
}

const VERDICTS: usize = Verdict::FallbackLimited as usize + 1;
const STORES: [&str; 9] = [
    "local",
    "governor",
    "redis",
    "failed_open",
    "failed_closed",
    "fallback",
    "deny_cache",
    "leased",
    "other",
];

impl Metrics {
    pub(super) fn new(rules: impl IntoIterator<Item = RuleName>) -> Self {
        let counters = |rule| RuleCounters {
            rule,
            verdicts: from_fn(|_| OnceLock::new()),
            near: OnceLock::new(),
        };
        describe();
        Self {
            rules: rules.into_iter().map(counters).collect(),
            durations: Arc::new(from_fn(|_| OnceLock::new())),
        }
    }

    /// Records the time until the store answered.
    #[inline]
    pub(super) fn answered(&self, decision: &Decision, started: Option<Instant>) {
        let Some(started) = started else { return };
        let store = match decision.source() {
            Source::Overflow | Source::Overload => "local",
            Source::Other(_) | Source::Unsupported => "other",
            source => source.as_str(),
        };
        let Some(at) = STORES.iter().position(|it| *it == store) else { return };
        let make = || {
            describe();
            histogram!("ratelimit.decision.duration", "store" => store)
        };
        self.durations[at].get_or_init(make).record(started.elapsed());
    }
}

impl OnDecision for Metrics {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Some(decision) = event.decision() else {
            if !event.is_admitted() {
                counter!("ratelimit.unidentified").increment(1);
            }
            return;
        };
        event.each_rule(self.rules.iter().map(|it| it.rule), |rule, verdict| {
            // A store of the user may report a rule that the layer does not have.
            let known = self.rules.iter().find(|it| it.rule == rule);
            let (policy, result) = (rule.as_str(), verdict.as_str());
            increment(
                known.map(|it| &it.verdicts[verdict as usize]),
                || counter!("ratelimit.decisions", "policy" => policy, "result" => result),
            );
            let is_near = |it: &Outcome| {
                it.rule() == rule && u64::from(it.remaining()) * 5 <= u64::from(it.limit())
            };
            if decision.is_allowed() && decision.outcomes().iter().any(is_near) {
                let near = || counter!("ratelimit.near_limit", "policy" => policy);
                increment(known.map(|it| &it.near), near);
            }
        });
    }
}

fn increment(counter: Option<&OnceLock<Counter>>, make: impl FnOnce() -> Counter) {
    match counter {
        Some(counter) => counter.get_or_init(make).increment(1),
        None => make().increment(1),
    }
}

/// Registers the descriptions of all metrics, and the counters without labels.
///
/// Such a counter starts at 0, because an increase from no value to 1 is not an increase.
#[cold]
fn describe() {
    let counters = [
        ("ratelimit.decisions", "Rate limit decisions, one per request and rule."),
        ("ratelimit.near_limit", "Allowed requests close to a limit."),
        ("ratelimit.unidentified", "Requests rejected before a store was asked."),
        ("ratelimit.store.errors", "Calls that a store failed to decide."),
        (
            "ratelimit.overflows",
            "Decisions on accounts that new keys share because the store is full.",
        ),
        ("ratelimit.blocks.denied", "Blocks that the embedded store had no room for."),
    ];
    for (name, text) in counters {
        describe_counter!(name, Unit::Count, text);
    }
    for name in ["ratelimit.unidentified", "ratelimit.overflows", "ratelimit.blocks.denied"] {
        counter!(name).increment(0);
    }
    let waited = "Time until the store answers.";
    describe_histogram!("ratelimit.decision.duration", Unit::Seconds, waited);
    let breaker = "The breaker of the store: 0 closed, 1 probing, 2 open.";
    describe_gauge!("ratelimit.store.circuit", breaker);
    describe_gauge!("ratelimit.keys", Unit::Count, "Accounts in debt in the embedded store.");
    describe_gauge!(
        "ratelimit.capacity",
        Unit::Count,
        "Accounts that the embedded store can hold."
    );
    let held = "Slots of concurrent requests that are held in the embedded store.";
    describe_gauge!("ratelimit.active_slots", Unit::Count, held);
}

/// Counts a failed store call.
pub(crate) fn store_failed(kind: &'static str) {
    counter!("ratelimit.store.errors", "kind" => kind).increment(1);
}

/// Sets the state of a circuit breaker: closed (0), probing (1) or open (2).
///
/// On a cluster, each server has a breaker.
pub(crate) fn circuit(server: Option<&str>, state: u8) {
    match server {
        Some(server) => {
            gauge!("ratelimit.store.circuit", "server" => server.to_owned()).set(state);
        }
        None => gauge!("ratelimit.store.circuit").set(state),
    }
}

/// Counts a decision on a shared account. New keys share an account while the store is full.
pub(crate) fn overflowed() {
    counter!("ratelimit.overflows").increment(1);
}

/// Counts a key that could not be blocked because the store is full.
pub(crate) fn block_denied() {
    counter!("ratelimit.blocks.denied").increment(1);
}

/// Sets the gauges of an embedded store. `held` is the number of held slots of concurrent requests.
pub(crate) fn set_keys(active: usize, capacity: usize, held: u64) {
    gauge!("ratelimit.keys").set(active as f64);
    gauge!("ratelimit.capacity").set(capacity as f64);
    gauge!("ratelimit.active_slots").set(held as f64);
}
