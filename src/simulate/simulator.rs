//! A simulator whose clock follows the trace.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    Call,
    measure::{Measure, SmallestBurst},
};
use crate::{
    decision::{Decision, Outcome},
    headers::Items,
    key::KeyError,
    middleware::{admission, config::LayerConfig, queue::Waiter},
    rule::{self, Bypass, RuleError, RuleName, Rules},
    store::{Charge, Clock, LocalStore, Stats, StoreExt, literal, without_queueing},
};

/// The latest instant, in nanoseconds: the start of the year 2100.
const LAST: u64 = 4_102_444_800 * 1_000_000_000;

/// Simulator that decides calls as a layer with an embedded store would.
///
/// See the [module](super) for an example.
///
/// As in a layer, up to 1,024 requests may [wait](crate::Rule::max_wait) at once. The number of
/// waiting requests [per key](crate::RateLimitLayer::max_waiters_per_key) has the default limit.
pub struct Simulator<R> {
    rules: R,
    clock: Clock,
    hands: Arc<quanta::Mock>,
    store: LocalStore,
    keys: usize,
    measure: Option<Measure>,
    waiting: BTreeMap<u64, Vec<Waiter>>,
    settings: LayerConfig,
    late: u64,
}

impl<R: Rules> Simulator<R> {
    /// Creates a simulator with the capacity of [`LocalStore::new`]: 131,072 keys.
    ///
    /// # Panics
    ///
    /// Panics if [`try_new`](Simulator::try_new) returns an error. Use `try_new` for rules that are
    /// read from configuration.
    #[must_use]
    #[track_caller]
    pub fn new(rules: R) -> Self {
        literal(Self::try_new(rules))
    }

    /// Fallible form of [`new`](Simulator::new), for rules that are read from configuration.
    ///
    /// ```
    /// use tower_sluice::{Quota, Rule, key::Everyone, simulate::Simulator};
    ///
    /// let rule = Rule::new("site", Everyone, Quota::per_minute(5)).cost(6);
    /// let error = Simulator::try_new(rule).unwrap_err();
    /// assert!(error.to_string().contains("cost 6 is above the quota's limit 5"));
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if [`RateLimitLayer::try_rules`](crate::RateLimitLayer::try_rules) fails for the
    /// rules.
    pub fn try_new(rules: R) -> Result<Self, RuleError> {
        let (clock, hands) = Clock::driven();
        let store = LocalStore::on(clock.clone(), LocalStore::DEFAULT_KEYS);
        let mut infos = Vec::new();
        rules.info(&mut infos);
        rule::check(&infos, &store)?;
        Items::new(&infos)?;
        let settings = LayerConfig::new(&infos);
        drop(infos);
        let waiting = BTreeMap::new();
        Ok(Self {
            rules,
            clock,
            hands,
            store,
            keys: LocalStore::DEFAULT_KEYS,
            measure: None,
            waiting,
            settings,
            late: 0,
        })
    }

    /// Sets the number of keys that can have used units at once, as in
    /// [`LocalStore::with_capacity`].
    ///
    /// Call this method before any decision, because it discards all accounts.
    #[must_use]
    pub fn capacity(self, keys: usize) -> Self {
        let store = LocalStore::on(self.clock.clone(), keys);
        let measured = self.measure.is_some();
        let simulator = Self { store, keys, measure: None, ..self };
        if measured { simulator.measure() } else { simulator }
    }

    /// Enables the measurement for [`least`](Simulator::least).
    ///
    /// The measurement takes the time and memory of a second store. A sliding log takes up to
    /// 160 kB per key in the second store. [`least_stats`](Simulator::least_stats) reports if the
    /// second store was too small.
    #[must_use]
    pub fn measure(self) -> Self {
        let mut infos = Vec::new();
        self.rules.info(&mut infos);
        let store = LocalStore::on(self.clock.clone(), self.keys);
        let measure = Some(Measure::new(store, &infos));
        drop(infos);
        Self { measure, ..self }
    }

    /// Decides one call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, Rule, key::Everyone, simulate::{Call, Simulator}};
    ///
    /// let mut simulator = Simulator::new(Rule::new("site", Everyone, Quota::per_minute(2)));
    /// let mut decide = |second| {
    ///     let (parts, ()) = http::Request::new(()).into_parts();
    ///     simulator.decide(&Call::new(Duration::from_secs(second), parts))
    /// };
    /// assert!(decide(7).passes());
    /// // This call is late, and is decided as of second 7.
    /// let late = decide(5);
    /// assert!(late.is_late() && late.at() == Duration::from_secs(7));
    /// assert_eq!(decide(8).decision().unwrap().retry_after(), Some(Duration::from_secs(29)));
    /// ```
    pub fn decide(&mut self, call: &Call) -> SimulatedDecision {
        let at = u64::try_from(call.at.as_nanos()).map_or(LAST, |at| at.min(LAST));
        let before = self.clock.now();
        let late = at < before;
        self.late += u64::from(late);
        self.hands.increment(at.saturating_sub(before));
        let now = at.max(before);
        self.waiting = self.waiting.split_off(&(now + 1));
        let mut waits_for = RuleNames::new();
        let decided = self.ask(call, now, &mut waits_for);
        SimulatedDecision { at: Duration::from_nanos(now), late, waits_for, decided }
    }

    /// Decides on a request as a layer does, and queues the request if it must wait.
    fn ask(
        &mut self,
        call: &Call,
        now: u64,
        waits_for: &mut RuleNames,
    ) -> Result<Option<Decision>, KeyError> {
        let Self { rules, store, measure, waiting, settings, .. } = self;
        let decide = |charges: &[Charge<'_>]| {
            if let Some(measure) = measure {
                measure.note(charges, now);
            }
            let queues = charges.iter().any(Charge::queues);
            let may_queue = queues && !settings.must_not_queue(charges);
            let short = if may_queue { short(store, charges) } else { RuleNames::new() };
            let at_once = (queues && !may_queue).then(|| without_queueing(charges));
            let decision = store.take(at_once.as_deref().unwrap_or(charges)).now();
            if decision.waits() {
                *waits_for = short;
                let wait = u64::try_from(decision.wait().as_nanos()).unwrap_or(u64::MAX);
                let ends = waiting.entry(now.saturating_add(wait)).or_default();
                ends.extend(settings.enter_queue(charges));
            }
            Ok(Some(decision))
        };
        admission::charges(rules, settings, &call.head(), decide, |bypass| match bypass {
            Bypass::Exempt(_) => Ok(None),
            Bypass::Rejected(error) => Err(error),
        })
    }

    /// Returns an iterator that decides the calls of `trace`.
    pub fn play<T>(self, trace: T) -> Simulation<R, T::IntoIter>
    where
        T: IntoIterator<Item = Call>,
    {
        Simulation { simulator: self, trace: trace.into_iter() }
    }
}

impl<R> Simulator<R> {
    /// Returns, for each quota, the smallest limit with which no request so far is limited.
    ///
    /// The quotas are in the order of the rules. The result is empty without
    /// [`measure`](Simulator::measure).
    #[must_use]
    pub fn least(&self) -> Vec<SmallestBurst> {
        self.measure.as_ref().map(Measure::least).unwrap_or_default()
    }

    /// Returns the number of calls so far that came [late](SimulatedDecision::is_late) in the
    /// trace.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns statistics of the accounts, except the accounts of the
    /// [measurement](Simulator::measure).
    ///
    /// If [`overflowed`](Stats::overflowed) is above 0, the [capacity](Simulator::capacity) was too
    /// small for the trace.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.store.stats_without_gauges()
    }

    /// Returns statistics of the measurement, or `None` without [`measure`](Simulator::measure).
    ///
    /// If [`overflowed`](Stats::overflowed) is above 0, [`least`](Simulator::least) may return
    /// limits that are too large.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, Rule, key::HeaderKey, simulate::{Call, Simulator}};
    ///
    /// let rule = Rule::new("user", HeaderKey::new("x-user"), Quota::per_second(1));
    /// let mut simulator = Simulator::new(rule).capacity(16).measure();
    /// // Each second a new user sends 100 requests, of which one is allowed.
    /// for n in 0..10_000 {
    ///     let request = http::Request::get("/").header("x-user", n / 100).body(()).unwrap();
    ///     simulator.decide(&Call::new(Duration::from_secs(n / 100), request.into_parts().0));
    /// }
    /// assert_eq!(simulator.stats().overflowed, 0);
    /// assert!(simulator.least_stats().unwrap().overflowed > 0);
    /// ```
    #[must_use]
    pub fn least_stats(&self) -> Option<Stats> {
        self.measure.as_ref().map(Measure::stats)
    }
}

/// Returns the rules that make a request wait.
fn short(store: &LocalStore, charges: &[Charge<'_>]) -> RuleNames {
    if let [alone] = charges {
        return SmallVec::from_slice(&[alone.rule()]);
    }
    // A charge of cost 0 changes nothing.
    let looks: SmallVec<[Charge<'_>; 4]> =
        charges.iter().map(|charge| charge.with_cost(0)).collect();
    let seen: Decision = store.take(&looks).now();
    let is_short = |charge: &&Charge<'_>| {
        let need = charge.demand().need();
        let mut its = seen.outcomes().iter().filter(|outcome| outcome.rule() == charge.rule());
        !charge.is_report_only() && its.any(|outcome| u64::from(outcome.remaining()) < need)
    };
    charges.iter().filter(is_short).map(Charge::rule).collect()
}

impl<R: fmt::Debug> fmt::Debug for Simulator<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Iterator over the decisions of a trace.
///
/// Created by [`simulate`](super::simulate) and [`Simulator::play`].
#[derive(Debug)]
#[must_use = "iterators are lazy"]
pub struct Simulation<R, T> {
    simulator: Simulator<R>,
    trace: T,
}

impl<R, T> Simulation<R, T> {
    /// Returns the simulator with the results so far.
    ///
    /// ```
    /// use tower_sluice::{Quota, Rule, key::Everyone, simulate::simulate};
    ///
    /// let rule = Rule::new("site", Everyone, Quota::per_minute(2));
    /// let mut simulation = simulate(rule, []);
    /// assert!(simulation.next().is_none());
    /// assert_eq!(simulation.simulator().late(), 0);
    /// ```
    #[must_use]
    pub fn simulator(&self) -> &Simulator<R> {
        &self.simulator
    }
}

impl<R: Rules, T: Iterator<Item = Call>> Iterator for Simulation<R, T> {
    type Item = SimulatedDecision;

    fn next(&mut self) -> Option<SimulatedDecision> {
        let call = self.trace.next()?;
        Some(self.simulator.decide(&call))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.trace.size_hint()
    }
}

/// The names of rules.
type RuleNames = SmallVec<[RuleName; 2]>;

/// Decision on one [`Call`](super::Call) of a trace.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Quota, Rule, key::HeaderKey, simulate::{Call, simulate}};
///
/// let (parts, ()) = http::Request::new(()).into_parts();
/// let rule = Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_minute(1));
/// let verdict = simulate(rule, [Call::new(Duration::ZERO, parts)]).next().unwrap();
///
/// // No quota denied it: it has no key.
/// assert!(!verdict.passes() && !verdict.is_limited());
/// assert!(verdict.decision().is_none() && verdict.error().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedDecision {
    at: Duration,
    late: bool,
    waits_for: RuleNames,
    /// The decision, or `None` if no rule charges the call. An error if the call has no usable key.
    decided: Result<Option<Decision>, KeyError>,
}

impl SimulatedDecision {
    /// Returns the time of the decision, since the Unix epoch.
    ///
    /// The time of the decision is the time of the call, unless the call is
    /// [late](SimulatedDecision::is_late).
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Returns `true` if an earlier call in the trace has a later time.
    ///
    /// The clock never goes back, so a late call is decided at the latest time so far. Logs contain
    /// late calls, because many servers log a request when the request ends.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// Returns `true` if the request reaches the service, immediately or after a
    /// [wait](Decision::wait).
    #[must_use]
    pub fn passes(&self) -> bool {
        match &self.decided {
            Ok(decision) => decision.as_ref().is_none_or(Decision::is_allowed),
            Err(_) => false,
        }
    }

    /// Returns `true` if a quota affected the request.
    ///
    /// The request was denied, had to wait, was overage, or would have been denied by a report-only
    /// rule.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.decision().is_some_and(|decision| {
            let denied = decision.outcomes().iter().any(Outcome::is_denied);
            !decision.is_allowed() || decision.is_overage() || decision.waits() || denied
        })
    }

    /// Returns `true` if a quota of this rule makes the request [wait](Decision::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, Rule, key::Everyone, rule::RuleName, simulate::{Call, simulate}};
    ///
    /// let day = Rule::new("day", Everyone, Quota::per_day(2));
    /// let pace = Rule::new("pace", Everyone, Quota::per_second(1)).max_wait(Duration::from_secs(1));
    /// let calls = [0, 0].map(|second| {
    ///     let (parts, ()) = http::Request::new(()).into_parts();
    ///     Call::new(Duration::from_secs(second), parts)
    /// });
    ///
    /// // It takes the last unit of the day, but waits for the per-second quota.
    /// let verdict = simulate((day, pace), calls).nth(1).unwrap();
    /// assert!(verdict.passes() && verdict.is_limited());
    /// let waits_for = |rule| verdict.waits_for(RuleName::new(rule).unwrap());
    /// assert!(waits_for("pace") && !waits_for("day"));
    /// ```
    #[must_use]
    pub fn waits_for(&self, rule: RuleName) -> bool {
        self.waits_for.contains(&rule)
    }

    /// Returns the decision, or `None` if no rule charges the request or its key is unusable.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decided.as_ref().ok()?.as_ref()
    }

    /// Returns the error of a request without a usable key.
    #[must_use]
    pub fn error(&self) -> Option<&KeyError> {
        self.decided.as_ref().err()
    }
}
