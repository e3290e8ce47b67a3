//! Threads that ask, change and learn at once: no refusal outlives what was changed.

mod support;

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use support::driven::AtOnce;
use tower_sluice::{
    Answer, Charge, Decision, Limiter, LocalStore, Quota, Store, store::Unsupported,
};

const THREADS: u32 = 3;
const ROUNDS: u32 = 4_000;
const QUOTA: Quota = Quota::per_day(10);

/// Lets others run between a decision and its answer.
#[derive(Clone)]
struct Yielding(LocalStore);

impl Store for Yielding {
    type Error = <LocalStore as Store>::Error;
    type Future = <LocalStore as Store>::Future;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        let answer = self.0.take(charges);
        thread::yield_now();
        answer
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.0.settle(charge, units)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.reset(charge)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.0.block(charge, time)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.0.unblock(charge)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.check(charges)
    }
}

/// In each round one key is exhausted, and then asked for and changed at once. What its askers may have
/// been given is less than there is, so that nothing but a refusal of before refuses it afterwards.
#[test]
fn a_refusal_does_not_outlive_what_was_changed() {
    let store = Yielding(LocalStore::with_capacity(100_000)).deny_cache();
    let limiter = Limiter::new(store.clone());
    let (start, end) = (Barrier::new(THREADS as usize + 1), Barrier::new(THREADS as usize + 1));
    let (refused, mut wrong) = (AtomicU32::new(0), Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    start.wait();
                    for _ in 0..2 {
                        let decision = limiter.take(round, &QUOTA, 1).now();
                        refused.fetch_add(u32::from(!decision.is_allowed()), Relaxed);
                    }
                    end.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            limiter.settle(round, &QUOTA, -10).now();
            start.wait();
            let decision = match round % 3 {
                0 => limiter.reset(round, &QUOTA).now(),
                1 => limiter.settle(round, &QUOTA, 10).now(),
                _ => {
                    let blocked = limiter.block(round, Duration::from_secs(9));
                    futures::executor::block_on(blocked.into_future()).expect("room");
                    limiter.unblock(round).now();
                    limiter.reset(round, &QUOTA).now()
                }
            };
            end.wait();
            // others wait for this thread, so that it does not panic
            let now = limiter.take(round, &QUOTA, 1).now();
            let fine = decision.is_allowed() && now.is_allowed();
            wrong.extend((!fine).then_some((round, decision, now)));
        }
    });
    assert!(wrong.is_empty(), "{} rounds: {:?}", wrong.len(), wrong[0]);
    let (refused, known) = (refused.into_inner(), store.refusals());
    assert!(refused > ROUNDS / 10, "{refused} were refused, {known} of them here");
}
