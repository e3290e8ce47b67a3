//! Threads that borrow, spend, undo and end leases at once.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
};

use tower_sluice::{
    Key, LocalStore, Quota, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use crate::support::driven::AtOnce;

const THREADS: usize = 4;
const QUOTA: Quota = Quota::per_day(5_000);

#[test]
fn threads_take_exactly_the_available_units() {
    for round in 0..20_u32 {
        let inner = LocalStore::with_capacity(1_000);
        let holders = [(); 2].map(|()| inner.clone().leases(5));
        let (key, quotas) = (Key::from(round), [QUOTA]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let (passed, here) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for n in 0..THREADS {
                let (holder, passed, here) = (&holders[n % 2], &passed, &here);
                scope.spawn(move || {
                    let mut denied = 0;
                    while denied < 50 {
                        let decision = tokio_test::block_on(holder.take(&[charge]).into_future());
                        let decision = decision.expect("infallible");
                        denied += u32::from(!decision.is_allowed());
                        passed.fetch_add(u32::from(decision.is_allowed()), Relaxed);
                        here.fetch_add(u32::from(decision.source() == Source::Leased), Relaxed);
                        if n == 0 && round % 2 == 1 && passed.load(Relaxed) % 500 == 3 {
                            // other threads borrow at the same time
                            drop(holder.block(&charge, std::time::Duration::ZERO).now());
                        }
                    }
                });
            }
        });
        let here = here.into_inner();
        drop(holders);
        let look = inner.take(&[charge.with_cost(0)]).now();
        let (passed, left) = (passed.into_inner(), look.outcomes()[0].remaining());
        // units that are borrowed while their key is blocked stay charged
        let all = round % 2 == 1 || passed == 5_000;
        assert!(all, "{passed} passed, {left} are left");
        assert!(left <= 5_000 - passed, "{left} are left of 5000, and {passed} passed");
        assert!(round % 2 == 1 || here > 4_500, "{here} without asking");
    }
}
