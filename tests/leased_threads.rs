//! Threads that borrow, spend, give back and end what is in hand at once.

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use support::driven::AtOnce;
use tower_sluice::{Charge, Key, LocalStore, Quota, RuleName, Source, Store};

const THREADS: usize = 4;
const QUOTA: Quota = Quota::per_day(5_000);

#[test]
fn threads_take_exactly_what_there_is() {
    for round in 0..20_u32 {
        let inner = LocalStore::with_capacity(1_000);
        let holders = [(); 2].map(|()| inner.clone().leased(5));
        let (key, quotas) = (Key::from(round), [QUOTA]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let passed = AtomicU32::new(0);
        thread::scope(|scope| {
            for n in 0..THREADS {
                let (holder, passed) = (&holders[n % 2], &passed);
                scope.spawn(move || {
                    let mut refused = 0;
                    while refused < 50 {
                        let decision = tokio_test::block_on(holder.take(&[charge]).into_future());
                        let decision = decision.expect("infallible");
                        refused += u32::from(!decision.is_allowed());
                        passed.fetch_add(u32::from(decision.is_allowed()), Relaxed);
                        if n == 0 && round % 2 == 1 && passed.load(Relaxed) % 500 == 3 {
                            // others borrow meanwhile
                            holder.block(&charge, std::time::Duration::ZERO).now();
                        }
                    }
                });
            }
        });
        let here: u64 = holders.iter().map(tower_sluice::store::Leased::admitted).sum();
        drop(holders);
        let look = inner.take(&[charge.cost(0)]).now();
        let (passed, left) = (passed.into_inner(), look.outcomes()[0].remaining());
        // what is borrowed while its key is blocked stays charged
        let all = round % 2 == 1 || passed == 5_000;
        assert!(all, "{passed} passed, {left} are left");
        assert!(left <= 5_000 - passed, "{left} are left of 5000, and {passed} passed");
        assert!(round % 2 == 1 || here > 4_900, "{here} without asking");
    }
}

#[test]
fn what_is_given_back_at_once_is_not_given_twice() {
    let inner = LocalStore::with_capacity(1_000);
    let holder = inner.clone().leased(10);
    let (key, quotas) = (Key::from("hot"), [QUOTA]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    let kept = AtomicU32::new(0);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (holder, kept) = (&holder, &kept);
            scope.spawn(move || {
                for round in 0..500 {
                    let decision = tokio_test::block_on(holder.take(&[charge]).into_future());
                    let decision = decision.expect("infallible");
                    assert!(decision.is_allowed());
                    if decision.source() == Source::Leased && (round + n) % 2 == 0 {
                        holder.undo(&[charge], &decision, None);
                    } else {
                        kept.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    drop(holder);
    let look = inner.take(&[charge.cost(0)]).now();
    let (kept, left) = (kept.into_inner(), look.outcomes()[0].remaining());
    assert!(left <= 5_000 - kept, "{left} are left, and {kept} were kept");
}
