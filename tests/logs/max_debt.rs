//! A late charge that is not made as a whole is logged once.

use http::{Request, Response};
use tower::{Layer, service_fn};
use tower_sluice::{
    Algorithm, Key, Limiter, Quota, RateLimitLayer, StoreExt, key::Everyone,
    middleware::Adjustment, store::GovernorStore, testing::FakeClock,
};

use crate::{alone, log::Log, support::ask};

#[test]
fn a_late_charge_beyond_max_debt_is_logged_once() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let limiter = Limiter::named("default", FakeClock::new().store(10_000));
    // Seven units are the limit and the debt. A refund of more than was charged logs nothing.
    let quota = Quota::per_minute(5).with_max_debt(2);
    for key in 0..100_u32 {
        drop(limiter.charge(key, &quota, 7).now());
        drop(limiter.refund(key, &quota, 9).now());
        drop(limiter.refund(key, &quota.with_algorithm(Algorithm::SlidingLog), 9).now());
        drop(limiter.charge(key, &quota, 7).now());
    }
    assert_eq!(log.read(), [""; 0], "all units are charged");
    for key in 0..100_u32 {
        drop(limiter.charge(key, &quota, 1).now());
        drop(limiter.charge(key, &quota.with_algorithm(Algorithm::SlidingLog), 9).now());
    }
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = "a late charge exceeds the max_debt of quota 5/min: 5 units and a debt of 2 are charged \
                already, and the excess is dropped; reserve more, or raise Quota::with_max_debt \
                (logged once)";
    assert!(lines[0].ends_with(said), "{lines:?}");
}

/// A `GovernorStore` cannot charge late.
#[tokio::test]
async fn a_late_charge_that_the_store_cannot_make_is_logged_once() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let ten = governor::Quota::per_hour(std::num::NonZeroU32::MIN.saturating_add(9));
    let limiter = std::sync::Arc::new(governor::RateLimiter::<Key, _, _>::keyed(ten));
    let store = GovernorStore::new(limiter).fail_closed();
    let layer =
        RateLimitLayer::new(Everyone, Quota::per_hour(10), store).adjust(|_| Adjustment::Charge(4));
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(())));
    let mut service = layer.layer(inner);
    for _ in 0..3 {
        ask(&mut service, Request::new(())).await;
    }
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = "a late charge of rule default has no effect: the store failed, or does not support late \
                charges; reserve the highest cost instead (logged once)";
    assert!(lines[0].ends_with(said), "{lines:?}");
}
