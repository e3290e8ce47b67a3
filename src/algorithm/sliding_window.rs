//! The sliding window: the last period in equal buckets, aligned to the Unix epoch.
//!
//! The newest buckets count in full, the one that is leaving by the share of it still inside,
//! compared exactly. With one bucket this is the well-known two-counter form (the window before
//! weighted by its overlap). It takes a bucket's charges to be spread evenly, so that in a true
//! window it can admit more or less than the units by what one bucket holds: more buckets, closer.
//!
//! Only buckets that were charged are kept, at most one more than the quota has. Each keeps the
//! instant of its last charge instead of its number: after a change of the quota, buckets of
//! another width count it as charged then, which forgets none of it too early.

use super::{Counter, NEVER, Receipt, entries::Entries};
use crate::quota::{Algorithm, Quota};

#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingWindow(Entries);

/// The buckets of a quota.
#[derive(Clone, Copy)]
struct Buckets {
    number: u64,
    width: u64,
}

impl Buckets {
    fn of(quota: &Quota) -> Self {
        let number = match quota.counted_by() {
            Algorithm::SlidingWindow { buckets } => u64::from(buckets.max(1)),
            _ => 1,
        };
        Self { number, width: (quota.period_nanos() / number).max(1) }
    }

    fn same(self, one: u64, other: u64) -> bool {
        one / self.width == other / self.width
    }

    /// When the bucket of `instant` has left: it does so during the width before.
    fn left(self, instant: u64) -> u64 {
        (instant / self.width + self.number + 1) * self.width
    }
}

impl SlidingWindow {
    #[cfg(feature = "redis")]
    pub(super) fn kept(entries: Vec<(u64, u64)>) -> Self {
        Self(Entries::kept(entries))
    }

    /// What counts now, in units times the width.
    fn used(&self, buckets: Buckets, now: u64) -> u128 {
        let width = u128::from(buckets.width);
        // what has left, of the buckets that are leaving or gone
        let leaving = self.0.iter().map_while(|entry| {
            let inside = buckets.left(entry.at).saturating_sub(now);
            let outside = buckets.width.checked_sub(inside)?;
            Some(u128::from(entry.units) * u128::from(outside))
        });
        u128::from(self.0.total()) * width - leaving.sum::<u128>()
    }

    /// Whole units from what is used up to `limit`.
    fn below(&self, quota: &Quota, now: u64, limit: u64) -> u64 {
        let buckets = Buckets::of(quota);
        let width = u128::from(buckets.width);
        let free = (u128::from(limit) * width).saturating_sub(self.used(buckets, now)) / width;
        u64::try_from(free).unwrap_or(limit)
    }
}

impl Counter for SlidingWindow {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        self.below(quota, now, quota.units().into())
    }

    fn full(&self, quota: &Quota, now: u64) -> u64 {
        self.forget_at(quota).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let Some(room) = (u64::from(quota.units()) + soft).checked_sub(need) else {
            return NEVER;
        };
        let buckets = Buckets::of(quota);
        let (mut newer, mut fits) = (self.0.total(), 0);
        let mut entries = self.0.iter().peekable();
        while newer > room
            && let Some(oldest) = entries.next()
        {
            let mut leaving = oldest.units;
            while let Some(same) = entries.next_if(|next| buckets.same(next.at, oldest.at)) {
                leaving += same.units;
            }
            newer -= leaving;
            // as much of the bucket may still be inside as there is room for
            let inside = u128::from(room.saturating_sub(newer)) * u128::from(buckets.width);
            let inside = u64::try_from(inside / u128::from(leaving)).unwrap_or(buckets.width);
            fits = buckets.left(oldest.at) - inside;
        }
        fits.saturating_sub(now)
    }

    fn owable(&self, quota: &Quota, now: u64) -> u64 {
        self.below(quota, now, quota.late_limit())
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        let buckets = Buckets::of(quota);
        self.0.forget(|at| buckets.left(at) <= now);
        if units > 0 {
            self.0.add(now, units, |newest| newest >= now || buckets.same(newest, now));
        }
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, units: u64) {
        self.0.take(units, |_| true);
    }

    fn undo(&mut self, quota: &Quota, _now: u64, receipt: Receipt) {
        let buckets = Buckets::of(quota);
        self.0.take(receipt.units.into(), |at| buckets.same(at, receipt.charged));
    }

    fn forget_at(&self, quota: &Quota) -> u64 {
        self.0.newest().map_or(0, |newest| Buckets::of(quota).left(newest))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn at_most_one_bucket_more_than_the_quota_has_is_kept() {
        let quota = Quota::per_second(50).algorithm(Algorithm::SlidingWindow { buckets: 10 });
        let mut account = None;
        let mut most = 0;
        for step in 0..10_000 {
            take(&mut account, &quota, step * 7_000_000, Ask::units(1));
            settle(&mut account, &quota, step * 7_000_000, -1);
            let Some(State::SlidingWindow(counter)) = &account else { panic!("{account:?}") };
            most = most.max(counter.0.len());
        }
        assert!((10..=11).contains(&most), "{most}");
    }
}
