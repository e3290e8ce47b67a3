//! Calls to a limiter that wait outside HTTP.

use std::{
    convert::Infallible,
    sync::{Barrier, atomic::AtomicU32, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_sluice::{Limiter, Quota, Store, StoreExt, testing::FakeClock};

use crate::support::{
    ALGORITHMS, Gated,
    driven::{Counting, Time, left, millis, secs},
};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).with_burst(1);
const STEP: Duration = Duration::from_millis(200);

async fn even<S: Store<Error = Infallible> + Clone + Sync>(time: &Time, store: S) {
    let store = Counting::new(store);
    let limiter = Limiter::named("default", store.clone());
    let ready = |_| task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    let mut ready: Vec<_> = (0..6).map(ready).collect();
    let first = assert_ready_ok!(ready[0].poll());
    assert_eq!(first.wait(), Duration::ZERO);
    ready[1..].iter_mut().for_each(|ready| assert_pending!(ready.poll()));
    for (at, ready) in (1..).zip(&mut ready[1..]) {
        time.pass(STEP - millis(1)).await;
        assert!(!ready.is_woken());
        time.pass(millis(1)).await;
        assert_eq!(assert_ready_ok!(ready.poll()).wait(), at * STEP);
    }
    assert_eq!((store.takes(), store.given_back()), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_continue_evenly_in_order_with_one_store_call_each() {
    let time = Time::default();
    even(&time, time.store()).await;
    even(&time, time.store().boxed()).await;
    even(&time, Gated::open(time.store())).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_undoes_its_charge() {
    let time = Time::default();
    let store = time.store();
    let limiter = Limiter::named("default", store.clone());
    drop(limiter.until_ready("upstream", &FIVE, 1).await.expect("at once"));
    {
        let mut gone = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
        assert_pending!(gone.poll());
    }
    let mut next = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    assert_pending!(next.poll());
    time.pass(STEP).await;
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_eq!(
        left(&store, "default", "upstream", &FIVE),
        0,
        "a call that was ready keeps its unit"
    );
}

#[tokio::test]
async fn take_up_to_takes_only_units_that_every_quota_has() {
    async fn grants<S: Store<Error = Infallible> + Sync>(clock: &FakeClock, store: S) {
        let limiter = Limiter::named("default", store);
        let quotas = [Quota::per_second(10), Quota::per_hour(15)];
        let granted = async |most| limiter.take_up_to("a", &quotas, most).await;
        assert_eq!((granted(0).await, granted(7).await), (0, 7));
        assert_eq!((granted(7).await, granted(7).await), (3, 0));
        clock.advance(secs(1));
        assert_eq!((granted(u32::MAX).await, granted(1).await), (5, 0));
        assert_eq!(limiter.take_up_to("a", &Quota::blocked(), 1).await, 0);
    }
    let clock = FakeClock::new();
    grants(&clock, clock.store(64)).await;
    grants(&clock, Gated::open(clock.store(64))).await;
}

/// A call for more units takes no fewer. Its units may be beyond a soft limit.
#[tokio::test]
async fn take_up_to_takes_all_soft_units_that_are_left() {
    let limiter = Limiter::named("default", FakeClock::new().store(16_384));
    for algorithm in ALGORITHMS {
        let soft = Quota::per_hour(10).with_algorithm(algorithm).with_soft(5);
        let softer = Quota::per_day(12).with_algorithm(algorithm).with_soft(6);
        for (quotas, fit) in
            [(&[soft][..], 15), (&[softer, soft], 15), (&[soft, Quota::per_day(12)], 12)]
        {
            for used in 0..=fit {
                for most in 1..=20 {
                    let key = format!("{quotas:?} {used} {most}");
                    assert!(limiter.take(&*key, quotas, used).await.is_allowed());
                    let taken = limiter.take_up_to(&*key, quotas, most).await;
                    assert_eq!(taken, most.min(fit - used), "{key}");
                }
            }
        }
    }
}

#[test]
fn concurrent_take_up_to_calls_take_exactly_the_available_units() {
    const HAS: u32 = 50_000;
    let (limiter, quota) =
        (Limiter::named("default", FakeClock::new().store(16)), Quota::per_hour(HAS));
    let (granted, start) = (AtomicU32::new(0), Barrier::new(8));
    let (granted, start, limiter) = (&granted, &start, &limiter);
    thread::scope(|scope| {
        for most in 1..=8 {
            scope.spawn(move || {
                start.wait();
                loop {
                    let up_to = limiter.take_up_to("hot", &quota, most);
                    match tokio_test::block_on(up_to) {
                        0 => break,
                        units => granted.fetch_add(units, Relaxed),
                    };
                }
            });
        }
    });
    assert_eq!(granted.load(Relaxed), HAS);
}
