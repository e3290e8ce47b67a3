//! Decides the requests of a trace as a layer with an embedded store would.
//!
//! The clock follows the trace, so the replay of a week takes seconds. Only the accounts are in
//! memory.
//!
//! - A trace does not show the effect of denials: a denied client waits, retries or leaves.
//! - A trace has no durations, so concurrent quotas never deny.
//! - Only the rules are played. Access lists, overcommit and adjusted charges are not.

use std::{collections::BTreeMap, fmt, time::Duration};

use axum::http::request::Parts;
use futures::FutureExt;
use tower_sluice::{
    Decision, LocalStore, RequestHead, StoreExt,
    decision::Outcome,
    key::KeyError,
    rule::{Bypass, Candidates, RuleName, Rules},
    store::{Charge, Stats},
    testing::{self, FakeClock},
};

use super::least::{Measure, SmallestBurst};

/// The latest instant: the start of the year 2100.
const LAST: Duration = Duration::from_secs(4_102_444_800);
/// The maximum number of requests that wait at once, as in a layer.
const MAX_WAITING: usize = 1_024;

/// Request of a trace: its time since the Unix epoch, and its head.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Duration,
    pub(crate) parts: Parts,
}

impl Call {
    pub(crate) fn head(&self) -> RequestHead<'_> {
        RequestHead::from(&self.parts)
    }
}

/// Simulator of a layer with an embedded store.
pub(crate) struct Simulator<R> {
    rules: R,
    clock: FakeClock,
    store: LocalStore,
    measure: Option<Measure>,
    /// The number of waiting requests, by the ends of their waits.
    waiting: BTreeMap<Duration, usize>,
}

impl<R: Rules> Simulator<R> {
    /// Creates a simulator. Up to `keys` keys can have used units at once; beyond that number, new
    /// keys share accounts.
    pub(crate) fn new(rules: R, keys: usize) -> Self {
        let clock = FakeClock::new();
        let store = clock.store(keys);
        Self { rules, clock, store, measure: None, waiting: BTreeMap::new() }
    }

    /// Enables [`least`](Simulator::least), in a second store for `keys` keys.
    ///
    /// A sliding log takes up to 160 kB per key in the second store.
    pub(crate) fn measure(self, keys: usize) -> Self {
        let mut infos = Vec::new();
        self.rules.info(&mut infos);
        let measure = Some(Measure::new(self.clock.store(keys), &infos));
        drop(infos);
        Self { measure, ..self }
    }

    pub(crate) fn decide(&mut self, call: &Call) -> Verdict {
        let (at, before) = (call.at.min(LAST), self.clock.now());
        self.clock.advance(at.saturating_sub(before));
        let now = at.max(before);
        self.waiting = self.waiting.split_off(&(now + Duration::from_nanos(1)));

        let Self { rules, store, measure, waiting, .. } = self;
        let (mut decision, mut waits_for) = (None, Vec::new());
        let none = Candidates { charges: &[], choices: &[] };
        let charged = rules.charge(&call.head(), none, &mut |all| {
            if all.charges.is_empty() {
                return;
            }
            if let Some(measure) = measure {
                measure.note(all.charges, now);
            }
            let queues = all.charges.iter().any(|charge| !charge.max_wait.is_zero());
            let may_wait = queues && waiting.values().sum::<usize>() < MAX_WAITING;
            let mut short = if may_wait { short(store, all.charges) } else { Vec::new() };
            let wait = |charge: &Charge<'_>| {
                if may_wait { charge.max_wait } else { Duration::ZERO }
            };
            let charges: Vec<_> = all.charges.iter().map(|it| it.with_max_wait(wait(it))).collect();
            let taking = testing::take(store, Candidates { charges: &charges, ..all });
            let Some(Ok(taken)) = taking.now_or_never() else { return };
            if !taken.decision.wait().is_zero() {
                short.retain(|rule| taken.charges.iter().any(|charge| charge.rule == *rule));
                waits_for = short;
                *waiting.entry(now + taken.decision.wait()).or_default() += 1;
            }
            decision = Some(taken.decision);
        });
        let decided = match charged {
            Err(Bypass::Rejected(error)) => Err(error),
            _ => Ok(decision),
        };
        Verdict { at: now, is_late: at < before, waits_for, decided }
    }
}

impl<R> Simulator<R> {
    /// Returns, for each quota, the smallest limit with which no request so far is limited. The
    /// quotas are in the order of the rules.
    pub(crate) fn least(&self) -> &[SmallestBurst] {
        self.measure.as_ref().map_or(&[], Measure::least)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Returns the statistics of the second store, or `None` without [`measure`](Simulator::measure).
    pub(crate) fn least_stats(&self) -> Option<Stats> {
        self.measure.as_ref().map(Measure::stats)
    }
}

/// Returns the rules that make a request wait.
fn short(store: &LocalStore, charges: &[Charge<'_>]) -> Vec<RuleName> {
    if let [alone] = charges {
        return vec![alone.rule];
    }
    let looks: Vec<_> = charges.iter().map(|charge| charge.with_cost(0)).collect();
    let seen = store.peek(&looks).now();
    let is_short = |charge: &&Charge<'_>| {
        let need = match charge.cost {
            0 => 0,
            cost => u64::from(cost) + u64::from(charge.headroom),
        };
        let mut its = seen.outcomes().iter().filter(|outcome| outcome.rule() == charge.rule);
        !charge.report_only && its.any(|outcome| u64::from(outcome.remaining()) < need)
    };
    charges.iter().filter(is_short).map(|charge| charge.rule).collect()
}

impl<R: fmt::Debug> fmt::Debug for Simulator<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Decision on one [`Call`].
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// The time of the decision: that of the call, unless the call is late.
    pub(crate) at: Duration,
    /// `true` if an earlier call has a later time. The clock never goes back, so the call is decided
    /// at the latest time so far.
    pub(crate) is_late: bool,
    /// The rules whose quotas make the request wait.
    pub(crate) waits_for: Vec<RuleName>,
    /// The decision, or `None` if no rule charges the call. An error if the call has no usable key.
    decided: Result<Option<Decision>, KeyError>,
}

impl Verdict {
    /// Returns `true` if the request reaches the service, immediately or after a wait.
    pub(crate) fn passes(&self) -> bool {
        match &self.decided {
            Ok(decision) => decision.as_ref().is_none_or(Decision::is_allowed),
            Err(_) => false,
        }
    }

    /// Returns `true` if a quota affected the request: it was denied, had to wait, was overage, or
    /// would have been denied by a report-only rule.
    pub(crate) fn is_limited(&self) -> bool {
        self.decision().is_some_and(|decision| {
            let denied = decision.outcomes().iter().any(Outcome::is_denied);
            let waits = !decision.wait().is_zero();
            !decision.is_allowed() || decision.is_overage() || waits || denied
        })
    }

    /// Returns the decision, or `None` if no rule charges the request or its key is unusable.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decided.as_ref().ok()?.as_ref()
    }
}
