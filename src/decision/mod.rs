//! Decisions of a store, with one outcome per quota.

mod outcome;
mod slot;

use std::{fmt, time::Duration};

use smallvec::SmallVec;

#[cfg(feature = "redis")]
pub(crate) use self::slot::LossSignal;
pub use self::{outcome::Outcome, slot::Slot};
pub(crate) use self::{
    outcome::{NEVER, Snapshot, UNKNOWN_WAIT},
    slot::{FreeSlots, Hold},
};
use crate::name::RuleName;

/// Decision of a store on a request.
///
/// Either every quota was charged, or none. The getters return the state at the time of the
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
pub struct Decision {
    pub(crate) allowed: bool,
    pub(crate) overage: bool,
    /// `true` if the request was denied because its key is blocked.
    pub(crate) blocked: bool,
    pub(crate) source: Source,
    /// The instant of the decision, in nanoseconds of the store's clock.
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
    #[must_use]
    pub fn allow() -> Self {
        Self::new(true, 0)
    }

    /// Creates a decision that denies the request.
    ///
    /// A denial without outcomes means that waiting does not help.
    #[must_use]
    pub fn deny() -> Self {
        Self { allowed: false, ..Self::allow() }
    }

    /// Creates a denial by a store that does not support an [operation](crate::store::Op).
    ///
    /// The source of the decision is [`Source::Unsupported`].
    #[must_use]
    pub fn unsupported() -> Self {
        Self::deny().with_source(Source::Unsupported)
    }

    /// Adds the outcome of one quota.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcomes.push(outcome);
        self
    }

    /// Sets the source of the decision.
    #[must_use]
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
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        assert!(
            self.allowed,
            "a denied decision cannot queue for {wait:?}; set `retry_after` of an outcome"
        );
        self.wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Marks the request as allowed beyond a [soft](crate::Quota::with_soft) quota.
    ///
    /// # Panics
    ///
    /// Panics if the decision is a denial.
    #[track_caller]
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
        self.outcomes.iter().any(|outcome| outcome.is_report_only() && outcome.is_denied())
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
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Returns the outcome of the decisive quota, or `None` if no quota applies.
    ///
    /// In a denial, the decisive quota has the longest wait. Otherwise it has the fewest units
    /// left. Report-only quotas are never decisive.
    #[must_use]
    pub fn binding(&self) -> Option<&Outcome> {
        if let [one] = self.outcomes.as_slice() {
            return Some(one).filter(|one| !one.is_report_only());
        }
        self.binding_among(|_| true)
    }

    /// Returns the outcome of the decisive quota among some quotas.
    pub(crate) fn binding_among(&self, some: impl Fn(&Outcome) -> bool) -> Option<&Outcome> {
        let deciding = self.outcomes.iter().filter(|it| !it.is_report_only() && some(it));
        if self.allowed {
            deciding.min_by_key(|outcome| outcome.remaining())
        } else {
            // Picks the first of equal outcomes, as `min_by_key` does.
            deciding.rev().max_by_key(|outcome| outcome.retry_ns())
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

    /// Returns the shortest wait until an identical request would be allowed.
    ///
    /// The wait is zero if the request was allowed. Returns `None` if waiting does not help, or if
    /// the wait is [unknown](Outcome::is_wait_unknown).
    ///
    /// # Limitations
    ///
    /// With several quotas, this is the longest of their waits. A fixed window that is
    /// [paced](crate::Algorithm::paced) or has a [`carry_over`](crate::Algorithm::carry_over) may
    /// have fewer units again by then. The request is then denied with another wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed { Some(Duration::ZERO) } else { self.binding()?.retry_after() }
    }

    /// Returns the wait to report to a denied client.
    ///
    /// This is [`retry_after`](Decision::retry_after) or, if a quota reports an
    /// [unknown](Outcome::is_wait_unknown) wait, the longest [expected
    /// wait](Outcome::expected_wait) of the quotas that denied the request. Returns `None` if
    /// waiting does not help.
    #[must_use]
    pub fn expected_wait(&self) -> Option<Duration> {
        if !self.binding().is_some_and(Outcome::is_wait_unknown) || self.allowed {
            return self.retry_after();
        }
        let deciding = self.outcomes.iter().filter(|it| it.is_denied() && !it.is_report_only());
        deciding.filter_map(Outcome::expected_wait).max()
    }

    /// Returns `true` if an allowed request was charged under `rule`.
    ///
    /// A report-only rule charges nothing when it would deny.
    pub(crate) fn charged(&self, rule: RuleName) -> bool {
        let unpaid = |o: &Outcome| o.rule() == rule && o.is_report_only() && o.is_denied();
        !self.outcomes.iter().any(unpaid)
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
        self.expected_wait().is_some() && !self.blocked && self.source != Source::FailedClosed
    }

    /// Allows a denied request beyond the quota, without a charge.
    pub(crate) fn into_overage(mut self) -> Self {
        (self.allowed, self.overage) = (true, true);
        self
    }

    /// Converts a queued decision into a denial. The time in the queue becomes `retry_after`.
    pub(crate) fn into_denied(mut self) -> Self {
        let wait = std::mem::take(&mut self.wait);
        self.allowed = false;
        self.slot = None;
        let deciding = self.outcomes.iter_mut().filter(|outcome| !outcome.is_report_only());
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
    /// A [`DenyCache`](crate::store::DenyCache) that repeated an earlier denial.
    DenyCache,
    /// A [`Leased`](crate::store::Leased) store, which used units that were charged in advance.
    Leased,
    /// The embedded store, whose table of blocked keys or of held slots is full.
    ///
    /// It could not [block](crate::StoreExt::block) a key, or denied a request that needs
    /// [slots](crate::Quota::concurrent).
    Overflow,
    /// An [adaptive](crate::rule::Adaptive) limit, which denied the request.
    Overload,
    /// A store that does not support the operation. See [`Decision::unsupported`].
    Unsupported,
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
            Self::Overload => "overload",
            Self::Unsupported => "unsupported",
            Self::Other(name) => name,
        }
    }

    /// Returns `true` if a store made the decision, not a wrapper around the store.
    pub(crate) fn is_of_store(self) -> bool {
        !matches!(self, Self::FailedOpen | Self::FailedClosed | Self::Fallback) && !self.is_known()
    }

    /// Returns `true` if the decision was made without calling a store.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Self::DenyCache | Self::Leased)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
