//! A request that waits for a slot is woken, in every order of frees, departures and polls.

use std::{
    iter,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use super::{
    every_order,
    held::{self, HeldSlots, Room},
    ledger::ALICE,
    waiter::{Rank, Waiter},
};

/// Counts the wakes of a task.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Requests of one unit each for the only slot.
struct Slots(HeldSlots);

impl Slots {
    /// Takes the slot, or joins the queue. Returns the epoch of the slot.
    fn ask(&self, waiter: &Waiter) -> Option<u64> {
        // It leaves its place in the queue, if it has one.
        let place = waiter.take_place(|_| true);
        let locked = self.0.lock(iter::once(ALICE), Some(waiter), place);
        let mut locked = locked.expect("an account");
        let rank = Rank::new(Some(waiter), 0);
        let keys = locked.get(ALICE).expect("it is locked");
        if keys.room(ALICE, rank) == Some(Room { held: 0, is_next: true }) {
            return Some(keys.hold(ALICE, 1));
        }
        locked.join(ALICE, 0, 1, 0);
        None
    }

    fn poll(waiter: &Waiter, wakes: &Arc<Wakes>) -> bool {
        let waker = Waker::from(wakes.clone());
        waiter.poll_woken(&mut Context::from_waker(&waker)) == Poll::Ready(())
    }

    fn free(&self, epoch: u64) {
        held::free(self.0.shard(ALICE), ALICE, epoch, 1);
    }
}

/// The only slot is held. Returns its epoch.
fn held_once() -> (Arc<Slots>, u64) {
    let slots = Slots(HeldSlots::new(8));
    let epoch = slots.ask(&Waiter::new()).expect("a free slot");
    (Arc::new(slots), epoch)
}

#[test]
fn a_freed_slot_wakes_a_request_that_is_about_to_wait() {
    every_order(|| {
        let (slots, epoch) = held_once();
        let frees = slots.clone();
        let freeing = thread::spawn(move || frees.free(epoch));
        let (wakes, waiter) = (Arc::new(Wakes::default()), Waiter::new());
        let taken = slots.ask(&waiter);
        assert!(
            taken.is_some() || waiter.take_max_wait().is_some(),
            "it is in the queue, or was woken since"
        );
        let is_woken = taken.is_none() && Slots::poll(&waiter, &wakes);
        freeing.join().expect("no panic");
        let woken = wakes.0.load(Ordering::Acquire) > 0;
        assert!(taken.is_some() || is_woken || woken, "the wakeup is lost");
        let taken = taken.or_else(|| slots.ask(&waiter)).expect("the slot is free");
        drop(waiter);
        slots.free(taken);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}

#[test]
fn a_woken_request_that_leaves_wakes_the_next() {
    every_order(|| {
        let (slots, epoch) = held_once();
        let wakes = Arc::new(Wakes::default());
        let (first, second) = (Waiter::new(), Waiter::new());
        assert!(slots.ask(&first).is_none() && slots.ask(&second).is_none());
        let frees = slots.clone();
        let freeing = thread::spawn(move || frees.free(epoch));
        let leaving = thread::spawn(move || drop(first));
        let is_woken = Slots::poll(&second, &wakes);
        freeing.join().expect("no panic");
        leaving.join().expect("no panic");
        assert!(is_woken || wakes.0.load(Ordering::Acquire) == 1, "the wakeup is lost");
        let taken = slots.ask(&second).expect("the slot is free");
        slots.free(taken);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}

#[test]
fn a_new_request_does_not_overtake_one_that_waits() {
    every_order(|| {
        let (slots, epoch) = held_once();
        let (older, newer) = (Waiter::new(), Waiter::new());
        assert!(slots.ask(&older).is_none());
        let (frees, asks, waiter) = (slots.clone(), slots.clone(), newer.clone());
        let freeing = thread::spawn(move || frees.free(epoch));
        let asking = thread::spawn(move || asks.ask(&waiter));
        let first = slots.ask(&older);
        freeing.join().expect("no panic");
        assert!(asking.join().expect("no panic").is_none(), "it overtook the first");
        let first = first.or_else(|| slots.ask(&older)).expect("the slot is free");
        slots.free(first);
        let second = slots.ask(&newer).expect("the slot is free");
        slots.free(second);
        assert_eq!(slots.0.counts(), (0, 0));
    });
}
