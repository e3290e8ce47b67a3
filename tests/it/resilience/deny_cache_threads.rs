//! Threads that call, change and cache: no denial outlives a change of its account.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tower_sluice::{
    Decision, Limiter, LocalStore, Quota, Store, StoreExt,
    store::{Answer, Charge, Context, Op, Unsupported},
};

use crate::support::driven::AtOnce;

const THREADS: u32 = 3;
const ROUNDS: u32 = 4_000;
const QUOTA: Quota = Quota::per_day(10);

/// A store that yields between a decision and its answer.
#[derive(Clone)]
struct Yielding(LocalStore);

impl Store for Yielding {
    type Error = <LocalStore as Store>::Error;
    type Future = <LocalStore as Store>::Future;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let answer = self.0.call(op, context);
        if let Op::Take(_) = op {
            thread::yield_now();
        }
        answer
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.supports(charges)
    }
}

/// In each round one key is exhausted, and then called for and changed at once. The callers get
/// less than the account holds, so a later denial can only come from the cache.
#[test]
fn a_cached_denial_does_not_outlive_a_change() {
    let store = Yielding(LocalStore::with_capacity(100_000)).deny_cache();
    let limiter = Limiter::named("default", store.clone());
    let (start, end) = (Barrier::new(THREADS as usize + 1), Barrier::new(THREADS as usize + 1));
    let (denied, mut wrong) = (AtomicU32::new(0), Vec::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    start.wait();
                    for _ in 0..2 {
                        let decision = limiter.take(round, &QUOTA, 1).now();
                        denied.fetch_add(u32::from(!decision.is_allowed()), Relaxed);
                    }
                    end.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            drop(limiter.charge(round, &QUOTA, 10).now());
            start.wait();
            let decision = match round % 3 {
                0 => limiter.reset(round, &QUOTA).now(),
                1 => limiter.refund(round, &QUOTA, 10).now(),
                _ => {
                    let blocked = limiter.block(round, Duration::from_secs(9));
                    drop(futures::executor::block_on(blocked.into_future()).expect("room"));
                    drop(limiter.unblock(round).now());
                    limiter.reset(round, &QUOTA).now()
                }
            };
            end.wait();
            // other threads wait for this one, so it must not panic
            let now = limiter.take(round, &QUOTA, 1).now();
            let fine = decision.is_allowed() && now.is_allowed();
            wrong.extend((!fine).then_some((round, decision, now)));
        }
    });
    assert!(wrong.is_empty(), "{} rounds: {:?}", wrong.len(), wrong[0]);
    let denied = denied.into_inner();
    assert!(denied > ROUNDS / 10, "{denied} denied");
}
