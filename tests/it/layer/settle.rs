//! Charges that are adjusted by the head of the response, or because there is none.

use std::{convert::Infallible, future::pending};

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt, key::Everyone,
    middleware::Adjustment, store::CannotFail,
};

use crate::support::{
    Strict, ask,
    driven::{left, limiter},
    get,
    shaky::Shaky,
    store,
};

const TEN: Quota = Quota::per_hour(10);

/// A request costs four units at first.
fn layer<S: Store<Error: CannotFail>>(store: S) -> RateLimitLayer<Rule<Everyone>, S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, TEN).cost(4), store)
}

fn has(store: &LocalStore) -> u32 {
    left(store, "api", Key::everyone(), &TEN)
}

#[tokio::test]
async fn a_charge_that_stays_as_it_is_takes_no_call() {
    let shaky = Shaky::new(store());
    for (settle, calls) in
        [(Adjustment::Keep, 1), (Adjustment::Charge(4), 2), (Adjustment::Charge(5), 4)]
    {
        let layer = layer(shaky.clone().fail_open());
        let mut service = layer.adjust(move |_| settle).layer(Strict::default());
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
        assert_eq!((shaky.calls(), shaky.given_back()), (calls, 0), "{settle:?}");
        drop(limiter("api", shaky.store.clone()).reset(Key::everyone(), &TEN).now());
    }
}

/// The client disconnects. With `Keep`, it runs no more handlers than one that stays.
#[tokio::test]
async fn a_request_that_is_dropped_while_it_runs_adjusts_to_the_default() {
    for (default, expected) in
        [(Adjustment::Keep, 6), (Adjustment::Refund, 10), (Adjustment::AtLeast(7), 3)]
    {
        let store = store();
        let stuck = service_fn(|_: Request<()>| pending::<Result<Response<String>, Infallible>>());
        let service = layer(store.clone()).expose_charge(default).layer(stuck);
        let mut running = tokio_test::task::spawn(service.oneshot(get("/")));
        assert!(running.poll().is_pending());
        assert_eq!(has(&store), 6);
        drop(running);
        assert_eq!(has(&store), expected, "{default:?}");
    }
}
