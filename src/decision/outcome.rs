//! Outcomes of single quotas.

use std::time::Duration;

use super::{NEVER, UNKNOWN_WAIT};
use crate::name::RuleName;

/// Outcome of one quota in a [`Decision`](super::Decision).
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
    Unknown { retry_ns: u64 },
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
        let snapshot = Snapshot::Known {
            limit,
            remaining: limit,
            reset_ns: 0,
            next_ns: 0,
            retry_ns: 0,
        };
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
        Self::with(
            rule,
            quota_index,
            Snapshot::Slots {
                limit,
                held,
                retry_ns: 0,
                free_in_ns: 0,
            },
        )
    }

    /// Sets the number of whole units left, at most the limit. This setter and those of times have no effect
    /// on outcomes of [slots](Self::slots) and on [unknown](Self::unknown) ones.
    pub fn with_remaining(mut self, units: u32) -> Self {
        if let Snapshot::Known {
            limit, remaining, ..
        } = &mut self.snapshot
        {
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
            Snapshot::Unknown {
                retry_ns: retry_after.map_or(NEVER, nanos),
            },
        )
    }

    /// Creates the outcome of a blocked key. `left` is the remaining time of the block.
    pub(crate) fn block(rule: RuleName, limit: u32, left: Duration) -> Self {
        let exhausted = Self::full(rule, 0, limit).with_remaining(0);
        exhausted
            .with_reset_after(left)
            .with_next_after(left)
            .with_retry_after(Some(left))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a rule has at most 255 quotas"
    )]
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
            Snapshot::Refilling {
                reset_ns,
                interval,
                limit,
                ..
            } => {
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
            Snapshot::Refilling {
                reset_ns,
                interval,
                limit,
                ..
            } => {
                let remaining = self.remaining();
                let more = u64::from(limit - remaining).saturating_sub(1);
                (remaining, reset_ns.saturating_sub(more * interval))
            }
            Snapshot::Known {
                remaining, next_ns, ..
            } => (remaining, next_ns),
            Snapshot::Slots { .. } => (self.remaining(), 0),
            Snapshot::Unknown { .. } => (0, 0),
        }
    }

    /// Returns the shortest wait until an identical cost would be allowed.
    ///
    /// The wait is zero if the cost was allowed. Returns `None` if waiting does not help, or if the store did
    /// not tell a wait. If all slots are
    /// held, this is an [estimate](Outcome::is_estimated) of the time until one is free, at least 1 s. The
    /// embedded store measures the time between two freed slots of an exhausted key.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.snapshot {
            Snapshot::Slots {
                retry_ns: UNKNOWN_WAIT,
                free_in_ns,
                ..
            } => Some(Duration::from_nanos(free_in_ns).max(Duration::from_secs(1))),
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
        // The units left are not counted again. Those that were missing still are, at least a nanosecond away,
        // because 0 stands for a full account.
        let coming = |nanos: u64| left_after(nanos, age).max(nanos.min(1));
        match &mut self.snapshot {
            Snapshot::Refilling {
                reset_ns, retry_ns, ..
            } => {
                *reset_ns = reset_ns.saturating_sub(age);
                *retry_ns = left_after(*retry_ns, age);
            }
            Snapshot::Known {
                reset_ns,
                next_ns,
                retry_ns,
                ..
            } => {
                *reset_ns = coming(*reset_ns);
                *next_ns = coming(*next_ns);
                *retry_ns = left_after(*retry_ns, age);
            }
            Snapshot::Slots { .. } => {}
            Snapshot::Unknown { retry_ns } => *retry_ns = left_after(*retry_ns, age),
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

/// Returns what is left of a wait after a time. [`UNKNOWN_WAIT`] and [`NEVER`] stay.
fn left_after(wait: u64, age: u64) -> u64 {
    if wait >= UNKNOWN_WAIT {
        wait
    } else {
        wait.saturating_sub(age)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos())
        .unwrap_or(UNKNOWN_WAIT)
        .min(UNKNOWN_WAIT - 1)
}
