//! One set of slots, charged as the embedded store does, by the plainest GCRA.

use std::sync::Arc;

use loom::thread;
use tower_sluice::RuleName;

use super::{
    overflow::{Address, Overflow},
    slots::Slots,
    sync::is_thread,
};

/// A unit's worth of time.
pub(crate) const T: u64 = 10;

/// Accounts: their search begins at the slot that the lowest bit says.
pub(crate) const ALICE: u64 = 2;
pub(crate) const BOB: u64 = 4;
pub(crate) const CAROL: u64 = 6;
pub(crate) const OTHER: u64 = 3;
/// When a debt ends that no model lives to see.
pub(crate) const LONG: Instant = 1_000;

/// Where an account stands: full again at this instant.
pub(crate) type Instant = u64;

/// An account of one's own, or the one that newcomers share.
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
    /// A set whose accounts hold `limit` units; slots are in debt as told, from the first on.
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

    /// Charges a unit to the account that newcomers share.
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

    /// Lowers the account to `to`, or as far as the table lets it.
    pub(crate) fn lower(&self, id: u64, now: Instant, to: Instant) {
        let _ = self.slots.lower(id, now, |_, _| (Some(to), ()));
    }

    /// Ends the account; the clock says `now` once it is lowered.
    pub(crate) fn reset(&self, id: u64, now: Instant) {
        let cold = |stored, floor| ((stored > floor).then_some(floor), ());
        let _ = self.slots.reset(id, now, cold, || now);
    }

    /// Undoes a unit that was charged at that instant.
    pub(crate) fn undo(&self, id: u64, now: Instant, charged: Instant) {
        let back = |stored: Instant, floor| stored.saturating_sub(T).max(floor);
        let undone = |stored, floor| (stored > floor).then(|| back(stored, floor));
        if let Err(floor) = self.slots.undo(id, now, charged, undone) {
            self.shared.lower(self.address(), |stored| *stored = back(*stored, floor));
        }
    }

    /// Where the account stands, one's own or none.
    pub(crate) fn look(&self, id: u64) -> Option<Instant> {
        self.slots.look(id, |stored| stored)
    }

    pub(crate) fn look_shared(&self, now: Instant) -> Instant {
        self.shared.get(self.address(), now)
    }

    pub(crate) fn in_debt(&self, now: Instant) -> usize {
        self.slots.in_debt(now)
    }

    fn address(&self) -> Address {
        Address::new(self.slots.set_of(ALICE), RuleName::default(), 0)
    }

    /// Runs all three at once.
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

    /// Runs both at once.
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
