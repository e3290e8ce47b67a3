//! One set of slots, charged like the embedded store, by the simplest GCRA.

use std::sync::Arc;

use loom::thread;
use tower_sluice::rule::RuleName;

use super::{
    overflow::{Overflow, SharedAddress},
    slots::Slots,
    sync::is_thread,
};

/// The time in which one unit returns.
pub(crate) const T: u64 = 10;

/// Accounts. The lowest bit of an account selects the slot at which its search begins.
pub(crate) const ALICE: u64 = 2;
pub(crate) const BOB: u64 = 4;
pub(crate) const CAROL: u64 = 6;
pub(crate) const OTHER: u64 = 3;
/// The end of a debt that outlasts every model.
pub(crate) const LONG: Instant = 1_000;

/// The state of an account: the instant at which it is full again.
pub(crate) type Instant = u64;

/// A charge to the key's own account, or to the account that keys without a slot share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Charged {
    Own(Instant),
    Shared(Instant),
}

pub(crate) struct Table {
    slots: Slots,
    shared: Overflow<Instant>,
    limit: u64,
}

impl Table {
    /// Creates a set whose accounts hold `limit` units. The first slots have the given debts.
    pub(crate) fn new(limit: u64, debts: &[(u64, Instant)]) -> Self {
        let table = Self { slots: Slots::new(1), shared: Overflow::new(1), limit };
        for (id, until) in debts {
            let open = |_| (Some(*until), ());
            table.slots.claim(*id, 1, open, open, |_| panic!("no room"));
        }
        table
    }

    /// Charges a unit, if it fits.
    pub(crate) fn take(&self, id: u64, now: Instant) -> Option<Charged> {
        let own = |stored| {
            let new = self.step(stored, now);
            (new, new.map(Charged::Own))
        };
        self.slots.update(id, own).unwrap_or_else(|| {
            let open = |now| {
                let new = self.step(self.shared.get(self.address(), now), now);
                (new, new.map(Charged::Own))
            };
            self.slots.claim(id, now, own, open, |now| self.share(now))
        })
    }

    /// Charges a unit to the account that keys without a slot share.
    pub(crate) fn share(&self, now: Instant) -> Option<Charged> {
        self.shared.update(self.address(), |stored| {
            let new = self.step(*stored, now);
            *stored = new.unwrap_or(*stored);
            (*stored, new.map(Charged::Shared))
        })
    }

    fn step(&self, stored: Instant, now: Instant) -> Option<Instant> {
        let after = stored.max(now) + T;
        (after <= now + self.limit * T).then_some(after)
    }

    /// Gives a unit back.
    pub(crate) fn refund(&self, id: u64, now: Instant) {
        let back = |stored: Instant, floor| stored.saturating_sub(T).max(floor);
        let lowered = |stored, floor| ((stored > floor).then(|| back(stored, floor)), ());
        if let Err(floor) = self.slots.lower(id, now, lowered) {
            self.shared.lower(self.address(), |stored| *stored = back(*stored, floor));
        }
    }

    /// Lowers the account to `to`, or as far as the table permits.
    pub(crate) fn lower(&self, id: u64, now: Instant, to: Instant) {
        let _ = self.slots.lower(id, now, |_, _| (Some(to), ()));
    }

    /// Ends the account. The clock reads `now` once the account is lowered.
    pub(crate) fn reset(&self, id: u64, now: Instant) {
        let empty = |stored, floor| ((stored > floor).then_some(floor), ());
        let _ = self.slots.reset(id, now, empty, || now);
    }

    /// Undoes a unit that was charged at that instant.
    pub(crate) fn undo(&self, id: u64, now: Instant, charged: Instant) {
        let back = |stored: Instant, floor| stored.saturating_sub(T).max(floor);
        let undone = |stored, floor| (stored > floor).then(|| back(stored, floor));
        if let Err(floor) = self.slots.undo(id, now, charged, undone) {
            self.shared.lower(self.address(), |stored| *stored = back(*stored, floor));
        }
    }

    /// Returns the state of the key's own account, if it has one.
    pub(crate) fn look(&self, id: u64) -> Option<Instant> {
        self.slots.look(id, |stored| stored)
    }

    pub(crate) fn look_shared(&self, now: Instant) -> Instant {
        self.shared.get(self.address(), now)
    }

    pub(crate) fn active(&self, now: Instant) -> usize {
        self.slots.active(now)
    }

    fn address(&self) -> SharedAddress {
        SharedAddress::new(self.slots.set_of(ALICE), RuleName::default(), 0)
    }

    /// Runs all three at the same time.
    pub(crate) fn all<A, B: 'static, C: 'static>(
        self,
        one: impl FnOnce(&Self) -> A,
        two: impl FnOnce(&Self) -> B + 'static,
        three: impl FnOnce(&Self) -> C + 'static,
    ) -> (Arc<Self>, A, (B, C)) {
        let table = Arc::new(self);
        let (shared, also) = (table.clone(), table.clone());
        let two = thread::spawn(move || {
            is_thread(1);
            two(&shared)
        });
        let three = thread::spawn(move || {
            is_thread(2);
            three(&also)
        });
        let one = one(&table);
        let others = (two.join().expect("no panic"), three.join().expect("no panic"));
        (table, one, others)
    }

    /// Runs both at the same time.
    pub(crate) fn both<A, B: 'static>(
        self,
        one: impl FnOnce(&Self) -> A,
        other: impl FnOnce(&Self) -> B + 'static,
    ) -> (Arc<Self>, A, B) {
        let table = Arc::new(self);
        let shared = table.clone();
        let other = thread::spawn(move || {
            is_thread(1);
            other(&shared)
        });
        let one = one(&table);
        (table, one, other.join().expect("no panic"))
    }
}
