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
mod outcome;
mod slot;
mod source;

use std::time::Duration;

use smallvec::SmallVec;

pub(crate) use self::cause::Cause;
pub use self::{outcome::Outcome, slot::Slot, source::Source};
pub(crate) use self::{
    outcome::Snapshot,
    slot::{FreeSlots, Hold},
};
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
        Self {
            at: NO_INSTANT,
            ..Self::new(true, 0)
        }
    }

    /// Creates a decision that denies the request.
    ///
    /// A denial without outcomes has an unknown wait: clients decide when to retry.
    pub fn deny() -> Self {
        Self {
            allowed: false,
            ..Self::allow()
        }
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
        assert!(
            self.allowed,
            "a denied decision cannot be an overage; start at `Decision::allow`"
        );
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
        assert!(
            self.allowed,
            "a denied decision cannot hold a slot; start at `Decision::allow`"
        );
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
        assert!(
            !self.allowed,
            "an allowed decision cannot be blocked; start at `Decision::deny`"
        );
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
        let deciding = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.is_deciding() && some(outcome));
        if self.allowed {
            deciding.min_by_key(|outcome| outcome.remaining())
        } else {
            // Picks the first of equal outcomes, as `min_by_key` does.
            let wait = |outcome: &&Outcome| {
                (
                    outcome.retry_ns() == NEVER,
                    outcome.is_denied(),
                    outcome.retry_after(),
                )
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
        self.outcomes
            .iter()
            .map(Outcome::remaining)
            .min()
            .unwrap_or(0)
    }

    /// Returns the shortest wait until an identical request would be allowed, to report to a denied
    /// client.
    ///
    /// The wait is zero if the request was allowed. Returns `None` if waiting does not help, or if the
    /// store did not tell a wait. If a quota
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
        if self.allowed {
            Some(Duration::ZERO)
        } else {
            self.binding()?.retry_after()
        }
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
        !self
            .outcomes
            .iter()
            .any(|outcome| outcome.rule() == rule && unpaid(outcome))
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
        Cause::of_rejection(Some(self)).is_exhausted() && self.cause() != Cause::Unsupported
    }

    /// Converts a queued decision into a denial. The time in the queue becomes `retry_after`.
    pub(crate) fn into_denied(mut self) -> Self {
        let wait = std::mem::take(&mut self.wait);
        self.allowed = false;
        self.overage = false;
        self.slot = None;
        let deciding = self
            .outcomes
            .iter_mut()
            .filter(|outcome| outcome.is_deciding());
        if let Some(outcome) = deciding.min_by_key(|outcome| outcome.remaining()) {
            outcome.set_retry_ns(wait);
        }
        self
    }

    /// Returns the decision with exactly one outcome for each of `quotas`, and without its slot.
    ///
    /// A quota with no outcome, or with several outcomes, gets an unknown outcome.
    pub(crate) fn on(&self, quotas: impl Iterator<Item = (RuleName, usize)> + Clone) -> Self {
        let own = |outcome: &Outcome| (outcome.rule(), outcome.quota_index());
        if self.outcomes.iter().map(own).eq(quotas.clone()) {
            return Self {
                slot: None,
                ..self.clone()
            };
        }
        let outcomes = quotas.map(|quota| {
            let mut known = self.outcomes.iter().filter(|outcome| own(outcome) == quota);
            let one = known.next().filter(|_| known.next().is_none());
            one.copied()
                .unwrap_or_else(|| Outcome::unknown(quota.0, quota.1, Some(Duration::ZERO)))
        });
        Self {
            outcomes: outcomes.collect(),
            slot: None,
            ..*self
        }
    }
}
