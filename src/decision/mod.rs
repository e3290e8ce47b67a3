//! Decisions of a store, with one outcome per quota.
//!
//! # Waits
//!
//! | word | time until | for |
//! |---|---|---|
//! | [`retry_after`](Decision::retry_after) | the same request would be allowed | the client that was denied, as `Retry-After` |
//! | [`next_after`](Outcome::next_after) | more units are available | a client that plans its requests, as the `t` of `RateLimit` |
//! | [`reset_after`](Outcome::reset_after) | all units are available | a page that shows the use of a quota |
//!
//! Under [slots](crate::Quota::concurrent), `retry_after` is an
//! [estimate](Outcome::is_estimated), because another request may end at any time. A
//! [`Rejection`](crate::reject::Rejection::retry_after) rounds it up to the whole seconds that the client
//! reads.

pub(crate) mod cause;
mod slot;

use std::{fmt, time::Duration};

use smallvec::SmallVec;

pub(crate) use self::cause::Cause;
pub use self::slot::Slot;
pub(crate) use self::slot::{FreeSlots, Hold};
use crate::name::RuleName;

/// The value of `retry_ns` if waiting does not help.
pub(crate) const NEVER: u64 = u64::MAX;
/// The value of `retry_ns` if the wait is unknown.
pub(crate) const UNKNOWN_WAIT: u64 = NEVER - 1;
/// The value of `at` if the store gave no instant.
const NO_INSTANT: u64 = u64::MAX;

/// Decision of a store on a request.
///
/// Either every quota was charged, or none; of [alternatives](crate::Rule::or), one. The getters return the state at the time of the
/// decision.
///
/// Under a [concurrent](crate::Quota::concurrent) quota, the decision holds the request's slots, and
/// its clones share them. They are free when the last of these decisions is dropped. See [`Slot`].
///
/// ```
/// use tower_sluice::{Limiter, Quota};
///
/// let quota = Quota::per_second(5).with_burst(10);
/// let limiter = Limiter::local();
/// let decision = limiter.take("alice", &quota, 3).now();
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(7));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a decision may be a denial, or of a store that could not act, and it holds the slots \
              of concurrent quotas: check `is_allowed()`, or drop the decision"]
pub struct Decision {
    pub(crate) allowed: bool,
    pub(crate) overage: bool,
    /// `true` if the request was denied because its key is blocked.
    pub(crate) blocked: bool,
    pub(crate) source: Source,
    /// The instant of the decision, in nanoseconds of the store's clock, or [`NO_INSTANT`].
    pub(crate) at: u64,
    /// The instant of the charge, in nanoseconds of the store's clock.
    ///
    /// Units of a lease were charged before the decision.
    pub(crate) charged_at: u64,
    /// The time in the queue, in nanoseconds.
    pub(crate) wait: u64,
    pub(crate) slot: Option<Slot>,
    pub(crate) outcomes: SmallVec<[Outcome; 4]>,
}

impl Decision {
    /// Creates a decision that allows the request.
    pub fn allow() -> Self {
        Self { at: NO_INSTANT, ..Self::new(true, 0) }
    }

    /// Creates a decision that denies the request.
    ///
    /// A denial without outcomes has an unknown wait: clients decide when to retry.
    pub fn deny() -> Self {
        Self { allowed: false, ..Self::allow() }
    }

    /// Adds the outcome of one quota.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcomes.push(outcome);
        self
    }

    /// Sets the source of the decision.
    pub fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Sets the time that an allowed request must wait in the
    /// [queue](crate::store::Charge::with_max_wait).
    ///
    /// The request is charged before the wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Decision, decision::{Outcome, Source}, rule::RuleName};
    ///
    /// let wait = Duration::from_millis(200);
    /// let exhausted = Outcome::full(RuleName::default(), 0, 5).with_remaining(0);
    /// let queued = Decision::allow()
    ///     .with_wait(wait)
    ///     .with_outcome(exhausted.with_reset_after(wait).with_next_after(wait))
    ///     .with_source(Source::Other("mine"));
    /// assert_eq!(queued.wait(), wait);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the decision is a denial. To set the wait of a denial, use
    /// [`Outcome::with_retry_after`].
    #[track_caller]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        assert!(
            self.allowed,
            "a denied decision cannot queue for {wait:?}; set `retry_after` of an outcome"
        );
        self.wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the instant of the charge, for a store of your own: a time of its clock, from any start.
    ///
    /// An [undo](crate::Store::undo) reads it, so that units which were refilled since are not returned
    /// twice.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::Decision;
    ///
    /// let taken = Decision::allow().with_charged_at(Duration::from_secs(1_700_000_000));
    /// assert_eq!(taken.charged_at(), Duration::from_secs(1_700_000_000));
    /// ```
    pub fn with_charged_at(mut self, time: Duration) -> Self {
        self.charged_at = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Marks the request as allowed beyond a [soft](crate::Quota::with_soft) quota.
    ///
    /// # Panics
    ///
    /// Panics if the decision is a denial.
    #[track_caller]
    pub fn with_overage(mut self) -> Self {
        assert!(self.allowed, "a denied decision cannot be an overage; start at `Decision::allow`");
        self.overage = true;
        self
    }

    /// Adds a slot that the request holds, for a store of your own.
    ///
    /// `free` is called once, when the slot is dropped. It must not wait.
    ///
    /// # Panics
    ///
    /// Panics if the decision is a denial.
    #[track_caller]
    pub fn with_slot(mut self, free: impl FnOnce() + Send + 'static) -> Self {
        assert!(self.allowed, "a denied decision cannot hold a slot; start at `Decision::allow`");
        self.hold(Hold::on_free(free));
        self
    }

    /// Takes the held slots out of the decision.
    ///
    /// Returns `None` if the decision holds none, because no quota is
    /// [concurrent](crate::Quota::concurrent), or because they were taken before.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.slot.take()
    }

    /// Marks a denial as caused by a [blocked](crate::StoreExt::block) key.
    ///
    /// Give the denial one outcome that describes the block: no units left, and the remaining time
    /// of the block as `retry_after`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Decision, decision::Outcome, rule::RuleName};
    ///
    /// let left = Duration::from_secs(60);
    /// let block = Outcome::full(RuleName::default(), 0, 5)
    ///     .with_remaining(0)
    ///     .with_reset_after(left)
    ///     .with_next_after(left)
    ///     .with_retry_after(Some(left));
    /// assert!(Decision::deny().with_outcome(block).with_blocked().is_blocked());
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the decision is allowed.
    #[track_caller]
    pub fn with_blocked(mut self) -> Self {
        assert!(!self.allowed, "an allowed decision cannot be blocked; start at `Decision::deny`");
        self.blocked = true;
        self
    }

    /// Returns `true` if the request was denied because its key is
    /// [blocked](crate::StoreExt::block).
    ///
    /// The outcome of this denial describes the block, not a quota.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns `true` if the request was allowed.
    ///
    /// A request of cost 0 is always allowed.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns `true` if the request was allowed beyond a quota.
    ///
    /// This happens with a [soft](crate::Quota::with_soft) quota, or with
    /// [`Overcommit`](crate::middleware::Overcommit) while the system has capacity.
    #[must_use]
    pub fn is_overage(&self) -> bool {
        self.overage
    }

    /// Returns `true` if a report-only rule would have denied the request.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        let would = |outcome: &Outcome| {
            outcome.is_report_only() && outcome.is_denied() && !outcome.is_passed_over()
        };
        self.outcomes.iter().any(would)
    }

    /// Returns the time that an allowed request must wait, or zero.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait)
    }

    /// Returns the source of the decision.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns one outcome per quota, in the order of the charges.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Returns the instant of the charge, by the clock of the store that decided: the time since its
    /// start, or zero if the store gave none.
    ///
    /// The clocks of two stores differ, so this is for [`Store::undo`](crate::Store::undo).
    #[must_use]
    pub fn charged_at(&self) -> Duration {
        Duration::from_nanos(self.charged_at)
    }

    /// Returns the instant of the decision, in nanoseconds of the store's clock, if the store is one of
    /// this crate.
    pub(crate) fn instant(&self) -> Option<u64> {
        (self.at != NO_INSTANT).then_some(self.at)
    }

    /// Returns the outcome of the decisive quota, or `None` if no quota applies.
    ///
    /// In a denial, the decisive quota has the longest [wait](Outcome::retry_after). Otherwise it has the
    /// fewest units left. Report-only quotas and [alternatives that were passed over](Outcome::is_passed_over) are
    /// never decisive.
    #[must_use]
    #[inline]
    pub fn binding(&self) -> Option<&Outcome> {
        match self.outcomes.as_slice() {
            [one] => Some(one).filter(|one| one.is_deciding()),
            _ => self.binding_of_several(),
        }
    }

    #[inline(never)]
    fn binding_of_several(&self) -> Option<&Outcome> {
        self.binding_among(|_| true)
    }

    /// Returns the outcome of the decisive quota among some quotas.
    pub(crate) fn binding_among(&self, some: impl Fn(&Outcome) -> bool) -> Option<&Outcome> {
        let deciding =
            self.outcomes.iter().filter(|outcome| outcome.is_deciding() && some(outcome));
        if self.allowed {
            deciding.min_by_key(|outcome| outcome.remaining())
        } else {
            // Picks the first of equal outcomes, as `min_by_key` does.
            let wait = |outcome: &&Outcome| {
                (outcome.retry_ns() == NEVER, outcome.is_denied(), outcome.retry_after())
            };
            deciding.rev().max_by_key(wait)
        }
    }

    /// Returns the units left under the [binding](Decision::binding) quota.
    #[must_use]
    pub fn remaining(&self) -> Option<u32> {
        self.binding().map(Outcome::remaining)
    }

    /// Returns the smallest number of units left under any quota.
    pub(crate) fn min_remaining(&self) -> u32 {
        self.outcomes.iter().map(Outcome::remaining).min().unwrap_or(0)
    }

    /// Returns the shortest wait until an identical request would be allowed, to report to a denied
    /// client.
    ///
    /// The wait is zero if the request was allowed. Returns `None` if waiting does not help. If a quota
    /// can only [estimate](Outcome::is_estimated) its wait, this may be an estimate. The
    /// [module](self#waits) compares the waits.
    ///
    /// # Limitations
    ///
    /// With several quotas, this is the longest of their waits, and of
    /// [alternatives](crate::Rule::or) the shortest. A fixed window that is
    /// [paced or carries over](crate::Algorithm::FixedWindow) may
    /// have fewer units again by then. For a [blocked](Decision::is_blocked) key, this is the time that
    /// is left of the block, which may end before enough units are available. In both cases, the
    /// request is then denied with another wait.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed { Some(Duration::ZERO) } else { self.binding()?.retry_after() }
    }

    /// Returns [`retry_after`](Decision::retry_after), or `None` if a quota can only estimate it.
    pub(crate) fn exact_retry_after(&self) -> Option<Duration> {
        let is_estimated = |it: &Outcome| it.is_estimated() && it.is_deciding();
        let is_exact = self.allowed || !self.outcomes.iter().any(is_estimated);
        self.retry_after().filter(|_| is_exact)
    }

    /// Returns `true` if an allowed request was charged under `rule`.
    ///
    /// A report-only rule charges nothing when it would deny, and neither does an alternative that
    /// was passed over.
    pub(crate) fn charged(&self, rule: RuleName) -> bool {
        let unpaid = |o: &Outcome| o.is_passed_over() || o.is_report_only() && o.is_denied();
        !self.outcomes.iter().any(|outcome| outcome.rule() == rule && unpaid(outcome))
    }

    /// Creates a decision without outcomes.
    ///
    /// The caller adds the outcomes afterwards. This avoids copies of a large decision.
    #[inline]
    pub(crate) fn new(allowed: bool, at: u64) -> Self {
        Self {
            allowed,
            overage: false,
            blocked: false,
            source: Source::Local,
            at,
            charged_at: at,
            wait: 0,
            slot: None,
            outcomes: SmallVec::new(),
        }
    }

    /// Adds slots that the request holds.
    #[inline]
    pub(crate) fn hold(&mut self, hold: Hold) {
        Slot::add(&mut self.slot, hold);
    }

    /// Returns `true` for a denial that [`Overcommit`](crate::middleware::Overcommit) may reverse.
    pub(crate) fn may_pass_beyond(&self) -> bool {
        self.retry_after().is_some() && !self.blocked && !self.cause().is_unavailable()
    }

    /// Converts a queued decision into a denial. The time in the queue becomes `retry_after`.
    pub(crate) fn into_denied(mut self) -> Self {
        let wait = std::mem::take(&mut self.wait);
        self.allowed = false;
        self.slot = None;
        let deciding = self.outcomes.iter_mut().filter(|outcome| outcome.is_deciding());
        if let Some(outcome) = deciding.min_by_key(|outcome| outcome.remaining()) {
            outcome.set_retry_ns(wait);
        }
        self
    }

    /// Returns the decision with exactly one outcome for each of `quotas`.
    ///
    /// A quota with no outcome, or with several outcomes, gets an unknown outcome.
    pub(crate) fn on(&self, quotas: impl Iterator<Item = (RuleName, usize)> + Clone) -> Self {
        let own = |outcome: &Outcome| (outcome.rule(), outcome.quota_index());
        if self.outcomes.iter().map(own).eq(quotas.clone()) {
            return self.clone();
        }
        let outcomes = quotas.map(|quota| {
            let mut known = self.outcomes.iter().filter(|outcome| own(outcome) == quota);
            let one = known.next().filter(|_| known.next().is_none());
            one.copied().unwrap_or_else(|| Outcome::unknown(quota.0, quota.1, Some(Duration::ZERO)))
        });
        Self { outcomes: outcomes.collect(), slot: None, ..*self }
    }
}

/// Component that made a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The embedded store.
    Local,
    /// A governor limiter.
    Governor,
    /// Redis or Valkey.
    Redis,
    /// The policy [`FailOpen`](crate::store::FailOpen), which allows the request if the store
    /// fails.
    FailedOpen,
    /// The policy [`FailClosed`](crate::store::FailClosed), which denies the request if the store
    /// fails, or a [`FailOpen`](crate::store::FailOpen) whose store does not support the request.
    FailedClosed,
    /// The local store of a [`Fallback`](crate::store::Fallback), which decides if the other store
    /// fails.
    Fallback,
    /// A [`DenyCache`](crate::store::DenyCache) that repeated an earlier denial, or a `RedisStore`
    /// that denied a request without a call, because others of this process wait for its slots.
    DenyCache,
    /// A [`Leased`](crate::store::Leased) store, which used units that were charged in advance.
    Leased,
    /// The embedded store, one of whose tables is full.
    ///
    /// It could not [block](crate::StoreExt::block) a key, or denied a request that needs
    /// [slots](crate::Quota::concurrent), or whose account other keys share.
    Overflow,
    /// A `RedisStore` whose answer was not read within ten times the time of its
    /// [`Timeout`](crate::store::Timeout), although the server is not silent: this process or the server is
    /// too busy. The denial is made under every policy, and never counts as a failure.
    Busy,
    /// An [adaptive](crate::rule::Adaptive) limit, which denied the request.
    Overload,
    /// A store that does not support the [operation](crate::store::Op), which it denies.
    Unsupported,
    /// A layer that called no store. The layer is off or report-only, no rule charges the request, or
    /// the request is on an allow list or an exempt preflight.
    Bypass,
    /// A store of another crate, with its name.
    Other(&'static str),
}

impl Source {
    /// Returns the source as one word, such as `redis`, `failed_open` or `deny_cache`.
    ///
    /// For [`Source::Other`], this is the name of the store.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Governor => "governor",
            Self::Redis => "redis",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::Fallback => "fallback",
            Self::DenyCache => "deny_cache",
            Self::Leased => "leased",
            Self::Overflow => "overflow",
            Self::Busy => "busy",
            Self::Overload => "overload",
            Self::Bypass => "bypass",
            Self::Unsupported => "unsupported",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Outcome of one quota in a [`Decision`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Outcome {
    rule: RuleName,
    quota_index: u8,
    report_only: bool,
    passed_over: bool,
    /// The time by which the account's clock is ahead of the decision's clock, in microseconds.
    ///
    /// The clocks differ if several Redis nodes take part in the decision.
    skew: i32,
    snapshot: Snapshot,
}

/// The state of one quota after a decision. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Snapshot {
    /// The state under a quota that refills one unit every `interval`.
    Refilling {
        reset_ns: u64,
        interval: u64,
        limit: u32,
        retry_ns: u64,
    },
    Known {
        limit: u32,
        remaining: u32,
        reset_ns: u64,
        next_ns: u64,
        retry_ns: u64,
    },
    /// The state of a number of slots.
    Slots {
        limit: u32,
        held: u64,
        retry_ns: u64,
        /// The expected time until enough slots are free, or 0 if it is not known.
        free_in_ns: u64,
    },
    /// The state of a quota whose store does not report the units left.
    Unknown {
        retry_ns: u64,
    },
}

impl Snapshot {
    /// Returns the number of held slots, or `None` for a rate.
    #[inline]
    pub(crate) fn held(&self) -> Option<u64> {
        match self {
            Self::Slots { held, .. } => Some(*held),
            _ => None,
        }
    }

    /// Sets the number of held slots.
    #[inline]
    pub(crate) fn set_held(&mut self, slots: u64) {
        if let Self::Slots { held, .. } = self {
            *held = slots;
        }
    }

    /// Sets the expected time until enough slots are free.
    pub(crate) fn set_free_in(&mut self, nanos: u64) {
        if let Self::Slots { free_in_ns, .. } = self {
            *free_in_ns = nanos;
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// Returns the wait in nanoseconds, [`UNKNOWN_WAIT`], or [`NEVER`].
    #[inline]
    pub(crate) fn retry_ns(mut self) -> u64 {
        *self.retry_ns_mut()
    }

    #[inline]
    fn retry_ns_mut(&mut self) -> &mut u64 {
        match self {
            Self::Refilling { retry_ns, .. }
            | Self::Known { retry_ns, .. }
            | Self::Slots { retry_ns, .. }
            | Self::Unknown { retry_ns } => retry_ns,
        }
    }
}

impl Outcome {
    /// Creates the outcome of an allowed charge, with all `limit` units left.
    ///
    /// `quota_index` is the index of the quota in its rule.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{decision::Outcome, rule::RuleName};
    ///
    /// let ten = Duration::from_secs(10);
    /// let minute = Duration::from_secs(60);
    /// let denied = Outcome::full(RuleName::default(), 0, 6)
    ///     .with_remaining(0)
    ///     .with_reset_after(minute)
    ///     .with_next_after(ten)
    ///     .with_retry_after(Some(ten));
    /// assert!(denied.is_denied());
    /// assert_eq!((denied.limit(), denied.remaining()), (6, 0));
    /// ```
    pub fn full(rule: RuleName, quota_index: usize, limit: u32) -> Self {
        let snapshot =
            Snapshot::Known { limit, remaining: limit, reset_ns: 0, next_ns: 0, retry_ns: 0 };
        Self::with(rule, quota_index, snapshot)
    }

    /// Creates the outcome of a [concurrent](crate::Quota::concurrent) quota, of which all requests
    /// together hold `held` slots.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{decision::Outcome, rule::RuleName};
    ///
    /// let denied = Outcome::slots(RuleName::default(), 0, 5, 5)
    ///     .with_estimated_retry_after(Duration::from_secs(2));
    /// assert_eq!((denied.held(), denied.remaining()), (Some(5), 0));
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(2)));
    /// assert!(denied.is_estimated());
    /// ```
    pub fn slots(rule: RuleName, quota_index: usize, limit: u32, held: u64) -> Self {
        Self::with(rule, quota_index, Snapshot::Slots { limit, held, retry_ns: 0, free_in_ns: 0 })
    }

    /// Sets the number of whole units left, at most the limit.
    pub fn with_remaining(mut self, units: u32) -> Self {
        if let Snapshot::Known { limit, remaining, .. } = &mut self.snapshot {
            *remaining = units.min(*limit);
        }
        self
    }

    /// Sets the time until the account is full.
    pub fn with_reset_after(mut self, time: Duration) -> Self {
        if let Snapshot::Known { reset_ns, .. } = &mut self.snapshot {
            *reset_ns = nanos(time);
        }
        self
    }

    /// Sets the time until more units are available. Zero means that waiting adds no units.
    pub fn with_next_after(mut self, time: Duration) -> Self {
        if let Snapshot::Known { next_ns, .. } = &mut self.snapshot {
            *next_ns = nanos(time);
        }
        self
    }

    /// Sets the shortest wait until an identical cost would be allowed.
    ///
    /// - Zero means that the quota allowed the cost.
    /// - `None` means that the quota denied the cost, and that waiting does not help.
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.set_retry_ns(wait.map_or(NEVER, nanos));
        self
    }

    /// Marks the outcome as a denial whose wait is an [estimate](Outcome::is_estimated), as by a
    /// [concurrent](crate::Quota::concurrent) quota.
    ///
    /// [`retry_after`](Outcome::retry_after) is then `time`, at least 1 s, if the outcome is one of
    /// [`slots`](Outcome::slots), and `None` otherwise.
    pub fn with_estimated_retry_after(mut self, time: Duration) -> Self {
        self.set_retry_ns(UNKNOWN_WAIT);
        self.snapshot.set_free_in(nanos(time));
        self
    }

    /// Creates an outcome without the number of units left, for a store that does not report it.
    ///
    /// The response has no header fields for this quota.
    pub fn unknown(rule: RuleName, quota_index: usize, retry_after: Option<Duration>) -> Self {
        Self::with(
            rule,
            quota_index,
            Snapshot::Unknown { retry_ns: retry_after.map_or(NEVER, nanos) },
        )
    }

    /// Creates the outcome of a blocked key. `left` is the remaining time of the block.
    pub(crate) fn block(rule: RuleName, limit: u32, left: Duration) -> Self {
        let exhausted = Self::full(rule, 0, limit).with_remaining(0);
        exhausted.with_reset_after(left).with_next_after(left).with_retry_after(Some(left))
    }

    #[expect(clippy::cast_possible_truncation, reason = "a rule has at most 255 quotas")]
    pub(crate) fn with(rule: RuleName, quota_index: usize, snapshot: Snapshot) -> Self {
        Self {
            rule,
            quota_index: quota_index as u8,
            report_only: false,
            passed_over: false,
            skew: 0,
            snapshot,
        }
    }

    /// Returns the rule of the quota.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Returns the index of the quota in its rule, from 0.
    #[must_use]
    pub fn quota_index(&self) -> usize {
        self.quota_index.into()
    }

    /// Sets whether the rule of this outcome is report-only.
    pub fn with_report_only(mut self, report_only: bool) -> Self {
        self.report_only = report_only;
        self
    }

    /// Returns `true` if the rule is report-only.
    #[must_use]
    pub fn is_report_only(&self) -> bool {
        self.report_only
    }

    /// Sets whether the decision passed over the rule of this outcome.
    pub fn with_passed_over(mut self, passed_over: bool) -> Self {
        self.passed_over = passed_over;
        self
    }

    /// Returns `true` if the rule is an [alternative](crate::Rule::or) that did not decide.
    ///
    /// In an allowed decision, another alternative was charged. In a denial, another one would be
    /// charged first.
    #[must_use]
    pub fn is_passed_over(&self) -> bool {
        self.passed_over
    }

    /// Passes over the outcome of an alternative. In an allowed decision, it has not denied.
    pub(crate) fn pass_over(&mut self, allowed: bool) {
        self.passed_over = true;
        if allowed {
            self.set_retry_ns(0);
        }
    }

    /// Returns `true` if the outcome takes part in the decision.
    #[inline]
    pub(crate) fn is_deciding(&self) -> bool {
        !(self.report_only | self.passed_over)
    }

    /// Returns `true` if the quota denied the request.
    #[inline]
    pub(crate) fn denies(&self) -> bool {
        self.is_denied() && self.is_deciding()
    }

    /// Returns `true` if the quota denied the request, or would have denied it if it were not
    /// report-only.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.retry_ns() > 0
    }

    /// Returns the maximum number of units.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self.snapshot {
            Snapshot::Refilling { limit, .. }
            | Snapshot::Known { limit, .. }
            | Snapshot::Slots { limit, .. } => limit,
            Snapshot::Unknown { .. } => 0,
        }
    }

    /// Returns the slots that all requests of the key hold after the decision, or `None` for a rate.
    #[must_use]
    pub fn held(&self) -> Option<u64> {
        self.snapshot.held()
    }

    /// Returns the number of whole units left.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        u32::try_from(self.left()).unwrap_or(0)
    }

    /// Returns the units left, or a negative number if the account is in debt.
    pub(crate) fn left(&self) -> i64 {
        match self.snapshot {
            Snapshot::Refilling { reset_ns, interval, limit, .. } => {
                // Used units are rounded up to whole units.
                i64::from(limit) - reset_ns.div_ceil(interval).cast_signed()
            }
            Snapshot::Known { remaining, .. } => remaining.into(),
            Snapshot::Slots { limit, held, .. } => i64::from(limit) - held.cast_signed(),
            Snapshot::Unknown { .. } => 0,
        }
    }

    /// Returns the time until the account is full, or zero for slots.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_ns())
    }

    /// Returns the time until more units are available, or zero if waiting adds no units.
    #[must_use]
    pub fn next_after(&self) -> Duration {
        Duration::from_nanos(self.remaining_and_next().1)
    }

    /// Returns the units left and the nanoseconds until the next unit.
    pub(crate) fn remaining_and_next(&self) -> (u32, u64) {
        match self.snapshot {
            Snapshot::Refilling { reset_ns, interval, limit, .. } => {
                let remaining = self.remaining();
                let more = u64::from(limit - remaining).saturating_sub(1);
                (remaining, reset_ns.saturating_sub(more * interval))
            }
            Snapshot::Known { remaining, next_ns, .. } => (remaining, next_ns),
            Snapshot::Slots { .. } => (self.remaining(), 0),
            Snapshot::Unknown { .. } => (0, 0),
        }
    }

    /// Returns the shortest wait until an identical cost would be allowed.
    ///
    /// The wait is zero if the cost was allowed. Returns `None` if waiting does not help. If all slots are
    /// held, this is an [estimate](Outcome::is_estimated) of the time until one is free, at least 1 s. The
    /// embedded store measures the time between two freed slots of an exhausted key.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.snapshot {
            Snapshot::Slots { retry_ns: UNKNOWN_WAIT, free_in_ns, .. } => {
                Some(Duration::from_nanos(free_in_ns).max(Duration::from_secs(1)))
            }
            _ => self.exact_retry_after(),
        }
    }

    /// Returns [`retry_after`](Outcome::retry_after), or `None` for an estimate.
    pub(crate) fn exact_retry_after(&self) -> Option<Duration> {
        let retry_ns = self.retry_ns();
        (retry_ns < UNKNOWN_WAIT).then(|| Duration::from_nanos(retry_ns))
    }

    /// Returns `true` for a denial whose [`retry_after`](Outcome::retry_after) is an estimate, because
    /// another request may free a [slot](crate::Quota::concurrent) at any time.
    #[must_use]
    pub fn is_estimated(&self) -> bool {
        self.retry_ns() == UNKNOWN_WAIT
    }

    /// Returns the nanoseconds until the account is full.
    pub(crate) fn reset_ns(&self) -> u64 {
        match self.snapshot {
            Snapshot::Refilling { reset_ns, .. } | Snapshot::Known { reset_ns, .. } => reset_ns,
            Snapshot::Slots { .. } | Snapshot::Unknown { .. } => 0,
        }
    }

    /// Returns the time per refilled unit, or `None` if units are not refilled one by one.
    pub(crate) fn interval(&self) -> Option<Duration> {
        match self.snapshot {
            Snapshot::Refilling { interval, .. } => Some(Duration::from_nanos(interval)),
            _ => None,
        }
    }

    /// Sets the time by which the account's clock is ahead of the decision's clock, in nanoseconds.
    #[cfg(feature = "redis")]
    pub(crate) fn by_clock(mut self, ahead: i64) -> Self {
        self.skew = i32::try_from(ahead / 1_000).unwrap_or(0);
        self
    }

    /// Returns the time by which the account's clock is ahead of the decision's clock, in
    /// nanoseconds.
    pub(crate) fn skew(&self) -> i64 {
        i64::from(self.skew) * 1_000
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(crate) fn is_known(&self) -> bool {
        self.snapshot.is_known()
    }

    /// Returns the outcome as of `age` nanoseconds later, if nothing else is charged until then.
    pub(crate) fn aged(mut self, age: u64) -> Self {
        let left =
            |nanos: u64| if nanos >= UNKNOWN_WAIT { nanos } else { nanos.saturating_sub(age) };
        // Units that have not come back stay at least a nanosecond away.
        let coming = |nanos: u64| left(nanos).max(nanos.min(1));
        match &mut self.snapshot {
            Snapshot::Refilling { reset_ns, retry_ns, .. } => {
                (*reset_ns, *retry_ns) = (reset_ns.saturating_sub(age), left(*retry_ns));
            }
            Snapshot::Known { reset_ns, next_ns, retry_ns, .. } => {
                (*reset_ns, *next_ns, *retry_ns) =
                    (coming(*reset_ns), coming(*next_ns), left(*retry_ns));
            }
            Snapshot::Slots { .. } => {}
            Snapshot::Unknown { retry_ns } => *retry_ns = left(*retry_ns),
        }
        self
    }

    pub(crate) fn set_retry_ns(&mut self, nanos: u64) {
        *self.snapshot.retry_ns_mut() = nanos;
    }

    /// Returns the wait in nanoseconds, [`UNKNOWN_WAIT`], or [`NEVER`].
    pub(crate) fn retry_ns(&self) -> u64 {
        self.snapshot.retry_ns()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(UNKNOWN_WAIT).min(UNKNOWN_WAIT - 1)
}
