//! A late charge beyond `max_debt` is logged once.

use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};

use crate::{alone, log::Log};

#[test]
fn a_late_charge_beyond_max_debt_is_logged_once() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let limiter = Limiter::new(FakeClock::new().store(10_000));
    let quota = Quota::per_minute(5).with_max_debt(2);
    for key in 0..100_u32 {
        limiter.adjust(key, &quota, 7).now();
        limiter.adjust(key, &quota, -9).now();
        limiter.adjust(key, &quota.with_algorithm(Algorithm::SlidingLog), -9).now();
        limiter.adjust(key, &quota, 7).now();
    }
    assert_eq!(log.read(), [""; 0], "all units are charged");
    for key in 0..100_u32 {
        limiter.adjust(key, &quota, 1).now();
        limiter.adjust(key, &quota.with_algorithm(Algorithm::SlidingLog), 9).now();
    }
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = "a late charge exceeds the max_debt of quota 5/min: 5 units and a debt of 2 are charged \
                already, and the excess is dropped; reserve more, or raise Quota::with_max_debt \
                (logged once)";
    assert!(lines[0].ends_with(said), "{lines:?}");
}
