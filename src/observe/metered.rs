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

use super::{DenialLog, Verdict};
use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
};

/// The counters of a layer. Each counter is registered on first use.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    rules: Arc<[RuleCounters]>,
    durations: Arc<[OnceLock<Histogram>; STORES.len()]>,
    /// The percentage of a limit at which requests start to count as near the limit.
    near: u8,
    denial_log: DenialLog,
}

#[derive(Debug)]
struct RuleCounters {
    rule: RuleName,
    verdicts: [OnceLock<Counter>; VERDICTS],
    near: OnceLock<Counter>,
}

/// The start time of a store call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Started(Option<Instant>);

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

impl Started {
    #[inline]
    pub(crate) fn now() -> Self {
        Self(Some(Instant::now()))
    }
}

impl Meter {
    /// `true` if decisions are counted.
    pub(super) const COUNTS: bool = true;

    pub(crate) fn new(rules: impl IntoIterator<Item = RuleName>) -> Self {
        let counters = |rule| RuleCounters {
            rule,
            verdicts: from_fn(|_| OnceLock::new()),
            near: OnceLock::new(),
        };
        describe();
        Self {
            rules: rules.into_iter().map(counters).collect(),
            durations: Arc::new(from_fn(|_| OnceLock::new())),
            near: 80,
            denial_log: DenialLog::default(),
        }
    }

    pub(crate) fn denial_log(&self) -> &DenialLog {
        &self.denial_log
    }

    #[cfg(feature = "admin")]
    pub(crate) fn with_denial_log(self, denial_log: DenialLog) -> Self {
        Self { denial_log, ..self }
    }

    pub(crate) fn near_limit(self, percent: u8) -> Self {
        Self { near: percent, ..self }
    }

    /// Records the time until the store answered.
    #[inline]
    pub(crate) fn answered(&self, decision: &Decision, Started(started): Started) {
        let Some(started) = started else { return };
        let store = match decision.source() {
            Source::Local | Source::Overflow | Source::Overload => 0,
            Source::Governor => 1,
            Source::Redis => 2,
            Source::FailedOpen => 3,
            Source::FailedClosed => 4,
            Source::Fallback => 5,
            Source::DenyCache => 6,
            Source::Leased => 7,
            Source::Other(_) | Source::Unsupported => 8,
        };
        let make = || {
            describe();
            histogram!("ratelimit.decision.duration", "store" => STORES[store])
        };
        self.durations[store].get_or_init(make).record(started.elapsed());
    }

    pub(super) fn count(&self, rule: RuleName, verdict: Verdict) {
        let make = || {
            let (policy, result) = (rule.as_str(), verdict.as_str());
            counter!("ratelimit.decisions", "policy" => policy, "result" => result)
        };
        match self.rule(rule) {
            Some(counters) => counters.verdicts[verdict as usize].get_or_init(make).increment(1),
            None => make().increment(1),
        }
    }

    /// Counts a decision under every rule, because no single rule decided.
    pub(super) fn count_all(&self, verdict: Verdict) {
        for counters in &*self.rules {
            self.count(counters.rule, verdict);
        }
    }

    pub(super) fn count_near(&self, rule: RuleName) {
        let make = || counter!("ratelimit.near_limit", "policy" => rule.as_str());
        match self.rule(rule) {
            Some(counters) => counters.near.get_or_init(make).increment(1),
            None => make().increment(1),
        }
    }

    pub(super) fn is_near(&self, outcome: &Outcome) -> bool {
        let (limit, left) = (u64::from(outcome.limit()), u64::from(outcome.remaining()));
        left * 100 <= limit * u64::from(100 - self.near)
    }

    /// Returns the counters of a rule, or `None` if the layer has no such rule.
    fn rule(&self, rule: RuleName) -> Option<&RuleCounters> {
        self.rules.iter().find(|counters| counters.rule == rule)
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
    describe_gauge!("ratelimit.slots", Unit::Count, "Slots of the embedded store.");
    let held = "Slots of concurrent requests that are held in the embedded store.";
    describe_gauge!("ratelimit.active_request_leases", Unit::Count, held);
}

/// Counts a request that was rejected without a store call.
pub(crate) fn unidentified() {
    counter!("ratelimit.unidentified").increment(1);
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
pub(crate) fn set_keys(active: usize, slots: usize, held: u64) {
    gauge!("ratelimit.keys").set(active as f64);
    gauge!("ratelimit.slots").set(slots as f64);
    gauge!("ratelimit.active_request_leases").set(held as f64);
}
