//! Charges that are undone by their receipts.
//!
//! `tests/scenarios/refunds.json` has the values for each algorithm.

use tower_sluice::{Limiter, Quota, testing::FakeClock};

use crate::support::ALGORITHMS;

const TEN: Quota = Quota::per_hour(10);
/// The actual cost of a reservation of three out of ten units, and the units left.
#[tokio::test]
async fn a_reservation_is_adjusted_to_the_actual_cost() {
    for (cost, left) in [(0, 10), (1, 9), (3, 7), (4, 6), (10, 0), (12, 0)] {
        for algorithm in ALGORITHMS {
            let quota = TEN.with_algorithm(algorithm);
            let limiter = Limiter::named("jobs", FakeClock::new().store(64));
            let taken = limiter.reserve("me", &quota, 3).await;
            assert_eq!(taken.decision().remaining(), Some(7));
            limiter.adjust_to(taken, cost);
            let decision = limiter.peek("me", &quota).await;
            assert_eq!(decision.remaining(), Some(left), "{algorithm:?}, {cost}");
        }
    }
    let limiter = Limiter::named("jobs", FakeClock::new().store(64));
    let denied = limiter.reserve("me", &TEN, 11).await;
    assert!(!denied.is_allowed());
    limiter.adjust_to(denied, 5);
    assert_eq!(limiter.peek("me", &TEN).await.remaining(), Some(10), "nothing was taken");
}
