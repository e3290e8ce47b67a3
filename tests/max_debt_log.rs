//! A late charge that is cut is a line in the log, once.

#[path = "support/log.rs"]
mod log;

use log::Log;
use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};

#[test]
fn a_charge_that_is_cut_is_logged_once() {
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let limiter = Limiter::new(FakeClock::new().store(10_000));
    let quota = Quota::per_minute(5).max_debt(2);
    for key in 0..100_u32 {
        limiter.settle(key, &quota, -7).now();
    }
    assert_eq!(log.read(), [""; 0], "nothing is lost");
    for key in 0..100_u32 {
        limiter.settle(key, &quota, -1).now();
        limiter.settle(key, &quota.algorithm(Algorithm::SlidingLog), -9).now();
    }
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = "a late charge under quota 5/min is cut: 5 units and a max_debt of 2 are charged \
                already, and what was spent beyond is lost; reserve more, or raise Quota::max_debt \
                (logged once)";
    assert!(lines[0].ends_with(said), "{lines:?}");
}
