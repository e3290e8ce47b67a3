//! The time for which a layer holds slots: until the body ends or is dropped, or until the head.

use std::{
    convert::Infallible,
    io,
    panic::AssertUnwindSafe,
    task::{Context, Waker},
};

use axum::{Router, body::Body, extract::Request, routing::get};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, stream};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tower::BoxError;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::Everyone,
    middleware::{HoldUntil, Slot, SlotBody, Toggle},
    rule::RuleName,
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
async fn a_body_that_fails_or_is_dropped_half_read_frees_its_slot() {
    let (layer, store) = one_slot();
    let fails = || stream::iter([Ok(data("a")), Err(io::Error::other("broken")), Ok(data("b"))]);
    let app = streaming(fails).layer(layer.clone());
    let mut body = call(&app).await.into_body();
    assert_eq!(support::frames(&mut body, || held(&store)).await, [("data", 1), ("error", 0)]);

    let endless = || stream::repeat_with(|| Ok(data("a")));
    let app = streaming(endless).layer(layer);
    let (_, mut body) = call(&app).await.into_parts();
    assert!(body.frame().await.expect("a frame").is_ok());
    assert_eq!(held(&store), 1, "the head is gone, the body is not");
    drop(body);
    assert_eq!(held(&store), 0);
    drop(call(&app).await);
    assert_eq!(held(&store), 0, "a response that nobody reads");
}

#[tokio::test]
async fn a_slot_may_be_held_until_the_head_only() {
    let (layer, store) = one_slot();
    let endless = || stream::repeat_with(|| Ok(data("a")));
    let counted = store.clone();
    let app = streaming(endless).layer(axum::middleware::from_fn(
        move |request: Request, next: axum::middleware::Next| {
            let held = held(&counted);
            async move {
                assert_eq!(held, 1);
                next.run(request).await
            }
        },
    ));
    let app = app.layer(layer.hold_until(HoldUntil::Head));
    let first = call(&app).await;
    assert_eq!(held(&store), 0);
    assert_eq!(call(&app).await.status(), StatusCode::OK);
    drop(first);
}

#[tokio::test]
async fn a_panic_in_the_handler_or_in_the_body_frees_the_slot() {
    let (layer, store) = one_slot();
    let panics = Router::new().route("/", get(async || -> &'static str { panic!("handler") }));
    let app = panics.layer(layer.clone());
    let caught = AssertUnwindSafe(call(&app)).catch_unwind().await;
    assert!(caught.is_err());
    assert_eq!(held(&store), 0);

    let in_call =
        service_fn(|_: Request| -> std::future::Ready<Result<Response<Body>, Infallible>> {
            panic!("before the future")
        });
    let mut service = layer.layer(in_call);
    let call_it = AssertUnwindSafe(|| drop(service.call(Request::new(Body::empty()))));
    assert!(std::panic::catch_unwind(call_it).is_err());
    assert_eq!(held(&store), 0);

    let broken = || stream::iter([()]).map(|()| panic!("body"));
    let app = streaming(broken).layer(layer);
    let body = call(&app).await.into_body();
    assert_eq!(held(&store), 1);
    assert!(AssertUnwindSafe(body.collect()).catch_unwind().await.is_err());
    assert_eq!(held(&store), 0);
}

#[tokio::test]
async fn a_dropped_request_and_a_failed_service_free_the_slot() {
    let (layer, store) = one_slot();
    let pending = Router::new().route("/", get(async || std::future::pending::<()>().await));
    let app = pending.layer(layer.clone());
    let mut waiting = Box::pin(call(&app));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    assert_eq!(held(&store), 1);
    drop(waiting);
    assert_eq!(held(&store), 0);

    let fails = service_fn(async |_: Request| Err::<Response<Body>, _>(io::Error::other("down")));
    let error = layer.layer(fails).oneshot(Request::new(Body::empty())).await;
    assert_eq!((error.expect_err("down").to_string(), held(&store)), ("down".to_owned(), 0));
}

#[tokio::test]
async fn a_timeout_around_the_layer_frees_the_slot() {
    tokio::time::pause();
    let (layer, store) = one_slot();
    let pending =
        service_fn(|_: Request| std::future::pending::<Result<Response<Body>, Infallible>>());
    let patient =
        tower::timeout::Timeout::new(layer.layer(pending), std::time::Duration::from_secs(1));
    assert!(patient.oneshot(Request::new(Body::empty())).await.is_err());
    assert_eq!(held(&store), 0);
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
async fn served<B>(layer: SlotLayer, store: &LocalStore, body: fn() -> B) -> (StatusCode, u64)
where
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
}

#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_tonic_body_holds_a_slot() {
    let (layer, store) = one_slot();
    let body = || tonic::body::Body::new(Full::new(Bytes::from("hello")));
    assert_eq!(served(layer, &store, body).await, (StatusCode::OK, 1));
}

#[tokio::test]
async fn a_body_that_holds_a_slot_keeps_its_length() {
    let (layer, _) = one_slot();
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let response = call(&app).await;
    assert_eq!(response.headers()["content-length"], "5");
    assert_eq!(hyper::body::Body::size_hint(response.body()).exact(), Some(5));
}

#[tokio::test]
async fn a_report_only_layer_holds_no_slot_beyond_the_limit() {
    let (layer, store) = one_slot();
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer(layer.report_only(Toggle::on()));
    let (first, second) = (call(&app).await, call(&app).await);
    assert_eq!((second.status(), held(&store)), (StatusCode::OK, 1));
    drop(second);
    assert_eq!(held(&store), 1);
    drop(first);
    assert_eq!(held(&store), 0);
}

#[test]
fn a_future_that_is_never_polled_frees_its_slot() {
    let (layer, store) = one_slot();
    let inner = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::empty())));
    let future = layer.layer(inner).call(Request::new(Body::empty()));
    assert_eq!(held(&store), 1);
    drop(future);
    assert_eq!(held(&store), 0);
}
