//! Decides the requests of a trace as a layer with an embedded store would.
//!
//! The clock follows the trace, so the replay of a week takes seconds. Only the accounts are in
//! memory.
//!
//! - A trace does not show the effect of denials: a denied client waits, retries or leaves.
//! - A trace has no durations, so concurrent quotas never deny.
//! - Only the rules are played. Access lists, overcommit and adjusted charges are not.

use std::{collections::BTreeMap, time::Duration};

use axum::http::request::Parts;
use futures::FutureExt;
use tower_sluice::{
    Decision, LocalStore, RequestHead,
    key::KeyError,
    rule::{Bypass, Candidates, Rules},
    store::Charge,
    testing::{self, FakeClock},
};

use crate::least::{Measure, SmallestBurst};

/// The latest instant: the start of the year 2100.
const LAST: Duration = Duration::from_secs(4_102_444_800);
/// The maximum number of requests that wait at once, as in a layer.
const MAX_WAITING: usize = 1_024;

/// Request of a trace: its time since the Unix epoch, and its head.
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
    measure: Measure,
    /// The number of waiting requests, by the ends of their waits.
    waiting: BTreeMap<Duration, usize>,
}

impl<R: Rules> Simulator<R> {
    /// Creates a simulator. Up to `keys` keys can have used units at once; beyond that number, new
    /// keys share accounts.
    pub(crate) fn new(rules: R, keys: usize) -> Self {
        let clock = FakeClock::new();
        let mut infos = Vec::new();
        rules.info(&mut infos);
        let measure = Measure::new(clock.store(keys), &infos);
        drop(infos);
        let store = clock.store(keys);
        Self { rules, clock, store, measure, waiting: BTreeMap::new() }
    }

    pub(crate) fn decide(&mut self, call: &Call) -> Verdict {
        let (at, before) = (call.at.min(LAST), self.clock.now());
        self.clock.advance(at.saturating_sub(before));
        let now = at.max(before);
        self.waiting = self.waiting.split_off(&(now + Duration::from_nanos(1)));

        let Self { rules, store, measure, waiting, .. } = self;
        let mut decision = None;
        let none = Candidates { charges: &[], choices: &[] };
        let charged = rules.append_charges(&call.head(), none, &mut |all| {
            if all.charges.is_empty() {
                return;
            }
            measure.note(all.charges, now);
            let queues = all.charges.iter().any(|charge| !charge.max_wait.is_zero());
            let may_wait = queues && waiting.values().sum::<usize>() < MAX_WAITING;
            let wait = |charge: &Charge<'_>| {
                if may_wait { charge.max_wait } else { Duration::ZERO }
            };
            let charges: Vec<_> = all.charges.iter().map(|it| it.with_max_wait(wait(it))).collect();
            let taking = testing::take(store, Candidates { charges: &charges, ..all });
            let Some(Ok(taken)) = taking.now_or_never() else { return };
            if !taken.decision.wait().is_zero() {
                *waiting.entry(now + taken.decision.wait()).or_default() += 1;
            }
            decision = Some(taken.decision);
        });
        let decided = match charged {
            Err(Bypass::Rejected(error)) => Err(error),
            _ => Ok(decision),
        };
        Verdict { at: now, is_late: at < before, decided }
    }

    /// Returns, for each quota, the smallest limit with which no request so far is limited. The
    /// quotas are in the order of the rules.
    pub(crate) fn least(&self) -> &[SmallestBurst] {
        &self.measure.found
    }

    /// Returns the number of decisions and counts on accounts that keys share for lack of room.
    pub(crate) fn overflowed(&self) -> u64 {
        self.store.stats().overflowed + self.measure.store.stats().overflowed
    }
}

/// Decision on one [`Call`].
pub(crate) struct Verdict {
    /// The time of the decision: that of the call, unless the call is late.
    pub(crate) at: Duration,
    /// `true` if an earlier call has a later time. The clock never goes back, so the call is decided
    /// at the latest time so far.
    pub(crate) is_late: bool,
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

    /// Returns the decision, or `None` if no rule charges the request or its key is unusable.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decided.as_ref().ok()?.as_ref()
    }
}
