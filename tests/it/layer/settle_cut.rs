//! Charges that are adjusted although the response is cut short.
//!
//! Examples are a body without an end, a handler that panics, and a client that disconnects.

use std::convert::Infallible;

use axum::body::Body;
use http::Request;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, key::Everyone, middleware::Adjustment,
    testing::FakeClock,
};

use crate::support::driven::left;

/// A request is charged 100 units at first and uses one for each byte of its body.
const TOKENS: Quota = Quota::per_hour(1_000);

type Layered = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// The default for a charge that is not adjusted.
#[derive(Clone, Copy, Debug)]
enum Unsettled {
    Stays,
    IsRefunded,
}

fn layer(unsettled: Unsettled) -> (Layered, impl Fn() -> u32) {
    let store = FakeClock::new().store(64);
    let rule = Rule::new("tokens", Everyone, TOKENS).cost(100);
    let layer = RateLimitLayer::rules(rule, store.clone());
    let layer = match unsettled {
        Unsettled::Stays => layer.expose_charge(Adjustment::Keep),
        Unsettled::IsRefunded => layer.expose_charge(Adjustment::Refund),
    };
    (layer, move || left(&store, "tokens", Key::everyone(), &TOKENS))
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_runs_adjusts_to_the_default() {
    for (default, expected) in [(Unsettled::Stays, 900), (Unsettled::IsRefunded, 1_000)] {
        let (layer, left) = layer(default);
        let stuck = service_fn(|request: Request<Body>| async {
            let _request = request;
            std::future::pending::<Result<http::Response<Body>, Infallible>>().await
        });
        let mut running = tokio_test::task::spawn(layer.layer(stuck).oneshot(request()));
        assert!(running.poll().is_pending());
        assert_eq!(left(), 900);
        drop(running);
        assert_eq!(left(), expected, "{default:?}");
    }
}

/// A client that disconnects each time runs no more handlers than a client that stays.
#[tokio::test]
async fn clients_that_disconnect_are_limited_like_others() {
    let (layer, _) = layer(Unsettled::Stays);
    let run = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let runs = run.clone();
    let stuck = service_fn(move |_: Request<Body>| {
        runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let service = layer.layer(stuck);
    for _ in 0..1_000 {
        let mut running = tokio_test::task::spawn(service.clone().oneshot(request()));
        let _ = running.poll();
    }
    assert_eq!(run.load(std::sync::atomic::Ordering::SeqCst), 10);
}
