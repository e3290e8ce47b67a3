//! The time for which a layer holds slots: until the body ends or is dropped, or until the head.

use std::{convert::Infallible, io};

use axum::{Router, body::Body, extract::Request, routing::get};
use bytes::Bytes;
use futures::{Stream, stream};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tower::BoxError;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::Everyone,
    middleware::{HoldUntil, Slot, SlotBody},
    rule::{RuleName, Rules},
    store::Charge,
};

use crate::support;

type SlotLayer = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// One slot for all requests, and the store that counts it.
fn one_slot() -> (SlotLayer, LocalStore) {
    let store = LocalStore::with_capacity(64);
    let quotas = [Quota::concurrent(1), Quota::per_hour(1_000)];
    (RateLimitLayer::new(Everyone, quotas, store.clone()), store)
}

fn held(store: &LocalStore) -> u64 {
    store.stats().held
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

/// A router whose body sends these frames.
fn streaming<S>(frames: impl Fn() -> S + Clone + Send + Sync + 'static) -> Router
where
    S: Stream<Item = Result<Frame<Bytes>, io::Error>> + Send + 'static,
{
    let handler = move || {
        let body = Body::new(StreamBody::new(frames()));
        async move { Response::new(body) }
    };
    Router::new().route("/", get(handler))
}

async fn call(app: &Router) -> Response<Body> {
    app.clone().oneshot(Request::new(Body::empty())).await.expect("infallible")
}

#[tokio::test]
async fn a_slot_is_held_until_the_last_frame() {
    let (layer, store) = one_slot();
    let sent = || stream::iter([data("a"), data("b"), Frame::trailers(HeaderMap::new())].map(Ok));
    let app = streaming(sent).layer(layer);
    let response = call(&app).await;
    assert_eq!(held(&store), 1);
    assert_eq!(call(&app).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let whole = [("data", 1), ("data", 1), ("trailers", 1), ("end", 0)];
    assert_eq!(support::frames(&mut response.into_body(), || held(&store)).await, whole);
    assert_eq!(call(&app).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_exposed_slot_outlives_the_response() {
    let (layer, store) = one_slot();
    let (sender, mut spawned) = tokio::sync::mpsc::unbounded_channel();
    let upgrade = move |request: Request| {
        let slot = request.extensions().get::<Slot>().cloned().expect("it is exposed");
        sender.send(slot).expect("open");
        async { StatusCode::SWITCHING_PROTOCOLS }
    };
    let app = Router::new().route("/", get(upgrade)).layer(layer.expose_slot());
    let response = call(&app).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert!(response.extensions().get::<Slot>().is_some());
    drop(response);
    assert_eq!(held(&store), 1, "the upgraded connection holds the slot");
    drop(spawned.recv().await);
    assert_eq!(held(&store), 0);
}

#[tokio::test]
async fn a_slot_is_not_exposed_by_default() {
    let (layer, store) = one_slot();
    let handler = async |request: Request| {
        assert!(request.extensions().get::<Slot>().is_none());
        StatusCode::SWITCHING_PROTOCOLS
    };
    let app = Router::new().route("/", get(handler)).layer(layer.expose_decision());
    let response = call(&app).await;
    let decision = response.extensions().get::<tower_sluice::Decision>().cloned();
    assert_eq!(decision.expect("exposed").outcomes()[0].held(), Some(1));
    let (parts, body) = response.into_parts();
    assert!(body.collect().await.is_ok());
    assert_eq!(held(&store), 0, "the decision in the extensions holds nothing");
    drop(parts);
}

/// Returns the status of a response with a body of the type `B`, and the slots it holds.
async fn served<K, B>(
    layer: RateLimitLayer<K, LocalStore>,
    store: &LocalStore,
    body: fn() -> B,
) -> (StatusCode, u64)
where
    K: Rules,
    B: hyper::body::Body + Default + Unpin + 'static,
{
    let inner = service_fn(move |_: Request| {
        std::future::ready(Ok::<_, Infallible>(Response::new(body())))
    });
    let response = layer.layer(inner).oneshot(Request::new(Body::empty())).await;
    let response = response.expect("infallible");
    let result = (response.status(), held(store));
    let _ = response.into_body().collect().await;
    assert_eq!(held(store), 0);
    result
}

#[tokio::test]
async fn a_body_that_cannot_hold_a_slot_is_rejected() {
    type Boxed = UnsyncBoxBody<Bytes, BoxError>;

    let (layer, store) = one_slot();
    let full = || Full::new(Bytes::from("hello"));
    let rejected = served(layer.clone(), &store, full).await;
    assert_eq!(rejected, (StatusCode::SERVICE_UNAVAILABLE, 0));
    let until_head = layer.clone().hold_until(HoldUntil::Head);
    assert_eq!(served(until_head, &store, full).await, (StatusCode::OK, 0));

    let boxed = || Boxed::new(Full::new(Bytes::from("hello")).map_err(BoxError::from));
    let rejected = served(layer.clone(), &store, boxed).await;
    assert_eq!(rejected, (StatusCode::SERVICE_UNAVAILABLE, 0));
    let with = layer.clone().hold_with(|body: Boxed, slot| Boxed::new(SlotBody::new(body, slot)));
    assert_eq!(served(with, &store, boxed).await, (StatusCode::OK, 1));
    let with = layer.hold_with(|body: Boxed, slot| Boxed::new(SlotBody::new(body, slot)));
    let rejected = served(with, &store, Empty::<Bytes>::new).await;
    assert_eq!(rejected, (StatusCode::SERVICE_UNAVAILABLE, 0), "a function for another body");

    let (key, quotas) = (Key::everyone(), [Quota::concurrent(1), Quota::per_hour(1_000)]);
    let left = store.peek(&[Charge::new(RuleName::default(), &key, &quotas).with_cost(0)]).now();
    assert_eq!(left.outcomes()[1].remaining(), 998, "the requests that were served");

    let rates = RateLimitLayer::new(Everyone, Quota::per_hour(9), LocalStore::with_capacity(64));
    assert_eq!(served(rates, &store, full).await, (StatusCode::OK, 0), "a rate needs no function");
    let rule = |name, quota| Rule::new(name, Everyone, quota);
    let either = rule("rate", Quota::per_hour(1)).or(rule("jobs", Quota::concurrent(1)));
    let either = RateLimitLayer::rules(either, LocalStore::with_capacity(64));
    for expected in [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
        assert_eq!(served(either.clone(), &store, full).await, (expected, 0));
    }
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_tonic_body_holds_a_slot() {
    let (layer, store) = one_slot();
    let body = || tonic::body::Body::new(Full::new(Bytes::from("hello")));
    assert_eq!(served(layer, &store, body).await, (StatusCode::OK, 1));
}
