//! The sliding log: every charge of the last period, with its instant.
//!
//! Exact: no span of one period admits more than the units. The price is memory, an entry per
//! charge: at most twice the units (late charges), which is why the quota bounds them. Charges at
//! the same instant share an entry.

use super::{Counter, NEVER, Receipt, entries::Entries};
use crate::quota::Quota;

#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingLog(Entries);

impl SlidingLog {
    #[cfg(feature = "redis")]
    pub(super) fn kept(entries: Vec<(u64, u64)>) -> Self {
        Self(Entries::kept(entries))
    }

    /// Units charged in `(now − period, now]`.
    fn used(&self, quota: &Quota, now: u64) -> u64 {
        let gone = self.0.iter().take_while(|entry| entry.at + quota.period_nanos() <= now);
        self.0.total() - gone.map(|entry| entry.units).sum::<u64>()
    }
}

impl Counter for SlidingLog {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        u64::from(quota.units()).saturating_sub(self.used(quota, now))
    }

    fn full(&self, quota: &Quota, now: u64) -> u64 {
        self.forget_at(quota).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let Some(room) = (u64::from(quota.units()) + soft).checked_sub(need) else {
            return NEVER;
        };
        let (mut left, mut leaves) = (self.0.total(), 0);
        let mut entries = self.0.iter();
        while left > room
            && let Some(entry) = entries.next()
        {
            left -= entry.units;
            leaves = entry.at + quota.period_nanos();
        }
        leaves.saturating_sub(now)
    }

    fn owable(&self, quota: &Quota, now: u64) -> u64 {
        quota.late_limit().saturating_sub(self.used(quota, now))
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        self.0.forget(|at| at + quota.period_nanos() <= now);
        if units > 0 {
            self.0.add(now, units, |newest| newest >= now);
        }
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, units: u64) {
        self.0.take(units, |_| true);
    }

    fn undo(&mut self, _quota: &Quota, _now: u64, receipt: Receipt) {
        self.0.take(receipt.units.into(), |at| at == receipt.charged);
    }

    fn forget_at(&self, quota: &Quota) -> u64 {
        self.0.newest().map_or(0, |newest| newest + quota.period_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn charges_of_one_instant_share_an_entry() {
        let quota = Quota::per_second(50).algorithm(Algorithm::SlidingLog);
        let mut account = None;
        let mut most = 0;
        for step in 0..10_000 {
            take(&mut account, &quota, step * 7_000_000, Ask::units(1));
            take(&mut account, &quota, step * 7_000_000, Ask::units(1));
            let Some(State::SlidingLog(counter)) = &account else { panic!("{account:?}") };
            most = most.max(counter.0.len());
        }
        assert_eq!(most, 25);
    }
}
