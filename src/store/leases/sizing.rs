//! Detects hot keys and selects the size of leases.
//!
//! A key is hot after a few requests in quick succession. The first lease is small. If a lease is
//! used up quickly, the next lease is twice as large. If more than half of a lease is left, the
//! next lease is half as large, or there is no next lease.

use super::lease::Lease;

/// The maximum time between two requests that count as a quick succession.
const GAP: u64 = 50_000_000;
/// The number of requests in quick succession that are sent one by one before the key is hot.
const COLD_ASKS: u32 = 3;
/// The number of calls of the first lease.
const FIRST: u32 = 4;
/// The duration for which a lease should last. An unused lease is returned after the same duration.
pub(super) const SPAN: u64 = 200_000_000;
/// The pause without leases that follows a lease that was not worth its round trip.
const REST: u64 = 1_000_000_000;
/// The minimum number of calls for which a lease is worth its round trip.
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
    /// The maximum number of calls in a lease.
    max_lease: u32,
    /// The instant until which no lease is borrowed.
    paused_until: u64,
    /// The instant until which a lease has at most `max_calls` calls.
    scarce_until: u64,
    max_calls: u32,
}

impl Sizing {
    /// Returns the number of calls to borrow, at most `max_lease`. Returns 0 if only this call
    /// should be sent.
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

    /// Adapts the size of the next lease. `left` is the number of calls of the ended lease that are
    /// neither used nor expired. Units that expired soon after they were borrowed were not needed,
    /// because the account was nearly full.
    pub(super) fn lease_ended(&mut self, lease: &Lease, left: u32, now: u64) {
        let calls = lease.calls;
        self.last = self.last.max(lease.last);
        let too_large =
            if lease.age(now) < SPAN { left > calls / 2 } else { lease.admitted < calls / 2 };
        self.calls = match lease.age(now) {
            // The size of a partial lease depends on the units in the store and not on the demand.
            _ if lease.partial => self.calls,
            _ if too_large => calls / 2,
            ..SPAN => calls.saturating_mul(2).max(self.waiting),
            _ => calls,
        };
        // Either each lease expires too quickly to be useful, or there is no demand.
        if self.calls < FIRST || calls >= self.max_lease && lease.admitted < WORTH {
            (self.paused_until, self.calls) = (now.saturating_add(REST), FIRST);
        }
    }

    /// Sets the number of calls that waited for the lease.
    pub(super) fn set_waiting(&mut self, waiting: usize) {
        self.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    }

    /// Limits leases to `max_calls` for `time`, because the store has few units beyond those that
    /// come back.
    pub(super) fn set_scarce(&mut self, max_calls: u32, time: u64, now: u64) {
        (self.max_calls, self.scarce_until) = (max_calls, now.saturating_add(time.min(REST)));
    }

    pub(super) fn is_scarce(&self, now: u64) -> bool {
        now < self.scarce_until
    }

    /// Forgets the observations, because the store failed or the lease was not useful.
    pub(super) fn reset(&mut self) {
        (self.consecutive, self.calls) = (0, FIRST);
    }
}
