//! The figures in the documentation of `LocalStore` about floods of new keys.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

/// The number of new keys tried at one moment, to count the denied ones.
const HONEST: u64 = 2_000;

struct Flood {
    clock: FakeClock,
    store: LocalStore,
    quota: Quota,
    keys: u64,
}

impl Flood {
    fn new(capacity: usize, quota: Quota) -> Self {
        let clock = FakeClock::new();
        let store = clock.store(capacity);
        Self { clock, store, quota, keys: 0 }
    }

    fn admits(&mut self) -> bool {
        self.keys += 1;
        let key = Key::from(self.keys);
        let charge = Charge::new(RuleName::default(), &key, self.quota.as_ref());
        self.store.take(&[charge]).now().is_allowed()
    }

    /// Sends this number of new keys in each millisecond. Returns the percentage of denied keys.
    fn lasts(&mut self, milliseconds: u64, keys: u64) -> f64 {
        let mut denied = 0;
        for _ in 0..milliseconds {
            denied += (0..keys).filter(|_| !self.admits()).count();
            self.clock.advance(Duration::from_millis(1));
        }
        denied as f64 * 100.0 / (milliseconds * keys) as f64
    }

    /// Returns the percentage of new keys that are denied now.
    fn denies(&mut self) -> f64 {
        let denied = (0..HONEST).filter(|_| !self.admits()).count();
        denied as f64 * 100.0 / HONEST as f64
    }
}

/// 25 000 new keys per second at 5 per minute. A key is in debt for 12 s, so 300 000 keys are at a
/// time.
#[test]
fn a_flood_denies_the_documented_share_of_new_keys() {
    for (capacity, at_12s, from_36s, within) in
        [(131_072, 74.0, 58.0, 6.0), (300_000, 0.0, 0.9, 0.5), (400_000, 0.0, 0.0, 0.1)]
    {
        let mut flood = Flood::new(capacity, Quota::per_minute(5));
        flood.lasts(12_000, 25);
        let denied = flood.denies();
        assert!((denied - at_12s).abs() <= within, "{capacity}: {denied} % when 12 s are over");
        flood.lasts(24_000, 25);
        let denied = flood.lasts(12_000, 25);
        assert!((denied - from_36s).abs() <= within, "{capacity}: {denied} % from 36 s on");
    }
}

/// 10 new keys per millisecond with one request each, and as much capacity as the formula gives.
#[test]
fn with_the_capacity_of_the_formula_almost_no_new_key_is_denied() {
    let every_2s = |algorithm| {
        let quota = Quota::new(5, Duration::from_secs(2)).expect("a quota");
        quota.with_algorithm(algorithm)
    };
    for (quota, seconds) in [
        (Quota::per_minute(60), 1),
        (every_2s(Algorithm::TokenBucket), 2),
        (every_2s(Algorithm::fixed_window()), 2),
        (every_2s(Algorithm::AnchoredWindow), 2),
        (every_2s(Algorithm::SlidingLog), 2),
        (every_2s(Algorithm::SlidingWindow { buckets: 2 }), 3),
    ] {
        let denied = |capacity| {
            let mut flood = Flood::new(capacity, quota);
            flood.lasts(4_000, 10);
            flood.lasts(4_000, 10)
        };
        let by_formula = denied(10_000 * seconds);
        assert!(by_formula <= 1.0, "{quota:?}: {by_formula} %");
        let too_small = denied(10_000 * seconds / 4);
        assert!(too_small >= 10.0, "{quota:?}: {too_small} % with a quarter");
    }
}

/// 20 000 new keys with one unit each, in a store of which a share of the capacity is in debt.
#[test]
fn a_fuller_store_denies_the_documented_share_of_new_keys() {
    const CAPACITY: u32 = 500_000;
    const NEW: u64 = 20_000;
    for (load, without_an_entry, denied) in
        [(50, 0.01, 0.0), (80, 0.09, 0.04), (100, 1.0, 0.6), (120, 3.9, 3.5), (150, 16.0, 16.0)]
    {
        let mut flood = Flood::new(CAPACITY as usize, Quota::per_hour(1));
        (0..CAPACITY / 100 * load).for_each(|_| _ = flood.admits());
        let before = flood.store.stats().overflowed;
        let late = (0..NEW).filter(|_| !flood.admits()).count() as u64;
        let shared = flood.store.stats().overflowed - before;
        for (keys, percent) in [(shared, without_an_entry), (late, denied)] {
            let found = keys as f64 * 100.0 / NEW as f64;
            assert!((found - percent).abs() <= 0.3 + percent / 4.0, "{load} %: {found}, {percent}");
        }
    }
}
