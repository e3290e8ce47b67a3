//! A request that waits for a slot is called, in every order of frees, departures and polls.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use super::{
    every_order,
    held::{HeldSlots, Room},
    ledger::ALICE,
};

/// Counts the wakes of a task.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Requests of one unit each for the only slot. Each has a number, which is its arrival.
struct Slots(HeldSlots);

impl Slots {
    /// Takes the slot, or joins the queue. Returns the epoch of the slot.
    fn ask(&self, arrival: u32) -> Option<u64> {
        let mut keys = self.0.shard(ALICE).lock();
        if let Room::Held(0) = keys.room(ALICE, (0, arrival)) {
            return Some(keys.hold(ALICE, 1));
        }
        keys.join(ALICE, (0, arrival), 1, arrival, 1);
        None
    }

    fn poll(&self, arrival: u32, wakes: &Arc<Wakes>) -> bool {
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let polled = self.0.shard(ALICE).poll_called(ALICE, (0, arrival), arrival, &mut cx);
        polled == Poll::Ready(())
    }

    fn leave(&self, arrival: u32) {
        self.0.shard(ALICE).leave(ALICE, (0, arrival), arrival);
    }

    fn free(&self, epoch: u64) {
        self.0.shard(ALICE).free(ALICE, epoch, 1);
    }
}

/// The only slot is held. Returns its epoch.
fn held_once() -> (Arc<Slots>, u64) {
    let slots = Slots(HeldSlots::new(8));
    let epoch = slots.ask(0).expect("a free slot");
    (Arc::new(slots), epoch)
}

#[test]
fn a_freed_slot_calls_a_request_that_is_about_to_wait() {
    every_order(|| {
        let (slots, epoch) = held_once();
        let frees = slots.clone();
        let freeing = thread::spawn(move || frees.free(epoch));
        let wakes = Arc::new(Wakes::default());
        let taken = slots.ask(1);
        let called = taken.is_none() && slots.poll(1, &wakes);
        freeing.join().expect("no panic");
        let woken = wakes.0.load(Ordering::Acquire) > 0;
        assert!(taken.is_some() || called || woken, "the wakeup is lost");
        let taken = taken.or_else(|| slots.ask(1)).expect("the slot is free");
        slots.leave(1);
        slots.free(taken);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}

#[test]
fn a_called_request_that_leaves_calls_the_next() {
    every_order(|| {
        let (slots, epoch) = held_once();
        let wakes = Arc::new(Wakes::default());
        assert!(slots.ask(1).is_none() && slots.ask(2).is_none());
        let (frees, leaves) = (slots.clone(), slots.clone());
        let freeing = thread::spawn(move || frees.free(epoch));
        let leaving = thread::spawn(move || leaves.leave(1));
        let called = slots.poll(2, &wakes);
        freeing.join().expect("no panic");
        leaving.join().expect("no panic");
        assert!(called || wakes.0.load(Ordering::Acquire) == 1, "the wakeup is lost");
        let taken = slots.ask(2).expect("the slot is free");
        slots.leave(2);
        slots.free(taken);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}

#[test]
fn a_new_request_does_not_overtake_one_that_waits() {
    every_order(|| {
        let (slots, epoch) = held_once();
        assert!(slots.ask(1).is_none());
        let (frees, newer) = (slots.clone(), slots.clone());
        let freeing = thread::spawn(move || frees.free(epoch));
        let asking = thread::spawn(move || newer.ask(2));
        let first = slots.ask(1);
        freeing.join().expect("no panic");
        assert!(asking.join().expect("no panic").is_none(), "it overtook the first");
        let first = first.or_else(|| slots.ask(1)).expect("the slot is free");
        slots.leave(1);
        slots.free(first);
        let second = slots.ask(2).expect("the slot is free");
        slots.leave(2);
        slots.free(second);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}
