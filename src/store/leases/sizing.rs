//! The size of leases, and whether a key is hot.
//!
//! A key is hot after a few requests in quick succession. The first lease is small. A lease that is
//! used up quickly is followed by one of twice the size. One of which more than half is left is
//! followed by one of half the size, or by none.

use super::lease::Lease;

/// The largest gap between requests that make a key hot.
const GAP: u64 = 50_000_000;
/// The number of such requests that are still sent one by one.
const COLD_ASKS: u32 = 3;
/// The number of calls of the first lease.
const FIRST: u32 = 4;
/// The target duration of a lease, and the time after which an unused lease is returned.
pub(super) const SPAN: u64 = 200_000_000;
/// The time without leases after a lease that did not pay off.
const REST: u64 = 1_000_000_000;
/// The number of calls from which on a lease is worth its round trip.
const WORTH: u32 = 3;

/// The requests of one kind of call that found no lease. Instants are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Sizing {
    /// The instant of the last call.
    last: u64,
    /// The number of requests in quick succession.
    consecutive: u32,
    calls: u32,
    waiting: u32,
    /// The largest permitted lease.
    max_lease: u32,
    /// No lease until this instant.
    paused_until: u64,
    /// At most `max_calls` per lease until this instant.
    scarce_until: u64,
    max_calls: u32,
}

impl Sizing {
    /// Returns the number of calls to borrow, at most `max_lease`; 0 to send only this call.
    pub(super) fn calls_to_borrow(&mut self, now: u64, max_lease: u32) -> u32 {
        if now.saturating_sub(self.last) > GAP {
            (self.consecutive, self.calls) = (0, FIRST);
        }
        (self.last, self.max_lease) = (now, max_lease);
        self.consecutive = self.consecutive.saturating_add(1);
        if self.consecutive <= COLD_ASKS || now < self.paused_until {
            return 0;
        }
        let calls = self.calls.max(FIRST).min(max_lease);
        let calls = if self.is_scarce(now) { calls.min(self.max_calls) } else { calls };
        if calls < 2 { 0 } else { calls }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Adapts the size after a lease, of which `left` calls are neither used nor expired. If units
    /// expire soon after borrowing, they are not needed, because the account was nearly full.
    pub(super) fn lease_ended(&mut self, lease: &Lease, left: u32, now: u64) {
        let calls = lease.calls;
        self.last = self.last.max(lease.last);
        let too_large =
            if lease.age(now) < SPAN { left > calls / 2 } else { lease.admitted < calls / 2 };
        self.calls = match lease.age(now) {
            // The size of a partial lease shows what the store had, not what was wanted.
            _ if lease.partial => self.calls,
            _ if too_large => calls / 2,
            ..SPAN => calls.saturating_mul(2).max(self.waiting),
            _ => calls,
        };
        // Any lease expires too quickly to be useful, or there is no demand.
        if self.calls < FIRST || calls >= self.max_lease && lease.admitted < WORTH {
            (self.paused_until, self.calls) = (now.saturating_add(REST), FIRST);
        }
    }

    /// Sets the number of calls that waited for the lease.
    pub(super) fn set_waiting(&mut self, waiting: usize) {
        self.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    }

    /// Limits leases to `max_calls` for a time, because the store has little more than what comes
    /// back.
    pub(super) fn set_scarce(&mut self, max_calls: u32, time: u64, now: u64) {
        (self.max_calls, self.scarce_until) = (max_calls, now.saturating_add(time.min(REST)));
    }

    pub(super) fn is_scarce(&self, now: u64) -> bool {
        now < self.scarce_until
    }

    /// Starts over, because the store failed or the lease was of no use.
    pub(super) fn reset(&mut self) {
        (self.consecutive, self.calls) = (0, FIRST);
    }
}
