//! The size of leases.
//!
//! A lease is for the calls of the last 200 ms, up to the share of this process. If the store has
//! too few units, the next leases are for the units that are refilled in 100 ms.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use smallvec::SmallVec;

use super::lease::Lease;
use crate::store::Charge;

/// The time that a lease should last. An unused lease is returned after this time.
pub(super) const SPAN: u64 = 200_000_000;
/// The minimum number of recent calls for a lease.
const HOT: u64 = 4;
/// The count of one call. Calls are counted in thousandths.
const CALL: u64 = 1_000;
/// The maximum count.
const MAX: u64 = u32::MAX as u64 * CALL;

/// The recent calls with the same keys. Instants are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Sizing {
    /// The number of calls in the 200 ms before `last`, in thousandths.
    recent: u64,
    last: u64,
    /// The instant until which leases are limited to `max_calls`.
    scarce_until: u64,
    max_calls: u32,
}

impl Sizing {
    /// Returns the number of calls of the next lease. Below 2, no lease is created.
    pub(super) fn calls_to_borrow(&self, now: u64, max_lease: u32) -> u32 {
        let calls = (self.recent(now) + CALL / 2) / CALL + 1;
        if calls < HOT {
            return 0;
        }
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).min(max_lease);
        if self.is_scarce(now) { calls.min(self.max_calls) } else { calls }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn count(&mut self, calls: u64, now: u64) {
        self.recent = (self.recent(now) + calls * CALL).min(MAX);
        self.last = self.last.max(now);
    }

    /// Counts the calls of an ended lease. Expired units count as used.
    pub(super) fn lease_ended(&mut self, lease: &Lease, left: u32, now: u64) {
        let gone = u64::from(lease.calls.saturating_sub(left));
        self.count(gone * SPAN / lease.age(now).max(SPAN), now);
    }

    /// Limits leases to `max_calls` for `time`, because the store has few units.
    pub(super) fn set_scarce(&mut self, max_calls: u32, time: u64, now: u64) {
        (self.max_calls, self.scarce_until) = (max_calls, now.saturating_add(time.min(SPAN)));
    }

    pub(super) fn is_scarce(&self, now: u64) -> bool {
        now < self.scarce_until
    }

    /// Sets the count to 0 after a failure or an unusable lease.
    pub(super) fn reset(&mut self) {
        self.recent = 0;
    }

    /// Estimates the number of calls in the 200 ms before `now`.
    fn recent(&self, now: u64) -> u64 {
        const MICROSECOND: u64 = 1_000;
        let kept = SPAN.saturating_sub(now.saturating_sub(self.last)) / MICROSECOND;
        self.recent * kept / (SPAN / MICROSECOND)
    }
}

/// The value of a counter when a full limit is borrowed from one account.
const FULL_LIMIT: u64 = 1_000_000_000;
/// The number of counters. Several accounts may share a counter.
const STRIPES: usize = 1_024;

#[derive(Debug)]
pub(super) struct Shares {
    borrowed: Box<[AtomicU64]>,
    max: u64,
}

/// The reserved part of each limit for one lease, released on drop.
#[derive(Debug, Default)]
pub(super) struct Share(Option<Arc<Shares>>, SmallVec<[(usize, u64); 2]>);

impl Shares {
    pub(super) fn new(percent: u32) -> Arc<Self> {
        let borrowed = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { borrowed, max: FULL_LIMIT / 100 * u64::from(percent) })
    }

    /// Reserves a part of each limit for up to `calls` calls. Returns the number of calls that fit.
    pub(super) fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        accounts: &[u64],
        calls: u32,
    ) -> (u32, Share) {
        let parts = charges.iter().map(|charge| {
            let limit = charge.quotas().iter().map(|quota| u64::from(quota.burst())).min();
            (u64::from(charge.cost()) * FULL_LIMIT).div_ceil(limit.unwrap_or(1).max(1))
        });
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let at = accounts.iter().map(|account| *account as usize % STRIPES);
        let parts: SmallVec<[(usize, u64); 2]> = at.zip(parts).collect();
        let free = |at: usize| self.max.saturating_sub(self.borrowed[at].load(Acquire));
        let room = parts.iter().filter_map(|&(at, part)| free(at).checked_div(part)).min();
        let calls = calls.min(u32::try_from(room.unwrap_or(0)).unwrap_or(u32::MAX));
        let mut share = Share(Some(self.clone()), SmallVec::new());
        for (at, part) in parts {
            let part = part * u64::from(calls);
            let borrowed = self.borrowed[at].fetch_add(part, AcqRel) + part;
            share.1.push((at, part));
            if borrowed > self.max {
                // Other calls have taken the room.
                return (0, Share::default());
            }
        }
        (calls, share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Self(Some(shares), parts) = self else { return };
        for (at, part) in parts.drain(..) {
            shares.borrowed[at].fetch_sub(part, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Makes a call every `gap` milliseconds, and returns the size of the next lease.
    fn after(calls: u64, gap: u64) -> u32 {
        let mut sizing = Sizing::default();
        (0..calls).for_each(|n| sizing.count(1, n * gap * MILLI));
        sizing.calls_to_borrow(calls * gap * MILLI, 1_000)
    }

    #[test]
    fn a_lease_is_for_the_calls_of_the_last_200_ms() {
        assert_eq!([10, 5, 2, 1].map(|gap| after(2_000, gap)), [20, 40, 100, 200]);
        assert_eq!([2, 3, 19, 5_000].map(|calls| after(calls, 0)), [0, 4, 20, 1_000]);
    }

    #[test]
    fn a_key_without_four_calls_in_200_ms_gets_no_lease() {
        assert_eq!([50, 70, 199, 200, 1_000].map(|gap| after(100, gap)), [4, 0, 0, 0, 0]);
    }

    #[test]
    fn leases_are_smaller_while_units_are_scarce() {
        let mut sizing = Sizing::default();
        sizing.count(100, 0);
        sizing.set_scarce(7, MILLI, 0);
        assert_eq!([0, MILLI].map(|at| sizing.calls_to_borrow(at, 50)), [7, 50]);
        sizing.set_scarce(7, u64::MAX, 0);
        assert_eq!([SPAN - 1, SPAN].map(|at| sizing.is_scarce(at)), [true, false]);
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        let mut sizing = Sizing::default();
        (0..1_000).for_each(|_| sizing.count(u32::MAX.into(), 0));
        assert_eq!(sizing.calls_to_borrow(0, u32::MAX), u32::MAX);
    }
}
