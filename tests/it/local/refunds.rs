//! Threads that charge one key and refund it at once: no unit is lost.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use tower_sluice::{
    Key, Quota, Store, StoreExt, decision::Outcome, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use crate::support::ALGORITHMS;

const THREADS: u32 = 4;
const ROUNDS: u64 = 2_000;
const TICK: Duration = Duration::from_nanos(1);

/// Each round is at an edge of all windows and buckets, and each thread advances the clock before it reads
/// it. Readings differ whenever two threads meet between reading and charging.
#[test]
fn a_charge_and_its_refund_leave_the_account_as_it_was() {
    for algorithm in ALGORITHMS {
        let quota = Quota::per_second(10).with_algorithm(algorithm);
        let (clock, key, quotas) = (FakeClock::new(), Key::from("one"), [quota]);
        let (store, barrier) = (clock.store(64), Barrier::new(THREADS as usize + 1));
        let (denied, mut lost) = (AtomicU32::new(0), 0);
        let charge = [Charge::new(RuleName::default(), &key, &quotas)];
        let work = || {
            for _ in 0..ROUNDS {
                barrier.wait();
                clock.advance(TICK);
                let taken = store.take(&charge).now();
                clock.advance(TICK);
                denied.fetch_add(u32::from(!taken.is_allowed()), SeqCst);
                store.undo(&charge, &taken, None);
                barrier.wait();
            }
        };
        thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(work)));
            for round in 1..=ROUNDS {
                let edge = Duration::from_secs(2 * round) - TICK;
                clock.advance(edge - clock.now());
                barrier.wait();
                barrier.wait();
                let look = store.peek(&[charge[0].with_cost(0)]).now();
                let is_full = |it: &Outcome| it.remaining() == 10 && it.reset_after().is_zero();
                lost += u32::from(!look.outcomes().iter().all(is_full));
            }
        });
        assert_eq!((lost, denied.into_inner()), (0, 0), "{algorithm:?}");
    }
}
