//! One meaning of a path: allow lists, `applies`, costs, plans, keys and routes see the path that the
//! client sent, although a nested router removes its prefix from the request.

use axum::{Router, body::Body, routing::get};
use http::{Method, Request};
use tower::ServiceExt;
use tower_sluice::{
    AccessList, Cost, LocalStore, Plan, Quota, RateLimitLayer, RequestHead, Rule, by_route,
    key::Everyone, key_fn, rule::Applies,
};

const PATH: &str = "/api/healthz";
const ONE: Quota = Quota::per_hour(1);
const NINE: Quota = Quota::per_hour(9);

fn is_it(head: &RequestHead<'_>) -> bool {
    head.path() == PATH && head.uri().path() == PATH
}

/// The nested router, which gets the layer.
fn inner() -> Router {
    Router::new().route("/healthz", get(async || "well"))
}

fn rule() -> Rule<Everyone> {
    Rule::new("all", Everyone, ONE)
}

fn limited(rule: Rule<Everyone>) -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    RateLimitLayer::rules(rule, LocalStore::with_capacity(16))
}

/// Returns the status of the second request to the path.
async fn second(inner: Router) -> u16 {
    let app = Router::new().nest("/api", inner);
    let mut last = 0;
    for _ in 0..2 {
        let request = Request::get(PATH).body(Body::empty()).expect("a request");
        last = app.clone().oneshot(request).await.expect("infallible").status().as_u16();
    }
    last
}

#[tokio::test]
async fn every_place_of_a_nested_layer_sees_the_path_that_the_client_sent() {
    assert_eq!(second(inner().layer(limited(rule()))).await, 429, "the layer runs");

    let allowed = limited(rule()).allow(AccessList::from_fn(is_it));
    assert_eq!(second(inner().layer(allowed)).await, 200, "allow");

    let denied = limited(rule()).deny(AccessList::from_fn(is_it));
    assert_eq!(second(inner().layer(denied)).await, 403, "deny");

    let applies =
        |head: &RequestHead<'_>| if is_it(head) { Applies::Skip } else { Applies::Charge };
    assert_eq!(second(inner().layer(limited(rule().applies(applies)))).await, 200, "applies");

    let free = Cost::from_fn(|head| if is_it(head) { 0 } else { 1 });
    assert_eq!(second(inner().layer(limited(rule().cost(free)))).await, 200, "cost");

    let plan = Plan::from_fn(|head, _| if is_it(head) { NINE } else { ONE }.into());
    let planned = limited(Rule::new("all", Everyone, plan));
    assert_eq!(second(inner().layer(planned)).await, 200, "plan");

    // Without the key, the status would be 400.
    let key = key_fn(|head| is_it(head).then_some("the path"));
    let keyed = RateLimitLayer::new(key, NINE, LocalStore::with_capacity(16));
    assert_eq!(second(inner().layer(keyed)).await, 200, "key");

    let routes = by_route([(Method::GET, PATH, NINE)], ONE);
    let routed = RateLimitLayer::rules(routes, LocalStore::with_capacity(16));
    assert_eq!(second(inner().layer(routed)).await, 200, "route");
}
