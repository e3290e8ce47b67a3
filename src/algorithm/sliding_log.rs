//! The sliding log: a list of all charges of the last period.
//!
//! The log is exact. It needs one entry per charge, so the units of its quotas are limited.

use super::{NEVER, Receipt, counted::Counter, entries::Entries};
use crate::quota::Quota;

#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingLog(pub(super) Entries);

impl SlidingLog {
    /// Returns a log with a single entry: all units, at the newest instant.
    pub(super) fn condensed(&self) -> Self {
        let mut log = Entries::default();
        if let Some(newest) = self.0.newest() {
            log.add(newest, self.0.total(), |_| false);
        }
        Self(log)
    }

    /// Returns the units charged within the last period.
    fn used(&self, quota: &Quota, now: u64) -> u64 {
        let expired = self.0.iter().take_while(|entry| entry.at + quota.period_nanos() <= now);
        self.0.total() - expired.map(|entry| entry.units).sum::<u64>()
    }
}

impl Counter for SlidingLog {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        u64::from(quota.units()).saturating_sub(self.used(quota, now))
    }

    fn reset_ns(&self, quota: &Quota, now: u64) -> u64 {
        self.expires_at(quota).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let Some(room) = (u64::from(quota.units()) + soft).checked_sub(need) else {
            return NEVER;
        };
        let (mut left, mut fits_at) = (self.0.total(), 0);
        let mut entries = self.0.iter();
        while left > room
            && let Some(entry) = entries.next()
        {
            left -= entry.units;
            fits_at = entry.at + quota.period_nanos();
        }
        fits_at.saturating_sub(now)
    }

    fn late_room(&self, quota: &Quota, now: u64) -> u64 {
        quota.late_limit().saturating_sub(self.used(quota, now))
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        self.0.drop_oldest(|at| at + quota.period_nanos() <= now);
        if units > 0 {
            self.0.add(now, units, |newest| newest >= now);
        }
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, units: u64) {
        self.0.remove(units, |_| true);
    }

    fn undo(&mut self, _quota: &Quota, _now: u64, receipt: Receipt) {
        self.0.remove(receipt.units.into(), |at| at == receipt.charged);
    }

    fn expires_at(&self, quota: &Quota) -> u64 {
        self.0.newest().map_or(0, |newest| newest + quota.period_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn charges_at_the_same_instant_share_an_entry() {
        let quota = Quota::per_second(50).with_algorithm(Algorithm::SlidingLog);
        let mut account = None;
        let mut most = 0;
        for step in 0..10_000 {
            take(&mut account, &quota, step * 7_000_000, Demand::units(1));
            take(&mut account, &quota, step * 7_000_000, Demand::units(1));
            let Some(AccountState::Counted(CountedState::SlidingLog(counter))) = &account else {
                panic!("{account:?}")
            };
            most = most.max(counter.0.len());
        }
        assert_eq!(most, 25);
    }
}
