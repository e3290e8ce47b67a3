//! Slots are counted once, in every order of requests that begin, requests that end, changes of the
//! limit, and resets.

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use super::{
    every_order,
    held::{self, HeldSlots, Room},
    ledger::ALICE,
    orders,
    waiter::Rank,
};

/// A table of held slots, and a limit that can change.
struct Slots {
    held: HeldSlots,
    limit: AtomicU64,
}

impl Slots {
    /// Creates a table in which one request holds a slot. Returns the epoch of that slot.
    fn held_once(limit: u64) -> (Arc<Self>, u64) {
        let slots = Self { held: HeldSlots::new(8), limit: AtomicU64::new(limit) };
        let epoch = slots.take().expect("a free slot");
        (Arc::new(slots), epoch)
    }

    /// Takes a slot if one is free. Returns its epoch.
    fn take(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Acquire);
        let mut keys = self.held.shard(ALICE).lock();
        let Some(Room { held, is_next: true }) = keys.room(ALICE, Rank::new(None, 0)) else {
            panic!("room, and nobody waits")
        };
        (held < limit).then(|| keys.hold(ALICE, 1))
    }

    fn free(&self, epoch: u64) {
        held::free(self.held.shard(ALICE), ALICE, epoch, 1);
    }
}

/// Runs three closures in three threads, and returns the results of two of them.
fn all<A: 'static, B: 'static>(
    slots: &Arc<Slots>,
    one: impl FnOnce(&Slots) -> A + 'static,
    two: impl FnOnce(&Slots) -> B + 'static,
    three: impl FnOnce(&Slots),
) -> (A, B) {
    let (first, second) = (slots.clone(), slots.clone());
    let first = thread::spawn(move || one(&first));
    let second = thread::spawn(move || two(&second));
    three(slots);
    (first.join().expect("no panic"), second.join().expect("no panic"))
}

#[test]
fn a_limit_that_changes_admits_no_more_than_itself() {
    every_order(|| {
        let (slots, epoch) = Slots::held_once(1);
        let raise_and_take = |slots: &Slots| {
            slots.limit.store(2, Ordering::Release);
            slots.take()
        };
        let (one, two) = all(&slots, Slots::take, raise_and_take, |slots| slots.free(epoch));
        // The first request has one of the two slots, or has freed it.
        assert!(two.is_some() || one.is_some(), "a free slot is not denied to both");
        let held = u64::from(one.is_some()) + u64::from(two.is_some());
        assert_eq!(slots.held.counts(), (1, held));
        [one, two].into_iter().flatten().for_each(|epoch| slots.free(epoch));
        assert_eq!(slots.held.counts(), (0, 0));
    });
}

#[test]
fn a_lowered_limit_lets_running_requests_end() {
    every_order(|| {
        let (slots, epoch) = Slots::held_once(2);
        let lower = |slots: &Slots| slots.limit.store(1, Ordering::Release);
        let (taken, ()) = all(&slots, Slots::take, lower, |slots| slots.free(epoch));
        let held = u64::from(taken.is_some());
        assert_eq!(slots.held.counts().1, held);
        taken.into_iter().for_each(|epoch| slots.free(epoch));
        assert_eq!(slots.held.counts(), (0, 0));
    });
}

#[test]
fn a_slot_from_before_a_reset_frees_no_later_slot() {
    orders(3, || {
        let (slots, epoch) = Slots::held_once(2);
        let reset = |slots: &Slots| slots.held.reset(ALICE);
        let (later, ()) = all(&slots, Slots::take, reset, |slots| slots.free(epoch));
        let later = later.expect("two slots");
        // A slot from after the reset is the only one. The reset has dropped one from before.
        assert_eq!(slots.held.counts().1, u64::from(later != epoch));
        slots.free(later);
        assert_eq!(slots.held.counts(), (0, 0));
        slots.free(later);
        assert_eq!(slots.held.counts(), (0, 0), "no count is below zero");
    });
}
