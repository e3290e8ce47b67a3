//! Outcomes of single quotas.

use std::time::Duration;

use crate::name::RuleName;

/// The `retry` value for "waiting does not help", in nanoseconds.
pub(crate) const NEVER: u64 = u64::MAX;

/// The outcome of one quota in a [`Decision`](crate::Decision).
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    rule: RuleName,
    place: u8,
    report_only: bool,
    /// Microseconds by which the clock of this outcome is ahead of the decision's clock. The nodes
    /// of a cluster have separate clocks.
    #[cfg(feature = "redis")]
    skew: i32,
    numbers: Numbers,
}

/// The state of one quota after a decision, with times in nanoseconds; read through [`Outcome`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    /// One unit comes back every `interval`; the account is full after `ahead`.
    Refilling {
        ahead: u64,
        interval: u64,
        limit: u32,
        retry: u64,
    },
    Known {
        limit: u32,
        remaining: u32,
        full: u64,
        next: u64,
        retry: u64,
    },
    /// The store does not report the units left.
    Unknown {
        retry: u64,
    },
}

impl Outcome {
    /// Creates the outcome of a rule's quota at index `place`.
    ///
    /// `reset_after` is the time until the account is full. `next_after` is the time until more
    /// units are left than now. `retry_after` is the time until an identical cost would be allowed:
    /// zero for an allowed cost, `None` if waiting does not help.
    #[must_use]
    pub fn new(
        rule: RuleName,
        place: usize,
        limit: u32,
        remaining: u32,
        reset_after: Duration,
        next_after: Duration,
        retry_after: Option<Duration>,
    ) -> Self {
        let (full, next) = (nanos(reset_after), nanos(next_after));
        let retry = retry_after.map_or(NEVER, nanos);
        Self::with(rule, place, Numbers::Known { limit, remaining, full, next, retry })
    }

    /// Creates an outcome for a store that cannot report the units left. Header fields leave the
    /// quota out.
    #[must_use]
    pub fn unknown(rule: RuleName, place: usize, retry_after: Option<Duration>) -> Self {
        Self::with(rule, place, Numbers::Unknown { retry: retry_after.map_or(NEVER, nanos) })
    }

    #[expect(clippy::cast_possible_truncation, reason = "a rule has at most 255 quotas")]
    pub(crate) fn with(rule: RuleName, place: usize, numbers: Numbers) -> Self {
        Self {
            rule,
            place: place as u8,
            report_only: false,
            #[cfg(feature = "redis")]
            skew: 0,
            numbers,
        }
    }

    /// Returns the rule of the quota.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Returns the index of the quota in its rule, from 0.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place.into()
    }

    /// Marks the outcome as report-only.
    #[must_use]
    pub fn report_only(mut self, report_only: bool) -> Self {
        self.report_only = report_only;
        self
    }

    /// Returns `true` if the rule is report-only.
    #[must_use]
    pub fn is_report_only(&self) -> bool {
        self.report_only
    }

    /// Returns `true` if the quota denied the request, or would have denied it but is report-only.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.retry() > 0
    }

    /// Returns the maximum number of units.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self.numbers {
            Numbers::Refilling { limit, .. } | Numbers::Known { limit, .. } => limit,
            Numbers::Unknown { .. } => 0,
        }
    }

    /// Returns the whole units that would be allowed now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        match self.numbers {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                // At most `limit`: used units round up to whole units.
                let owed = ahead.div_ceil(interval).min(limit.into());
                limit - u32::try_from(owed).unwrap_or(limit)
            }
            Numbers::Known { remaining, .. } => remaining,
            Numbers::Unknown { .. } => 0,
        }
    }

    /// Returns the units left; negative if the account is in debt beyond the limit.
    pub(crate) fn left(&self) -> i64 {
        match self.numbers {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                i64::from(limit) - ahead.div_ceil(interval).cast_signed()
            }
            Numbers::Known { remaining, .. } => remaining.into(),
            Numbers::Unknown { .. } => 0,
        }
    }

    /// Returns the units that have yet to come back.
    pub(crate) fn owed(&self) -> i64 {
        i64::from(self.limit()) - self.left()
    }

    /// Returns the time until the account is full.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(match self.numbers {
            Numbers::Refilling { ahead, .. } => ahead,
            Numbers::Known { full, .. } => full,
            Numbers::Unknown { .. } => 0,
        })
    }

    /// Returns the shortest wait until more units are [remaining](Outcome::remaining) than now;
    /// zero if none are to come.
    #[must_use]
    pub fn next_after(&self) -> Duration {
        Duration::from_nanos(self.remaining_and_next().1)
    }

    /// Returns both values with a single division, its slowest step; the wait is in nanoseconds.
    pub(crate) fn remaining_and_next(&self) -> (u32, u64) {
        match self.numbers {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                let remaining = self.remaining();
                let more = u64::from(limit - remaining).saturating_sub(1);
                (remaining, ahead.saturating_sub(more * interval))
            }
            Numbers::Known { remaining, next, .. } => (remaining, next),
            Numbers::Unknown { .. } => (0, 0),
        }
    }

    /// Returns the shortest wait after which an identical cost would be allowed: zero for an
    /// allowed cost, `None` if waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let retry = self.retry();
        (retry != NEVER).then(|| Duration::from_nanos(retry))
    }

    /// Returns the time until the account is full, in nanoseconds. Together with the decision's
    /// instant it is the receipt of a charge.
    pub(crate) fn ahead(&self) -> u64 {
        match self.numbers {
            Numbers::Refilling { ahead, .. } => ahead,
            Numbers::Known { full, .. } => full,
            Numbers::Unknown { .. } => 0,
        }
    }

    /// Returns the time in which one unit comes back, if units come back one by one.
    pub(crate) fn interval(&self) -> Option<Duration> {
        match self.numbers {
            Numbers::Refilling { interval, .. } => Some(Duration::from_nanos(interval)),
            Numbers::Known { .. } | Numbers::Unknown { .. } => None,
        }
    }

    /// Sets the nanoseconds by which another clock was ahead of the decision's clock.
    #[cfg(feature = "redis")]
    pub(crate) fn by_clock(mut self, ahead: i64) -> Self {
        self.skew = i32::try_from(ahead / 1_000).unwrap_or(0);
        self
    }

    /// Returns the nanoseconds by which the clock of this outcome is ahead of the decision's clock.
    pub(crate) fn skew(&self) -> i64 {
        #[cfg(feature = "redis")]
        return i64::from(self.skew) * 1_000;
        #[cfg(not(feature = "redis"))]
        0
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.numbers, Numbers::Unknown { .. })
    }

    /// Returns the outcome `age` nanoseconds later, assuming that nothing was charged since.
    /// Without an interval, the units left stay as they were.
    pub(crate) fn aged(mut self, age: u64) -> Self {
        let left = |nanos: u64| if nanos == NEVER { NEVER } else { nanos.saturating_sub(age) };
        // Units that were to come are still to come.
        let coming = |nanos: u64| left(nanos).max(nanos.min(1));
        match &mut self.numbers {
            Numbers::Refilling { ahead, retry, .. } => {
                (*ahead, *retry) = (ahead.saturating_sub(age), left(*retry));
            }
            Numbers::Known { full, next, retry, .. } => {
                (*full, *next, *retry) = (coming(*full), coming(*next), left(*retry));
            }
            Numbers::Unknown { retry } => *retry = left(*retry),
        }
        self
    }

    /// Returns the outcome with `units` more units left, which were charged but not used.
    pub(crate) fn with_more(mut self, units: u32) -> Self {
        match &mut self.numbers {
            Numbers::Refilling { ahead, interval, .. } => {
                *ahead = ahead.saturating_sub(interval.saturating_mul(units.into()));
            }
            Numbers::Known { limit, remaining, .. } => {
                *remaining = remaining.saturating_add(units).min(*limit);
            }
            Numbers::Unknown { .. } => {}
        }
        self
    }

    pub(crate) fn set_retry(&mut self, nanos: u64) {
        match &mut self.numbers {
            Numbers::Refilling { retry, .. }
            | Numbers::Known { retry, .. }
            | Numbers::Unknown { retry } => *retry = nanos,
        }
    }

    /// Returns [`retry_after`](Outcome::retry_after) in nanoseconds, [`NEVER`] if waiting does not
    /// help.
    pub(crate) fn retry(&self) -> u64 {
        match self.numbers {
            Numbers::Refilling { retry, .. }
            | Numbers::Known { retry, .. }
            | Numbers::Unknown { retry } => retry,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER - 1)
}
