//! Late charges stop at a cap that is the quota's, and what parallel requests spend is what the
//! documentation says.

use std::time::Duration;

use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};

const HOUR: Duration = Duration::from_secs(3_600);
const RESERVED: u32 = 1;
const COST: u32 = 100_000;

/// Units that a key spends in an hour, and units it is charged in that time: requests reserve 1, run
/// as many at a time as are admitted, and cost 100 000.
fn spends_in_an_hour(quota: Quota) -> u64 {
    let clock = FakeClock::new();
    let limiter = Limiter::new(clock.store(64));
    let (mut spent, mut passed) = (0, Duration::ZERO);
    while passed < HOUR {
        let mut open = 0;
        while limiter.take("mallory", &quota, RESERVED).now().is_allowed() {
            open += 1;
        }
        for _ in 0..open {
            limiter.settle("mallory", &quota, i64::from(RESERVED) - i64::from(COST)).now();
            spent += u64::from(COST);
        }
        let full = limiter.peek("mallory", &quota).now().outcomes()[0].reset_after();
        clock.advance(full);
        passed += full;
    }
    spent
}

/// The figures of `Quota::max_debt`: 1 000 units a minute.
#[test]
fn parallel_requests_spend_what_the_documentation_says() {
    let quota = Quota::per_minute(1_000);
    assert_eq!(spends_in_an_hour(quota), 3_000_000_000);
    // limit * (a / r - 1)
    let debt = 1_000 * (COST / RESERVED - 1);
    assert_eq!(debt, 99_999_000);
    assert_eq!(spends_in_an_hour(quota.max_debt(debt)), 100_000_000);
    let days = quota.max_debt(debt).interval() * (debt + 1_000) / 86_400;
    assert_eq!(days.as_secs(), 69);
}

/// What was spent is charged in the end, whatever requests cost, if the debt is as the formula says.
#[test]
fn with_the_debt_of_the_formula_no_unit_is_lost() {
    for (limit, reserved, cost) in [(10, 1, 7), (100, 3, 40), (50, 50, 51)] {
        let open = limit / reserved;
        let quota = Quota::per_second(limit).max_debt(open * cost - limit);
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::fixed_window()] {
            let quota = quota.algorithm(algorithm);
            let limiter = Limiter::new(FakeClock::new().store(64));
            for _ in 0..open {
                assert!(limiter.take("alice", &quota, reserved).now().is_allowed());
            }
            for _ in 0..open {
                limiter.settle("alice", &quota, i64::from(reserved) - i64::from(cost)).now();
            }
            // all of it can be given back, and no more was charged
            let back = i64::from(open * cost - 1);
            assert_eq!(limiter.settle("alice", &quota, back).now().remaining(), Some(limit - 1));
        }
    }
}

/// A cap that is lowered while the server runs forgives no debt, and adds none.
#[test]
fn a_lower_cap_leaves_the_debt_of_an_account() {
    let (deep, none) = (Quota::per_minute(10).max_debt(30), Quota::per_minute(10).max_debt(0));
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 6 },
        Algorithm::SlidingLog,
    ] {
        let limiter = Limiter::new(FakeClock::new().store(64));
        let [deep, none] = [deep, none].map(|quota| quota.algorithm(algorithm));
        limiter.settle("mallory", &deep, -40).now();
        limiter.settle("mallory", &none, -40).now();
        assert_eq!(limiter.settle("mallory", &none, 30).now().remaining(), Some(0), "{none:?}");
        assert_eq!(limiter.settle("mallory", &none, 4).now().remaining(), Some(4), "{none:?}");
    }
}
