//! A handler settles to what was really used through the reservation in its request: each charge
//! once, and what is left open becomes what the layer was told.

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Barrier, Mutex},
    thread,
};

use axum::{Router, routing};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use support::{
    ask,
    driven::{Counting, handler, left, limiter, secs},
    get, header,
};
use tower::{Layer, ServiceExt};
use tower_sluice::{
    Key, LocalStore, Missing, Outcome, Quota, RateLimitLayer, Reservation, Rule, Settle, Store,
    key::{Everyone, Header},
    testing::FakeClock,
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

type Layered = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// What is left of ten after a request of cost four whose handler does this.
async fn after(reserve: impl Fn(Layered) -> Layered, handle: impl Fn(Reservation) + Clone) -> u32 {
    let store = store();
    let handler = handler(|request| {
        handle(reservation(&request));
        200
    });
    let mut service = reserve(layer(store.clone())).layer(handler);
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    has(&store)
}

fn kept(layer: Layered) -> Layered {
    layer.reserve()
}

fn refunded(layer: Layered) -> Layered {
    layer.reserve_refunding_disconnects()
}

fn at_least(units: u32) -> impl Fn(Layered) -> Layered {
    move |layer| layer.reserve_at_least(units)
}

#[tokio::test]
async fn a_handler_settles_to_less_or_to_more_once() {
    assert_eq!(after(kept, |reserved| reserved.settle(1)).await, 9);
    assert_eq!(after(kept, |reserved| reserved.settle(9)).await, 1);
    assert_eq!(after(refunded, |reserved| reserved.settle(4)).await, 6);
    assert_eq!(after(kept, |reserved| reserved.refund()).await, 10);
    let twice = |reserved: Reservation| {
        reserved.settle(2);
        reserved.clone().settle(9);
        reserved.refund();
    };
    assert_eq!(after(at_least(10), twice).await, 8);
}

#[tokio::test]
async fn what_is_dropped_unsettled_becomes_the_default() {
    assert_eq!(after(kept, drop).await, 6);
    assert_eq!(after(refunded, drop).await, 10);
    assert_eq!(after(at_least(7), drop).await, 3);
    assert_eq!(after(at_least(2), drop).await, 6, "never less than was charged");
    // but only with the last clone, which outlives the response here
    let (kept, store) = (Arc::new(Mutex::new(None)), store());
    let keep = kept.clone();
    let handler = handler(move |request| {
        *keep.lock().expect("no panic") = Some(reservation(&request));
        200
    });
    let layer = layer(store.clone()).reserve_refunding_disconnects();
    ask(&mut layer.layer(handler), get("/")).await;
    assert_eq!(has(&store), 6);
    drop(kept.lock().expect("no panic").take());
    assert_eq!(has(&store), 10);
}

#[tokio::test]
async fn the_handler_is_heard_before_the_head_of_its_response() {
    let store = store();
    let layer = layer(store.clone()).settle(|_| Settle::Refund).reserve_at_least(10);
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
    let layer = RateLimitLayer::rules(rules, store.clone()).reserve_refunding_disconnects();
    let handler = handler(|request| {
        let reserved = reservation(&request);
        let wrong = reserved.settle_rule("token", 7).expect_err("no such rule");
        assert_eq!(wrong.to_string(), "unknown rule `token`, expected one of `calls`, `tokens`");
        assert_eq!(reserved.settle_rule("tokens", 20), Ok(()));
        assert_eq!(reserved.settle_rule("tokens", 90), Ok(()), "which is ignored");
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
        ask(&mut layer(store.clone()).reserve_refunding_disconnects().layer(handler), get("/"))
            .await;
        let reserved = kept.lock().expect("no panic").take().expect("kept");
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for units in [0, 1, 2, 3, 5, 6, 7, 8] {
                let (reserved, start) = (reserved.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    reserved.settle(units);
                });
            }
        });
        drop(reserved);
        assert_eq!(store.settles() + store.given_back(), 1);
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
    let mut service = layer(store.clone()).reserve().layer(inner);
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
    let layer = layer.settle(|_| Settle::Charge(10)).reserve_refunding_disconnects();
    let mut service = layer.layer(inner);
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    let refused = ask(&mut service, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.extensions().get::<Reservation>().is_none());
    assert_eq!((store.takes(), store.settles(), store.given_back()), (2, 1, 0));
}

/// Slow requests that are refunded long after bank nothing: their units have flowed back since.
#[tokio::test]
async fn refunds_of_an_hour_ago_admit_no_more() {
    let (clock, quota) = (FakeClock::new(), Quota::per_minute(5));
    let store = clock.store(64);
    let reserved = Arc::new(Mutex::new(Vec::new()));
    let keep = reserved.clone();
    let inner = handler(move |request| {
        keep.lock().expect("no panic").push(reservation(&request));
        200
    });
    let layer = RateLimitLayer::rules(Rule::new("api", Everyone, quota), store.clone()).reserve();
    let mut service = layer.layer(inner);
    for _ in 0..300 {
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
        clock.advance(secs(12));
    }
    for _ in 0..5 {
        ask(&mut service, get("/")).await;
    }
    let held = std::mem::take(&mut *reserved.lock().expect("no panic"));
    held[..300].iter().for_each(Reservation::refund);
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    // those of this moment are still held
    held[300..].iter().for_each(Reservation::refund);
    assert_eq!(left(&store, "api", Key::everyone(), &quota), 5);
}

/// A rule after another, more than a machine word has bits.
#[tokio::test]
async fn a_reservation_settles_every_one_of_a_hundred_rules() {
    let store = store();
    let names: Vec<_> = (0..100).map(|n| format!("rule-{n}")).collect();
    let rules: Vec<_> = names.iter().map(|name| Rule::new(name, Everyone, TEN).cost(4)).collect();
    let inner = handler(|request| {
        let reserved = reservation(&request);
        assert_eq!(reserved.settle_rule("rule-99", 1), Ok(()));
        reserved.settle(2);
        200
    });
    let layer = RateLimitLayer::rules(rules, store.clone()).reserve();
    assert_eq!(ask(&mut layer.layer(inner), get("/")).await.status(), StatusCode::OK);
    for name in &names {
        let expected = if name == "rule-99" { 9 } else { 8 };
        assert_eq!(left(&store, name, Key::everyone(), &TEN), expected, "{name}");
    }
}

/// A rule that did not charge the request is known all the same.
#[tokio::test]
async fn a_rule_that_did_not_apply_has_nothing_to_settle() {
    let store = store();
    let users = Rule::new("users", Header::new("x-user"), TEN).missing(Missing::Skip);
    let inner = handler(|request| {
        assert_eq!(reservation(&request).settle_rule("users", 9), Ok(()));
        200
    });
    let layer = RateLimitLayer::rules(users, store).reserve();
    assert_eq!(ask(&mut layer.layer(inner), get("/")).await.status(), StatusCode::OK);
}

/// Whoever was refused and then forgiven is not refunded on top.
#[tokio::test]
async fn a_refund_after_a_reset_gives_nothing_back() {
    let (clock, held) = (FakeClock::new(), Arc::new(Mutex::new(Vec::new())));
    let (store, keep) = (clock.store(64), held.clone());
    let inner = handler(move |request| {
        keep.lock().expect("no panic").push(reservation(&request));
        200
    });
    let mut service = layer(store.clone()).reserve().layer(inner);
    ask(&mut service, get("/")).await;
    let first = held.lock().expect("no panic").remove(0);
    clock.advance(secs(1));
    first.reset();
    clock.advance(secs(1));
    ask(&mut service, get("/")).await;
    assert_eq!(has(&store), 6);
    first.refund();
    assert_eq!(has(&store), 6, "what is charged now is another request's");
}

/// As an extractor; without a layer that provides it, the rejection says what to call.
#[tokio::test]
async fn a_handler_without_a_reservation_learns_how_to_get_one() {
    let app = || {
        let spend = async |reserved: Reservation| reserved.settle(1);
        Router::new().route("/", routing::get(spend))
    };
    let ask = || Request::get("/").body(axum::body::Body::empty()).expect("a request");
    let rejected = app().oneshot(ask()).await.expect("infallible");
    assert_eq!(rejected.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let text = rejected.into_body().collect().await.expect("a body").to_bytes();
    let fix = "the request has no `Reservation`; call `.reserve()` on the RateLimitLayer around this \
               handler";
    assert_eq!(text, fix);

    let store = store();
    let limited = app().layer(layer(store.clone()).reserve());
    assert_eq!(limited.oneshot(ask()).await.expect("infallible").status(), StatusCode::OK);
    assert_eq!(has(&store), 9);
}
