//! A thread that reads the clock and is held up decides by an old reading; it is denied nothing that
//! is there by now, and reports no wait that has passed.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tower_sluice::{Algorithm, Charge, Key, Quota, RuleName, Store, testing::FakeClock};

const THREADS: u32 = 4;
const TAKES: u32 = 5;
const KEYS: u32 = if cfg!(debug_assertions) { 4_000 } else { 40_000 };

/// Every call moves the clock on before it reads it, so that readings are apart whenever two threads
/// meet between reading and charging.
#[test]
fn exactly_the_limit_asked_for_at_once_is_admitted() {
    let limit = THREADS * TAKES;
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 4 },
        Algorithm::SlidingLog,
    ] {
        let quota = Quota::per_day(limit).algorithm(algorithm);
        let (clock, start) = (FakeClock::new(), Barrier::new(THREADS as usize));
        let store = clock.store(4 * KEYS as usize);
        let denied = AtomicU32::new(0);
        let work = || {
            start.wait();
            for key in 0..KEYS {
                let key = Key::from(key);
                let charge = Charge::new(RuleName::default(), &key, quota.as_ref());
                for _ in 0..TAKES {
                    clock.advance(Duration::from_nanos(1));
                    let decision = store.take(&[charge]).now();
                    denied.fetch_add(u32::from(!decision.is_allowed()), Relaxed);
                }
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
        assert_eq!(denied.into_inner(), 0, "{algorithm:?} denied what the limit has");
        assert_eq!(store.stats().overflowed, 0, "there was room");
    }
}
