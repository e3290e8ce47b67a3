//! Whether a key is hot, and how much is borrowed for it.
//!
//! A key is hot after a few asks in quick succession. The first lease is small; one that is over
//! quickly is followed by one of twice the size, and one of which more than half was left by one of
//! half the size, or by none.

use super::lease::Lease;

/// Asks that come no further apart than this make a key hot.
const GAP: u64 = 50_000_000;
/// So many of them are asked for as ever.
const COLD_ASKS: u32 = 3;
/// Calls that are borrowed at first.
const FIRST: u32 = 4;
/// What is borrowed is to last so long, and is given back if it lies unused for as long.
pub(super) const SPAN: u64 = 200_000_000;
/// How long a key for which leases do not pay is asked for as ever.
const REST: u64 = 1_000_000_000;
/// So many calls of a lease make it worth its trip.
const WORTH: u32 = 3;

/// The asks of one call for which nothing was in hand. Instants are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last: u64,
    /// Asks in quick succession.
    run: u32,
    calls: u32,
    waiting: u32,
    /// As many as may ever be borrowed.
    most: u32,
    /// Nothing is borrowed until then.
    rests: u64,
    /// No more than `few` are borrowed until then.
    scarce: u64,
    few: u32,
}

impl Pace {
    /// How many calls to borrow, at most `most`; 0 to ask for this one only.
    pub(super) fn ask(&mut self, now: u64, most: u32) -> u32 {
        if now.saturating_sub(self.last) > GAP {
            (self.run, self.calls) = (0, FIRST);
        }
        (self.last, self.most) = (now, most);
        self.run = self.run.saturating_add(1);
        if self.run <= COLD_ASKS || now < self.rests {
            return 0;
        }
        let calls = self.calls.max(FIRST).min(most);
        let calls = if self.is_scarce(now) { calls.min(self.few) } else { calls };
        if calls < 2 { 0 } else { calls }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// A lease is over, `left` calls of which were not used and have not faded. What fades soon after
    /// it was borrowed is not missed by anybody, since the account was nearly full.
    pub(super) fn ended(&mut self, lease: &Lease, left: u32, now: u64) {
        let calls = lease.calls;
        self.last = self.last.max(lease.last);
        let wide =
            if lease.age(now) < SPAN { left > calls / 2 } else { lease.admitted < calls / 2 };
        self.calls = match lease.age(now) {
            // it says what the store had, not what was wanted
            _ if lease.cut => self.calls,
            _ if wide => calls / 2,
            ..SPAN => calls.saturating_mul(2).max(self.waiting),
            _ => calls,
        };
        // it fades too quickly to be of use, whatever its size, or nobody wants it
        if self.calls < FIRST || calls >= self.most && lease.admitted < WORTH {
            (self.rests, self.calls) = (now.saturating_add(REST), FIRST);
        }
    }

    /// So many calls waited for what was borrowed.
    pub(super) fn crowded(&mut self, waiting: usize) {
        self.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    }

    /// The store has little more than what comes back, for so long: `few` calls at a time.
    pub(super) fn scarce(&mut self, few: u32, time: u64, now: u64) {
        (self.few, self.scarce) = (few, now.saturating_add(time.min(REST)));
    }

    pub(super) fn is_scarce(&self, now: u64) -> bool {
        now < self.scarce
    }

    /// The store fails, or what was borrowed was of no use.
    pub(super) fn cool(&mut self) {
        (self.run, self.calls) = (0, FIRST);
    }
}
