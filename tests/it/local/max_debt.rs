//! Late charges, which stop at the maximum debt of the quota.

use std::time::Duration;

use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};

use crate::support::ALGORITHMS;

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

/// A cap that is lowered at run time removes no debt and adds none.
#[test]
fn a_lower_cap_does_not_change_the_debt_of_an_account() {
    let (deep, none) =
        (Quota::per_minute(10).with_max_debt(30), Quota::per_minute(10).with_max_debt(0));
    for algorithm in ALGORITHMS {
        let limiter = Limiter::named("default", FakeClock::new().store(64));
        let [deep, none] = [deep, none].map(|quota| quota.with_algorithm(algorithm));
        drop(limiter.charge("mallory", &deep, 40).now());
        drop(limiter.charge("mallory", &none, 40).now());
        assert_eq!(limiter.refund("mallory", &none, 30).now().remaining(), Some(0), "{none:?}");
        assert_eq!(limiter.refund("mallory", &none, 4).now().remaining(), Some(4), "{none:?}");
    }
}

/// A setting that is read as its default would be lost in a program that copies a quota.
#[test]
fn the_settings_of_a_quota_are_read_as_they_were_set() {
    let plain = Quota::per_minute(10);
    assert_eq!([plain.max_debt(), plain.initial()], [None; 2]);
    assert_eq!([plain.units(), plain.limit(), plain.soft()], [10, 10, 0]);
    for units in [0, 1, 30] {
        assert_eq!(plain.with_max_debt(units).max_debt(), Some(units));
    }
    assert_eq!(plain.with_initial(4).initial(), Some(4));
    assert_eq!(plain.with_burst(20).limit(), 20);
    assert_eq!(plain.with_soft(3).soft(), 3);
    assert_eq!(plain.with_algorithm(Algorithm::SlidingLog).algorithm(), Algorithm::SlidingLog);
}
