//! Accounts of windows and logs: bounded memory, no lost debt, exact under threads.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use tower_sluice::{Algorithm, Key, Limiter, LocalStore, Quota, testing::FakeClock};

const HOUR: Duration = Duration::from_secs(3_600);

fn quotas(units: u32) -> Vec<Quota> {
    let counted = [
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 6 },
        Algorithm::SlidingLog,
    ];
    counted.map(|algorithm| Quota::per_hour(units).with_algorithm(algorithm)).into()
}

#[test]
fn a_flood_of_new_keys_does_not_free_an_exhausted_key_or_grow_the_store() {
    for quota in quotas(2) {
        let clock = FakeClock::new();
        let store: LocalStore = clock.store(64);
        let limiter = Limiter::named("default", store.clone());
        let take = |key: Key| limiter.take(key, &quota, 1).now().is_allowed();
        assert!(take("victim".into()) && take("victim".into()) && !take("victim".into()));

        let admitted = (0..20_000_u32).filter(|key| take(Key::from(*key))).count();
        let stats = store.stats();
        assert!(stats.active <= 128, "{quota:?}: {stats:?}");
        assert!(stats.overflowed > 0, "{quota:?}: {stats:?}");
        assert!(admitted < 400, "{quota:?}: new keys share one account, {admitted} passed");
        assert!(!take("victim".into()), "{quota:?}: the flood freed an exhausted key");

        clock.advance(2 * HOUR);
        assert_eq!(store.stats().active, 0, "{quota:?}");
        assert!(take("victim".into()), "{quota:?}: a full account equals no account");
    }
}

#[test]
fn a_window_that_ends_now_is_no_account() {
    let (clock, nanosecond) = (FakeClock::new(), Duration::from_nanos(1));
    let store: LocalStore = clock.store(64);
    let quota = Quota::per_hour(2).with_algorithm(Algorithm::AnchoredWindow);
    drop(Limiter::named("default", store.clone()).take("key", &quota, 1).now());
    clock.advance(HOUR - nanosecond);
    assert_eq!(store.stats().active, 1);
    clock.advance(nanosecond);
    assert_eq!(store.stats().active, 0);
}

#[test]
fn threads_get_exactly_the_available_units() {
    for quota in quotas(500) {
        let limiter = Limiter::named("default", FakeClock::new().store(64));
        let admitted = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let decision = limiter.take("hot", &quota, 1).now();
                        admitted.fetch_add(decision.is_allowed().into(), Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 500, "{quota:?}");
    }
}

#[test]
fn a_decision_over_gcra_and_windows_charges_all_or_none() {
    let limiter = Limiter::named("default", FakeClock::new().store(64));
    let mixed: Vec<Quota> = [Quota::per_hour(9)].into_iter().chain(quotas(5)).collect();
    for _ in 0..5 {
        assert!(limiter.take("a", &mixed, 1).now().is_allowed());
    }
    assert!(!limiter.take("a", &mixed, 1).now().is_allowed());
    let left = limiter.peek("a", &mixed).now();
    let left: Vec<u32> = left.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(left, [4, 0, 0, 0, 0, 0], "the denial charged nothing");
}

/// The account of a window is found by its key, regardless of the positions of other accounts.
#[test]
fn keys_within_the_capacity_do_not_share() {
    for quota in quotas(1) {
        let limiter = Limiter::named("default", FakeClock::new().store(1_024));
        let admitted = (0..256_u32).filter(|key| limiter.take(*key, &quota, 1).now().is_allowed());
        assert_eq!(admitted.count(), 256, "{quota:?}");
    }
}

/// One set holds sixteen accounts. The slots of expired accounts are free.
#[test]
fn expired_accounts_make_room_for_other_keys() {
    for quota in quotas(1) {
        let clock = FakeClock::new();
        let store: LocalStore = clock.store(64);
        let limiter = Limiter::named("default", store.clone());
        let take = |key: u32| limiter.take(key, &quota, 1).now();
        for key in 0..2_000 {
            let _ = take(key);
        }
        let before = store.stats().overflowed;
        assert!(before > 0, "{quota:?}: each set is full");

        clock.advance(3 * HOUR);
        for key in 10_000..10_004 {
            assert!(take(key).is_allowed(), "{quota:?}: {key} has charged nothing");
            assert!(!take(key).is_allowed(), "{quota:?}: {key} has an account of its own");
        }
        let stats = store.stats();
        assert_eq!((stats.overflowed, stats.active), (before, 4), "{quota:?}");
    }
}
