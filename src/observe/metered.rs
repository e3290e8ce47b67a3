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
pub(crate) struct Metrics {
    rules: Arc<[RuleCounters]>,
    /// The label `store` of each histogram, and the histogram.
    durations: Arc<[OnceLock<(&'static str, Histogram)>; STORES]>,
}

struct RuleCounters {
    rule: RuleName,
    verdicts: [OnceLock<Counter>; VERDICTS],
    near: OnceLock<Counter>,
}

const VERDICTS: usize = Verdict::FallbackLimited as usize + 1;
/// The number of labels `store`.
const STORES: usize = 9;

impl Metrics {
    pub(crate) fn new(rules: impl IntoIterator<Item = RuleName>) -> Self {
        let counters = |rule| RuleCounters {
            rule,
            verdicts: from_fn(|_| OnceLock::new()),
            near: OnceLock::new(),
        };
        describe();
        // Rules without quotas may have equal names.
        let mut names: Vec<RuleName> = rules.into_iter().collect();
        names.sort_unstable_by_key(|name| name.as_str());
        names.dedup();
        Self {
            rules: names.into_iter().map(counters).collect(),
            durations: Arc::new(from_fn(|_| OnceLock::new())),
        }
    }

    /// Records the time until the store answered.
    #[inline]
    pub(crate) fn answered(&self, decision: &Decision, started: Option<Instant>) {
        let Some(started) = started else { return };
        let store = match decision.source() {
            Source::Overflow | Source::Overload => "local",
            Source::Other(_) | Source::Unsupported => "other",
            source => source.as_str(),
        };
        let make = || {
            describe();
            (store, histogram!("ratelimit.decision.duration", "store" => store))
        };
        let mut durations = self.durations.iter().map(|it| it.get_or_init(make));
        if let Some((_, duration)) = durations.find(|(label, _)| *label == store) {
            duration.record(started.elapsed());
        }
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
        for RuleCounters { rule, verdicts, near } in &*self.rules {
            let Some(verdict) = event.verdict(*rule) else { continue };
            let (policy, result) = (rule.as_str(), verdict.as_str());
            let made = || counter!("ratelimit.decisions", "policy" => policy, "result" => result);
            verdicts[verdict as usize].get_or_init(made).increment(1);
            let is_near = |it: &Outcome| {
                it.rule() == *rule && u64::from(it.remaining()) * 5 <= u64::from(it.limit())
            };
            if decision.is_allowed() && decision.outcomes().iter().any(is_near) {
                let made = || counter!("ratelimit.near_limit", "policy" => policy);
                near.get_or_init(made).increment(1);
            }
        }
    }
}

/// Registers the descriptions of all metrics, and the counters without labels.
///
/// Such a counter starts at 0, because an increase from no value to 1 is not an increase.
#[cold]
fn describe() {
    for (name, text) in [
        ("ratelimit.decisions", "Rate limit decisions, one per request and rule."),
        ("ratelimit.near_limit", "Allowed requests close to a limit."),
        ("ratelimit.unidentified", "Requests rejected before a store was asked."),
        ("ratelimit.store.errors", "Calls that a store failed to decide."),
        ("ratelimit.overflows", "Decisions on accounts that new keys share in a full store."),
        ("ratelimit.blocks.denied", "Blocks that the embedded store had no room for."),
    ] {
        describe_counter!(name, Unit::Count, text);
    }
    for name in ["ratelimit.unidentified", "ratelimit.overflows", "ratelimit.blocks.denied"] {
        counter!(name).increment(0);
    }
    let waited = "Time until the store answers.";
    describe_histogram!("ratelimit.decision.duration", Unit::Seconds, waited);
    let breaker = "The breaker of the store: 0 closed, 1 probing, 2 open.";
    describe_gauge!("ratelimit.store.circuit", breaker);
    for (name, text) in [
        ("ratelimit.keys", "Accounts in debt in the embedded store."),
        ("ratelimit.capacity", "Accounts that the embedded store can hold."),
        ("ratelimit.active_slots", "Slots of concurrent requests in the embedded store."),
    ] {
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
    let of = |server: &str| gauge!("ratelimit.store.circuit", "server" => server.to_owned());
    server.map_or_else(|| gauge!("ratelimit.store.circuit"), of).set(state);
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
