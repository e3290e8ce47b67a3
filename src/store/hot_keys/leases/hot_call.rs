//! Recent calls of hot keys.

use tokio::{sync::watch, time::Instant};

use super::{SPAN, lease::Lease};
use crate::{decision::Decision, store::Charge};

/// The minimum number of recent calls for a lease.
const HOT: u32 = 4;

/// Recent calls with the same keys, which share a lease.
#[derive(Default)]
pub(super) struct HotCall {
    pub(super) lease: Option<Box<Lease>>,
    /// The latest borrow operation.
    pub(super) borrow: Option<BorrowOperation>,
    /// The number of calls in the 200 ms before `last_call`.
    recent: f64,
    last_call: u64,
    /// The instant until which leases are limited to `max_calls`.
    pub(super) limited_until: u64,
    pub(super) max_calls: u32,
}

/// A borrow operation of a call, for which others wait.
#[derive(Clone)]
pub(super) struct BorrowOperation {
    pub(super) start: Instant,
    /// Closed when the operation ends.
    pub(super) end: watch::Receiver<()>,
}

impl HotCall {
    /// Returns the rank for a replacement, or `None` while the entry is in use.
    pub(super) fn rank(&self) -> Option<u64> {
        let in_use = self.lease.is_some() || self.borrow_operation().is_some();
        (!in_use).then_some(self.last_call)
    }

    /// Returns the borrow operation in progress, if any.
    pub(super) fn borrow_operation(&self) -> Option<BorrowOperation> {
        let borrow = self.borrow.clone();
        borrow.filter(|operation| operation.end.has_changed().is_ok())
    }

    /// Admits a call by the lease, if it is not too old and has enough units.
    pub(super) fn admit(
        &mut self,
        charges: &[Charge<'_>],
        now: u64,
        max_age: u64,
    ) -> Option<Decision> {
        let lease = self.lease.as_mut()?;
        if lease.age(now) >= max_age {
            return None;
        }
        lease.admit(charges, now)
    }

    pub(super) fn end_lease(&mut self, now: u64) -> Option<Box<Lease>> {
        let lease = self.lease.take()?;
        // Expired units count as used.
        let gone = f64::from(lease.calls_gone(now));
        self.count(gone * SPAN as f64 / lease.age(now).max(SPAN) as f64, now);
        Some(lease)
    }

    /// Returns the number of calls of the next lease, those of the last 200 ms, if the call is hot.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the largest count is saturated"
    )]
    pub(super) fn lease_size(&self, now: u64) -> Option<u32> {
        let calls = self.recent(now).round() as u32;
        let most = if now < self.limited_until {
            self.max_calls
        } else {
            u32::MAX
        };
        (calls >= HOT).then_some(calls.min(most))
    }

    pub(super) fn count(&mut self, calls: f64, now: u64) {
        self.recent = self.recent(now) + calls;
        self.last_call = self.last_call.max(now);
    }

    /// Estimates the number of calls in the 200 ms before `now`.
    fn recent(&self, now: u64) -> f64 {
        let gone = now.saturating_sub(self.last_call).min(SPAN);
        self.recent * (SPAN - gone) as f64 / SPAN as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Makes a call every `gap` milliseconds, and returns the size of the next lease.
    fn after(calls: u64, gap: u64) -> u32 {
        let mut hot = HotCall::default();
        (0..=calls).for_each(|n| hot.count(1.0, n * gap * MILLI));
        hot.lease_size(calls * gap * MILLI).unwrap_or(0)
    }

    #[test]
    fn a_lease_is_for_the_calls_of_the_last_200_ms() {
        assert_eq!(
            [10, 5, 2, 1].map(|gap| after(2_000, gap)),
            [20, 40, 100, 200]
        );
        assert_eq!(
            [2, 3, 19, 5_000].map(|calls| after(calls, 0)),
            [0, 4, 20, 5_001]
        );
    }

    #[test]
    fn a_key_without_four_calls_in_200_ms_gets_no_lease() {
        assert_eq!(
            [50, 70, 199, 200, 1_000].map(|gap| after(100, gap)),
            [4, 0, 0, 0, 0]
        );
    }

    #[test]
    fn leases_are_smaller_while_units_are_scarce() {
        let mut hot = HotCall::default();
        hot.count(100.0, 0);
        (hot.max_calls, hot.limited_until) = (7, SPAN);
        hot.count(100.0, SPAN - 1);
        assert_eq!(
            [SPAN - 1, SPAN].map(|at| hot.lease_size(at)),
            [7, 100].map(Some)
        );
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        let mut hot = HotCall::default();
        (0..1_000).for_each(|_| hot.count(u32::MAX.into(), 0));
        assert_eq!(hot.lease_size(0), Some(u32::MAX));
    }
}
