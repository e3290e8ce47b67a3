//! The sliding window: the last period in equal buckets, aligned to the Unix epoch.
//!
//! The oldest bucket is partly outside the period. Its units count in proportion to the part
//! inside. With one bucket, this is the well-known algorithm with two counters.
//!
//! Any time span that is one bucket shorter than the period has at most the units of the quota. A
//! whole period has less than twice these units.
//!
//! Each bucket keeps the instant of its last charge, because the number of buckets can change.

use super::{NEVER, Receipt, counted::Counter, entries::Entries};
use crate::quota::Quota;

#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingWindow(pub(super) Entries);

/// The buckets of a quota.
#[derive(Clone, Copy)]
struct Buckets {
    number: u64,
    width: u64,
}

impl Buckets {
    fn of(quota: &Quota) -> Self {
        let number = u64::from(quota.algorithm().buckets().max(1));
        Self { number, width: (quota.period_nanos() / number).max(1) }
    }

    fn is_same(self, one: u64, other: u64) -> bool {
        one / self.width == other / self.width
    }

    /// Returns the instant at which charges made at `instant` stop counting.
    fn expires_at(self, instant: u64) -> u64 {
        (instant / self.width + self.number + 1) * self.width
    }
}

impl SlidingWindow {
    /// Returns the used units, multiplied by the bucket width to avoid fractions.
    fn used(&self, buckets: Buckets, now: u64) -> u128 {
        let width = u128::from(buckets.width);
        // Parts of buckets that are outside the period.
        let outside = self.0.iter().map_while(|entry| {
            let inside = buckets.expires_at(entry.at).saturating_sub(now);
            let share = buckets.width.checked_sub(inside)?;
            Some(u128::from(entry.units) * u128::from(share))
        });
        u128::from(self.0.total()) * width - outside.sum::<u128>()
    }

    /// Returns the number of whole units that are unused under `limit`.
    fn room(&self, quota: &Quota, now: u64, limit: u64) -> u64 {
        let buckets = Buckets::of(quota);
        let width = u128::from(buckets.width);
        let free = (u128::from(limit) * width).saturating_sub(self.used(buckets, now)) / width;
        u64::try_from(free).unwrap_or(limit)
    }
}

impl Counter for SlidingWindow {
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
        let (mut newer, mut fits_at) = (self.0.total(), 0);
        let mut entries = self.0.iter().peekable();
        while newer > room
            && let Some(oldest) = entries.next()
        {
            let mut leaving = oldest.units;
            while let Some(same) = entries.next_if(|next| buckets.is_same(next.at, oldest.at)) {
                leaving += same.units;
            }
            newer -= leaving;
            // The demand fits as soon as the bucket's part inside the period is small enough.
            let inside = u128::from(room.saturating_sub(newer)) * u128::from(buckets.width);
            let inside = u64::try_from(inside / u128::from(leaving)).unwrap_or(buckets.width);
            fits_at = buckets.expires_at(oldest.at) - inside;
        }
        fits_at.saturating_sub(now)
    }

    fn late_room(&self, quota: &Quota, now: u64) -> u64 {
        self.room(quota, now, quota.late_limit())
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        let buckets = Buckets::of(quota);
        self.0.drop_oldest(|at| buckets.expires_at(at) <= now);
        if units > 0 {
            self.0.add(now, units, |newest| newest >= now || buckets.is_same(newest, now));
        }
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, units: u64) {
        self.0.remove(units, |_| true);
    }

    fn undo(&mut self, quota: &Quota, _now: u64, receipt: Receipt) {
        let buckets = Buckets::of(quota);
        self.0.remove(receipt.units.into(), |at| buckets.is_same(at, receipt.charged));
    }

    fn expires_at(&self, quota: &Quota) -> u64 {
        self.0.newest().map_or(0, |newest| Buckets::of(quota).expires_at(newest))
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
            let Some(AccountState::Counted(CountedState::SlidingWindow(counter))) = &account else {
                panic!("{account:?}")
            };
            most = most.max(counter.0.len());
        }
        assert!((10..=11).contains(&most), "{most}");
    }
}
