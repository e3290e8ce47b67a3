//! A handler settles to what was really used through the reservation in its request: each charge
//! once, and what is left open becomes what the layer was told.

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Barrier, Mutex},
    thread,
};

use http::{Request, StatusCode};
use support::{
    ask,
    driven::{Counting, handler, left, limiter, secs},
    get, header,
};
use tower::Layer;
use tower_sluice::{
    Key, LocalStore, Outcome, Quota, RateLimitLayer, Reservation, Rule, Settle, Store,
    key::Everyone, testing::FakeClock,
};

const TEN: Quota = Quota::per_hour(10);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn layer<S: Store<Error = Infallible>>(store: S) -> RateLimitLayer<Rule<Everyone>, S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, TEN).cost(4), store)
}

fn has(store: &LocalStore) -> u32 {
    left(store, "api", Key::everyone(), &TEN)
}

fn reservation(request: &Request<()>) -> Reservation {
    request.extensions().get().cloned().expect("a reservation")
}

/// What is left of ten after a request of cost four whose handler does this.
async fn after(default: Settle, handle: impl Fn(Reservation) + Clone) -> u32 {
    let store = store();
    let handler = handler(|request| {
        handle(reservation(&request));
        200
    });
    let mut service = layer(store.clone()).reserve(default).layer(handler);
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    has(&store)
}

#[tokio::test]
async fn a_handler_settles_to_less_or_to_more_once() {
    assert_eq!(after(Settle::Keep, |reserved| reserved.settle(1)).await, 9);
    assert_eq!(after(Settle::Keep, |reserved| reserved.settle(9)).await, 1);
    assert_eq!(after(Settle::Refund, |reserved| reserved.settle(4)).await, 6);
    assert_eq!(after(Settle::Keep, |reserved| reserved.refund()).await, 10);
    let twice = |reserved: Reservation| {
        reserved.settle(2);
        reserved.clone().settle(9);
        reserved.refund();
    };
    assert_eq!(after(Settle::Charge(10), twice).await, 8);
}

#[tokio::test]
async fn what_is_dropped_unsettled_becomes_the_default() {
    assert_eq!(after(Settle::Keep, drop).await, 6);
    assert_eq!(after(Settle::Refund, drop).await, 10);
    assert_eq!(after(Settle::Charge(7), drop).await, 3);
    // but only with the last clone, which outlives the response here
    let (kept, store) = (Arc::new(Mutex::new(None)), store());
    let keep = kept.clone();
    let handler = handler(move |request| {
        *keep.lock().expect("no panic") = Some(reservation(&request));
        200
    });
    let layer = layer(store.clone()).reserve(Settle::Refund);
    ask(&mut layer.layer(handler), get("/")).await;
    assert_eq!(has(&store), 6);
    drop(kept.lock().expect("no panic").take());
    assert_eq!(has(&store), 10);
}

#[tokio::test]
async fn the_handler_is_heard_before_the_head_of_its_response() {
    let store = store();
    let layer = layer(store.clone()).settle(|_| Settle::Refund).reserve(Settle::Charge(10));
    let handler = handler(|request| {
        reservation(&request).settle(3);
        200
    });
    ask(&mut layer.layer(handler), get("/")).await;
    assert_eq!(has(&store), 7);
}

#[tokio::test]
async fn one_rules_charge_is_settled_apart_from_the_others() {
    let store = store();
    let rules = (
        Rule::new("calls", Everyone, TEN),
        Rule::new("tokens", Everyone, [Quota::per_hour(100), Quota::per_day(500)]).cost(50),
    );
    let layer = RateLimitLayer::rules(rules, store.clone()).reserve(Settle::Refund);
    let handler = handler(|request| {
        let reserved = reservation(&request);
        reserved.settle_rule("token", 7);
        reserved.settle_rule("tokens", 20);
        reserved.settle_rule("tokens", 90);
        assert_eq!(reserved.decision().outcomes().len(), 3);
        200
    });
    ask(&mut layer.layer(handler), get("/")).await;
    let tokens = limiter("tokens", store.clone());
    let look = tokens.peek(Key::everyone(), &[Quota::per_hour(100), Quota::per_day(500)]).now();
    let tokens: Vec<_> = look.outcomes().iter().map(Outcome::remaining).collect();
    assert_eq!(tokens, [80, 480]);
    assert_eq!(left(&store, "calls", Key::everyone(), &TEN), 10, "dropped, it became the default");
}

#[tokio::test]
async fn of_settles_at_one_moment_one_counts() {
    for _ in 0..200 {
        let store = Counting::new(store());
        let kept = Arc::new(Mutex::new(None));
        let keep = kept.clone();
        let handler = handler(move |request| {
            *keep.lock().expect("no panic") = Some(reservation(&request));
            200
        });
        ask(&mut layer(store.clone()).reserve(Settle::Refund).layer(handler), get("/")).await;
        let reserved = kept.lock().expect("no panic").take().expect("kept");
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for units in 5..13 {
                let (reserved, start) = (reserved.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    reserved.settle(units);
                });
            }
        });
        drop(reserved);
        assert_eq!(store.settles(), 1);
    }
}

#[tokio::test]
async fn a_handler_blocks_and_resets_the_keys_of_its_request() {
    let clock = FakeClock::new();
    let store = clock.store(64);
    let inner = handler(|request| {
        match request.uri().path() {
            "/attack" => reservation(&request).block(secs(30)).expect("room"),
            "/forgive" => reservation(&request).reset(),
            _ => {}
        }
        200
    });
    let mut service = layer(store.clone()).reserve(Settle::Keep).layer(inner);
    ask(&mut service, get("/attack")).await;
    let refused = ask(&mut service, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after"), "30");
    clock.advance(secs(30));
    assert_eq!(ask(&mut service, get("/forgive")).await.status(), StatusCode::OK);
    assert_eq!(has(&store), 10);
}

#[tokio::test]
async fn a_refused_request_reserves_nothing() {
    let store = Counting::new(store());
    let inner = handler(|request| {
        assert_eq!(reservation(&request).decision().remaining(), Some(6));
        200
    });
    let layer = RateLimitLayer::rules(Rule::new("api", Everyone, TEN).cost(4), store.clone());
    let layer = layer.settle(|_| Settle::Charge(10)).reserve(Settle::Refund);
    let mut service = layer.layer(inner);
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    let refused = ask(&mut service, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.extensions().get::<Reservation>().is_none());
    assert_eq!((store.takes(), store.settles(), store.given_back()), (2, 1, 0));
}
