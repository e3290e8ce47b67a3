//! Threads that decide with an old reading of the clock.
//!
//! They are not denied units that are available by now, and do not report a wait that has passed.

use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::Duration,
};

use tower_sluice::{
    Algorithm, Key, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

const THREADS: u32 = 2;
const TAKES: u32 = 1;

/// Every call advances the clock before it reads it. Readings differ whenever two threads meet
/// between reading and charging, and the threads reach each key together. Only under GCRA does the
/// account contain the instant of the first charge.
#[test]
fn concurrent_calls_get_exactly_the_limit() {
    let limit = THREADS * TAKES;
    for (algorithm, keys) in [
        (Algorithm::Gcra, if cfg!(debug_assertions) { 40_000 } else { 1_000_000 }),
        (Algorithm::TokenBucket, 2_000),
        (Algorithm::fixed_window(), 2_000),
        (Algorithm::AnchoredWindow, 2_000),
        (Algorithm::SlidingWindow { buckets: 4 }, 2_000),
        (Algorithm::SlidingLog, 2_000),
    ] {
        let quota = Quota::per_day(limit).with_algorithm(algorithm);
        let clock = FakeClock::new();
        let store = clock.store(4 * keys as usize);
        let (denied, came) = (AtomicU32::new(0), AtomicU32::new(0));
        let work = || {
            for at in 0..keys {
                came.fetch_add(1, SeqCst);
                for tries in 0.. {
                    if came.load(SeqCst) >= (at + 1) * THREADS {
                        break;
                    }
                    if tries % 64 == 63 { thread::yield_now() } else { hint::spin_loop() }
                }
                let key = Key::from(at);
                let charge = Charge::new(RuleName::default(), &key, quota.as_ref());
                for _ in 0..TAKES {
                    clock.advance(Duration::from_nanos(1));
                    let decision = store.take(&[charge]).now();
                    clock.advance(Duration::from_nanos(1));
                    denied.fetch_add(u32::from(!decision.is_allowed()), SeqCst);
                }
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
        assert_eq!(denied.into_inner(), 0, "{algorithm:?} denied what the limit has");
        assert_eq!(store.stats().overflowed, 0, "there was room");
    }
}
