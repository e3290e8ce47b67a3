//! Bounds of the sliding window and the sliding log, in any span of time.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{Algorithm, Limiter, LocalStore, Quota, testing::FakeClock};

/// A part of a load.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// As many requests as are allowed, at one instant.
    Burst,
    /// A number of requests, one after each quarter of a mean interval.
    Steady(u32),
    /// A pause in sixteenths of a bucket, with an offset of -1, 0 or 1 nanoseconds.
    Pause(u32, i64),
}

fn loads() -> impl Strategy<Value = Vec<Load>> {
    let load = prop_oneof![
        3 => Just(Load::Burst),
        1 => (1..200_u32).prop_map(Load::Steady),
        3 => (0..40_u32, -1..2_i64).prop_map(|(part, beside)| Load::Pause(part, beside)),
        2 => (0..20_u32, -1..2_i64).prop_map(|(part, beside)| Load::Pause(16 * part, beside)),
    ];
    vec(load, 1..40)
}

/// The allowed requests of one key, by their instants in nanoseconds.
struct Allowed {
    clock: FakeClock,
    limiter: Limiter<LocalStore>,
    quota: Quota,
    now: u64,
    instants: Vec<u64>,
}

impl Allowed {
    fn new(quota: Quota) -> Self {
        let clock = FakeClock::new();
        let limiter = Limiter::named("default", clock.store(16));
        Self { clock, limiter, quota, now: 0, instants: Vec::new() }
    }

    fn pass(&mut self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
        self.now += nanos;
    }

    fn request(&mut self) -> bool {
        let allowed = self.limiter.take("key", &self.quota, 1).now().is_allowed();
        self.instants.extend(allowed.then_some(self.now));
        allowed
    }

    fn load(&mut self, load: Load, width: u64) {
        match load {
            Load::Burst => while self.request() {},
            Load::Steady(requests) => {
                let gap = (nanos(self.quota.interval()) / 4).max(1);
                (0..requests).for_each(|_| {
                    self.request();
                    self.pass(gap);
                });
            }
            Load::Pause(part, beside) => {
                self.pass((width * u64::from(part) / 16).saturating_add_signed(beside));
            }
        }
    }

    /// Returns the most requests that were allowed in a span of `nanos`, with both of its ends.
    fn most_in(&self, nanos: u64) -> usize {
        let mut first = 0;
        let within = self.instants.iter().enumerate().map(|(at, last)| {
            while last - self.instants[first] > nanos {
                first += 1;
            }
            at + 1 - first
        });
        within.max().unwrap_or(0)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("fits")
}

const SECOND: u64 = 1_000_000_000;
const WINDOW: Quota =
    Quota::per_second(500).with_algorithm(Algorithm::SlidingWindow { buckets: 10 });
const LOG: Quota = Quota::per_second(500).with_algorithm(Algorithm::SlidingLog);

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn a_sliding_window_allows_its_units_in_any_span_one_bucket_shorter_than_its_period(
        units in 1..60_u32,
        buckets in 1..13_u32,
        width in prop_oneof![100..1_000_u64, 1_000_000..SECOND],
        loads in loads(),
    ) {
        let period = width * u64::from(buckets);
        let quota = Quota::new(units, Duration::from_nanos(period)).expect("a quota");
        let mut window = Allowed::new(quota.with_algorithm(Algorithm::SlidingWindow { buckets }));
        loads.into_iter().for_each(|load| window.load(load, width));
        prop_assert!(window.most_in(period - width) <= units as usize);
        prop_assert!(window.most_in(period - 1) < 2 * units as usize);
        let periods = (window.now / width + 2).div_ceil(buckets.into());
        prop_assert!(window.instants.len() as u64 <= periods * u64::from(units));
    }

    #[test]
    fn a_sliding_log_allows_its_units_in_any_period(
        units in 1..60_u32,
        period in prop_oneof![1_000..10_000_u64, SECOND..60 * SECOND],
        loads in loads(),
    ) {
        let quota = Quota::new(units, Duration::from_nanos(period)).expect("a quota");
        let mut log = Allowed::new(quota.with_algorithm(Algorithm::SlidingLog));
        loads.into_iter().for_each(|load| log.load(load, period / 10));
        prop_assert!(log.most_in(period - 1) <= units as usize);
    }
}

/// A second of a steady load that is too fast has more than the units, and one around two bursts
/// has nearly twice the units. A sliding log has exactly the units.
#[test]
fn a_sliding_window_allows_more_than_its_units_in_a_whole_period() {
    // A steady load that begins in the middle of a bucket.
    let steady = |quota, per_second: u64| {
        let mut allowed = Allowed::new(quota);
        allowed.pass(SECOND / 20);
        for _ in 0..5 * per_second {
            allowed.request();
            allowed.pass(SECOND / per_second);
        }
        [allowed.most_in(SECOND - 1), allowed.most_in(SECOND / 10 * 9)]
    };
    // One instant before the end of a bucket, and one instant before that bucket has left.
    let bursts = |quota| {
        let mut allowed = Allowed::new(quota);
        for pause in [SECOND / 10 - 1, SECOND - 1] {
            allowed.pass(pause);
            allowed.load(Load::Burst, 0);
        }
        [allowed.most_in(SECOND - 1), allowed.most_in(SECOND / 10 * 9)]
    };
    assert_eq!([1_000, 4_000].map(|rate| steady(WINDOW, rate)), [[524, 500], [599, 500]]);
    assert_eq!(bursts(WINDOW), [999, 500]);
    assert_eq!([1_000, 4_000].map(|rate| steady(LOG, rate)[0]), [500; 2]);
    assert_eq!(bursts(LOG)[0], 500);
}
