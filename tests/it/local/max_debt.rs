//! Late charges, which stop at the maximum debt of the quota.

use std::time::Duration;

use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};

const HOUR: Duration = Duration::from_secs(3_600);
const RESERVED: u32 = 1;
const COST: u32 = 100_000;

/// Returns the units that a key spends in an hour. Requests are charged 1 at first, run in parallel
/// as allowed, and cost 100 000.
fn spends_in_an_hour(quota: Quota) -> u64 {
    let clock = FakeClock::new();
    let limiter = Limiter::named("default", clock.store(64));
    let (mut spent, mut passed) = (0, Duration::ZERO);
    while passed < HOUR {
        let mut open = 0;
        while limiter.take("mallory", &quota, RESERVED).now().is_allowed() {
            open += 1;
        }
        for _ in 0..open {
            drop(limiter.charge("mallory", &quota, COST - RESERVED).now());
            spent += u64::from(COST);
        }
        let full = limiter.peek("mallory", &quota).now().outcomes()[0].reset_after();
        clock.advance(full);
        passed += full;
    }
    spent
}

/// The figures in the documentation of `Quota::with_max_debt`: 1 000 units a minute.
#[test]
fn parallel_requests_spend_the_documented_number_of_units() {
    let quota = Quota::per_minute(1_000);
    assert_eq!(spends_in_an_hour(quota), 3_000_000_000);
    // limit * (a / r - 1)
    let debt = 1_000 * (COST / RESERVED - 1);
    assert_eq!(debt, 99_999_000);
    assert_eq!(spends_in_an_hour(quota.with_max_debt(debt)), 100_000_000);
    let days = quota.with_max_debt(debt).interval() * (debt + 1_000) / 86_400;
    assert_eq!(days.as_secs(), 69);
}

/// With the debt of the formula all spent units are charged in the end, at any cost of the
/// requests.
#[test]
fn with_the_debt_of_the_formula_no_unit_is_lost() {
    for (limit, reserved, cost) in [(10, 1, 7), (100, 3, 40), (50, 50, 51)] {
        let open = limit / reserved;
        let quota = Quota::per_second(limit).with_max_debt(open * cost - limit);
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::fixed_window()] {
            let quota = quota.with_algorithm(algorithm);
            let limiter = Limiter::named("default", FakeClock::new().store(64));
            for _ in 0..open {
                assert!(limiter.take("alice", &quota, reserved).now().is_allowed());
            }
            for _ in 0..open {
                drop(limiter.charge("alice", &quota, cost - reserved).now());
            }
            // all of it can be refunded, so no more was charged
            let back = open * cost - 1;
            assert_eq!(limiter.refund("alice", &quota, back).now().remaining(), Some(limit - 1));
        }
    }
}
