//! The sliding window: the last period in equal buckets, aligned to the Unix epoch. The sliding log:
//! a window whose buckets are nanoseconds.
//!
//! The oldest bucket is partly outside the period. Its units count in proportion to the part
//! inside. With one bucket, this is the well-known algorithm with two counters.
//!
//! Any time span that is one bucket shorter than the period has at most the units of the quota. A
//! whole period has less than twice these units. The units of a soft quota are those with `soft`, and late
//! charges add up to `max_debt`.
//!
//! **State.** The charges of the last period, oldest first, each with its instant; those of one bucket are
//! one entry, and those of one instant are one entry of a log. Each bucket keeps the instant of its last
//! charge, because the number of buckets can change.
//!
//! **Invariant.** The weighted sum of the entries is at most the units, and `soft`, after each charge that
//! was allowed.
//! The weight of a bucket is 1 while it is inside the period, and falls to 0 while it leaves. It is the
//! same for all charges of a bucket, so a client that charges early in a bucket waits longer, and never
//! gains.
//!
//! **Example.** Ten a minute, in two buckets of 30 s.
//!
//! | time | buckets with their weight | sum | demand | decision |
//! |--:|---|--:|--:|---|
//! | 0:10 | | 0 | 6 | allowed |
//! | 0:40 | 6·1 | 6 | 4 | allowed |
//! | 1:00 | 6·1, 4·1 | 10 | 2 | denied: the first bucket must lose a third of its weight, in 10 s |
//! | 1:10 | 6·⅔, 4·1 | 8 | 2 | allowed |
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use std::time::Duration;
//! use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let into_the_minute = Duration::from_secs(clock.now().as_secs() % 60);
//! clock.advance(Duration::from_secs(60 + 10) - into_the_minute);
//! let limiter = Limiter::named("api", clock.store(100));
//! let quota = Quota::per_minute(10).with_algorithm(Algorithm::SlidingWindow { buckets: 2 });
//! assert!(limiter.take("alice", &quota, 6).now().is_allowed());
//!
//! clock.advance(Duration::from_secs(30));
//! assert!(limiter.take("alice", &quota, 4).now().is_allowed());
//!
//! clock.advance(Duration::from_secs(20));
//! let denied = limiter.take("alice", &quota, 2).now();
//! assert_eq!(denied.retry_after(), Some(Duration::from_secs(10)));
//!
//! clock.advance(Duration::from_secs(10));
//! assert!(limiter.take("alice", &quota, 2).now().is_allowed());
//! # }
//! ```
//!
//! The log is exact: its buckets are as short as its clock shows, so nothing is ever partly outside. It
//! needs one entry per charge, so the units of its quotas are limited.

use std::collections::VecDeque;

use super::{Counter, NEVER, Receipt};
use crate::quota::{Algorithm, Quota};

/// The charges of the last period, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sliding {
    entries: VecDeque<Entry>,
    /// The sum of the units of all charges.
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    units: u64,
}

/// A bucket that leaves the period.
struct Leaving {
    at: u64,
    units: u64,
    /// The units of all newer buckets.
    newer: u64,
}

/// The buckets of a quota.
#[derive(Clone, Copy)]
struct Buckets {
    number: u64,
    width: u64,
}

impl Buckets {
    fn of(quota: &Quota) -> Self {
        let period = quota.period_nanos();
        if quota.algorithm() == Algorithm::SlidingLog {
            // Charges stop counting after exactly one period.
            return Self {
                number: period.saturating_sub(1),
                width: 1,
            };
        }
        let number = u64::from(quota.algorithm().buckets().max(1));
        Self {
            number,
            width: (period / number).max(1),
        }
    }

    fn is_same(self, one: u64, other: u64) -> bool {
        // The first comparison avoids the divisions for a log.
        one.abs_diff(other) < self.width && one / self.width == other / self.width
    }

    /// Returns the instant at which charges made at `instant` stop counting.
    fn expires_at(self, instant: u64) -> u64 {
        (instant / self.width + self.number + 1) * self.width
    }
}

/// Creates an account from pairs of an instant and its units, oldest first.
#[cfg(feature = "redis")]
impl From<Vec<(u64, u64)>> for Sliding {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let total = pairs.iter().map(|(_, units)| units).sum();
        Self {
            entries: pairs
                .into_iter()
                .map(|(at, units)| Entry { at, units })
                .collect(),
            total,
        }
    }
}

impl Sliding {
    /// Returns a copy with a single charge: all units, at the newest instant.
    pub(super) fn condensed(&self) -> Self {
        let all = self.entries.back().map(|newest| Entry {
            units: self.total,
            ..*newest
        });
        Self {
            entries: all.into_iter().collect(),
            total: self.total,
        }
    }

    /// Removes up to `units` units, newest first, from charges whose instant `matches` accepts.
    fn remove(&mut self, mut units: u64, matches: impl Fn(u64) -> bool) {
        for charge in self
            .entries
            .iter_mut()
            .rev()
            .filter(|charge| matches(charge.at))
        {
            let removed = charge.units.min(units);
            charge.units -= removed;
            units -= removed;
            self.total -= removed;
            if units == 0 {
                break;
            }
        }
        self.entries.retain(|charge| charge.units > 0);
    }

    /// Returns the bucket that must leave the period, at least in part, before the period has at most
    /// `room` units. Returns `None` if it has no more than these.
    fn leaving(&self, buckets: Buckets, room: u64) -> Option<Leaving> {
        let mut newer = self.total;
        let mut last = None;
        let mut charges = self.entries.iter().peekable();
        while newer > room
            && let Some(oldest) = charges.next()
        {
            let mut units = oldest.units;
            while let Some(same) = charges.next_if(|next| buckets.is_same(next.at, oldest.at)) {
                units += same.units;
            }
            newer -= units;
            let at = oldest.at;
            last = Some(Leaving { at, units, newer });
        }
        last
    }

    /// Returns the number of whole units that are unused under `limit`.
    fn room(&self, quota: &Quota, now: u64, limit: u64) -> u64 {
        let buckets = Buckets::of(quota);
        let width = u128::from(buckets.width);
        // Parts of buckets that are outside the period. Products with the width avoid fractions.
        let outside = self.entries.iter().map_while(|charge| {
            let inside = buckets.expires_at(charge.at).saturating_sub(now);
            let share = buckets.width.checked_sub(inside)?;
            Some(u128::from(charge.units) * u128::from(share))
        });
        let used = u128::from(self.total) * width - outside.sum::<u128>();
        let free = (u128::from(limit) * width).saturating_sub(used) / width;
        u64::try_from(free).unwrap_or(limit)
    }
}

impl Counter for Sliding {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        self.room(quota, now, quota.units().into())
    }

    fn reset_ns(&self, quota: &Quota, now: u64) -> u64 {
        self.expires_at(quota).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let Some(room) = (u64::from(quota.units()) + soft).checked_sub(need) else {
            return NEVER;
        };
        let buckets = Buckets::of(quota);
        let Some(bucket) = self.leaving(buckets, room) else {
            return 0;
        };
        // The demand fits as soon as the bucket's part inside the period is small enough.
        let inside = u128::from(room.saturating_sub(bucket.newer)) * u128::from(buckets.width);
        let inside = u64::try_from(inside / u128::from(bucket.units)).unwrap_or(buckets.width);
        (buckets.expires_at(bucket.at) - inside).saturating_sub(now)
    }

    fn late_room(&self, quota: &Quota, now: u64) -> u64 {
        self.room(quota, now, quota.late_limit())
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        let buckets = Buckets::of(quota);
        while let Some(oldest) = self.entries.front().copied()
            && buckets.expires_at(oldest.at) <= now
        {
            self.total -= oldest.units;
            self.entries.pop_front();
        }
        self.total += units;
        match self.entries.back_mut() {
            _ if units == 0 => {}
            Some(newest) if newest.at >= now || buckets.is_same(newest.at, now) => {
                newest.at = newest.at.max(now);
                newest.units += units;
            }
            _ => self.entries.push_back(Entry { at: now, units }),
        }
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, units: u64) {
        self.remove(units, |_| true);
    }

    fn undo(&mut self, quota: &Quota, _now: u64, receipt: Receipt) {
        let buckets = Buckets::of(quota);
        self.remove(receipt.units.into(), |at| {
            buckets.is_same(at, receipt.charged)
        });
    }

    fn expires_at(&self, quota: &Quota) -> u64 {
        self.entries
            .back()
            .map_or(0, |newest| Buckets::of(quota).expires_at(newest.at))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn at_most_one_bucket_more_than_the_quota_has_is_stored() {
        let quota = Quota::per_second(50).with_algorithm(Algorithm::SlidingWindow { buckets: 10 });
        let mut account = None;
        let mut most = 0;
        for step in 0..10_000 {
            take(&mut account, &quota, step * 7_000_000, Demand::units(1));
            adjust(&mut account, &quota, step * 7_000_000, 1);
            let Some(AccountState::SlidingWindow(counter)) = &account else {
                panic!("{account:?}")
            };
            most = most.max(counter.entries.len());
        }
        assert!((10..=11).contains(&most), "{most}");
    }

    #[test]
    fn charges_at_the_same_instant_share_an_entry() {
        let quota = Quota::per_second(50).with_algorithm(Algorithm::SlidingLog);
        let mut account = None;
        let mut most = 0;
        for step in 0..10_000 {
            take(&mut account, &quota, step * 7_000_000, Demand::units(1));
            take(&mut account, &quota, step * 7_000_000, Demand::units(1));
            let Some(AccountState::SlidingLog(counter)) = &account else {
                panic!("{account:?}")
            };
            most = most.max(counter.entries.len());
        }
        assert_eq!(most, 25);
    }
}
