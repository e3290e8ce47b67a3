//! Slots are counted once, in every order of requests that begin, requests that end, and resets.

use std::sync::Arc;

use loom::thread;

use super::{
    every_order,
    held::{self, HeldSlots, Room},
    ledger::ALICE,
    orders,
    waiter::Rank,
};

/// The requests of Alice, of which two may run. Nobody waits.
struct Slots(HeldSlots);

impl Slots {
    /// Lets one request run. Returns the epoch of its slot.
    fn held_once() -> (Arc<Self>, u64) {
        let slots = Self(HeldSlots::new(8));
        let epoch = slots.take().expect("a free slot");
        (Arc::new(slots), epoch)
    }

    /// Takes a slot if one is free. Returns its epoch.
    fn take(&self) -> Option<u64> {
        let mut keys = self.0.shard(ALICE).lock();
        let Some(Room { held, is_next: true }) = keys.room(ALICE, Rank::new(None, 0)) else {
            panic!("room, and nobody waits")
        };
        (held < 2).then(|| keys.hold(ALICE, 1))
    }

    fn free(&self, epoch: u64) {
        held::free(self.0.shard(ALICE), ALICE, epoch, 1);
    }

    fn held(&self) -> u64 {
        self.0.counts().1
    }
}

/// Frees the slot of this epoch while two threads do something else. Returns their results.
fn while_freed<A: 'static, B: 'static>(
    slots: &Arc<Slots>,
    epoch: u64,
    one: impl FnOnce(&Slots) -> A + 'static,
    other: impl FnOnce(&Slots) -> B + 'static,
) -> (A, B) {
    let shared = slots.clone();
    let one = thread::spawn(move || one(&shared));
    let shared = slots.clone();
    let other = thread::spawn(move || other(&shared));
    slots.free(epoch);
    (one.join().expect("no panic"), other.join().expect("no panic"))
}

#[test]
fn two_requests_that_begin_while_one_ends_are_each_counted_once() {
    every_order(|| {
        let (slots, epoch) = Slots::held_once();
        let (one, other) = while_freed(&slots, epoch, Slots::take, Slots::take);
        let taken: Vec<_> = [one, other].into_iter().flatten().collect();
        assert!(!taken.is_empty(), "the second slot was free all the time");
        assert_eq!(slots.held(), taken.len() as u64);
        taken.into_iter().for_each(|epoch| slots.free(epoch));
        assert_eq!(slots.0.counts(), (0, 0), "no key and no slot is left");
    });
}

#[test]
fn a_slot_from_before_a_reset_frees_no_later_slot() {
    orders(3, || {
        let (slots, epoch) = Slots::held_once();
        let reset = |slots: &Slots| slots.0.reset(ALICE);
        let (later, ()) = while_freed(&slots, epoch, Slots::take, reset);
        let later = later.expect("two slots");
        // A slot from after the reset is the only one. The reset has dropped one from before.
        assert_eq!(slots.held(), u64::from(later != epoch));
        slots.free(later);
        assert_eq!(slots.0.counts(), (0, 0));
        slots.free(later);
        assert_eq!(slots.0.counts(), (0, 0), "no count is below zero");
    });
}
