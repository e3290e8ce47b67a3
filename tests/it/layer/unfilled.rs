//! Response bodies of a type that the layer does not know, as that of a layer inside.

use std::{convert::Infallible, future::ready, time::Duration};

use axum::{Router, body::Body, routing::post};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::{limit::RequestBodyLimitLayer, trace::TraceLayer};
use tower_sluice::{
    AccessList, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Reject, Rule, StoreExt,
    TooManyRequests,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    reject::reject_fn,
    rule::{Adaptive, Rules},
};

use crate::support::{
    driven::Counting,
    header,
    shaky::{Mood, Shaky},
};

/// Has a `Default`, and is not known.
type Unknown = UnsyncBoxBody<Bytes, BoxError>;

/// Returns the response of a layer around a service with unknown bodies.
async fn answer<L>(layer: &L, request: Request<()>) -> Response<Unknown>
where
    L: Layer<Inner>,
    L::Service: Service<Request<()>, Response = Response<Unknown>, Error = Infallible>,
{
    layer.layer(Inner).oneshot(request).await.expect("infallible")
}

#[derive(Clone)]
struct Inner;

impl Service<Request<()>> for Inner {
    type Response = Response<Unknown>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Unknown>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Unknown::default())))
    }
}

/// The requests that choose each form of a rejection.
fn requests() -> Vec<Request<()>> {
    let request = |method: Method, accept: &str| {
        let request = Request::builder().method(method).uri("/").header("accept", accept);
        request.body(()).expect("a request")
    };
    let bare = Request::get("/").body(()).expect("a request");
    let methods = [Method::GET, Method::POST, Method::HEAD];
    let accepting = methods.map(|method| request(method, "application/json"));
    let any = request(Method::HEAD, "*/*");
    accepting.into_iter().chain([bare, any]).collect()
}

/// Rejects requests of each form.
async fn is_empty_without_a_type<L>(layer: &L, status: StatusCode)
where
    L: Layer<Inner>,
    L::Service: Service<Request<()>, Response = Response<Unknown>, Error = Infallible>,
{
    for request in requests() {
        let sent = format!("{request:?}");
        let response = answer(layer, request).await;
        assert_eq!(response.status(), status, "{sent}");
        for name in ["content-type", "content-length"] {
            assert!(!response.headers().contains_key(name), "{name} after {sent}");
        }
        assert_eq!(header(response.headers(), "cache-control"), "no-store");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(body.is_empty(), "{body:?}");
    }
}

fn layer(quota: Quota) -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    RateLimitLayer::new(Everyone, quota, LocalStore::with_capacity(64))
}

#[tokio::test]
async fn an_empty_rejection_has_no_content_type() {
    let spent = layer(Quota::per_hour(1));
    assert_eq!(answer(&spent, requests().remove(0)).await.status(), StatusCode::OK);
    is_empty_without_a_type(&spent, StatusCode::TOO_MANY_REQUESTS).await;
    is_empty_without_a_type(&layer(Quota::blocked()), StatusCode::FORBIDDEN).await;
    let denied = layer(Quota::per_hour(1)).deny(AccessList::from_fn(|_| true));
    is_empty_without_a_type(&denied, StatusCode::FORBIDDEN).await;
    is_empty_without_a_type(&layer(Quota::concurrent(1)), StatusCode::SERVICE_UNAVAILABLE).await;
    let store = Shaky::new(LocalStore::with_capacity(64));
    store.is(Mood::Failing);
    let failed = RateLimitLayer::new(Everyone, Quota::per_hour(1), store.fail_closed());
    is_empty_without_a_type(&failed, StatusCode::SERVICE_UNAVAILABLE).await;
    let key = HeaderKey::new("x-id");
    let unkeyed = RateLimitLayer::new(key, Quota::per_hour(1), LocalStore::with_capacity(64));
    is_empty_without_a_type(&unkeyed, StatusCode::BAD_REQUEST).await;
}

/// Returns the fields and the text of a rejection.
async fn rejected<R: Reject<Unknown>>(reject: R, request: Request<()>) -> (HeaderMap, Bytes) {
    let response = answer(&layer(Quota::blocked()).reject(reject), request).await;
    let (head, body) = response.into_parts();
    (head.headers, body.collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_body_that_is_filled_has_its_content_type() {
    let full = |text: Bytes| Unknown::new(Full::new(text).map_err(BoxError::from));
    for request in requests() {
        let is_head = request.method() == Method::HEAD;
        let is_json = header(request.headers(), "accept") == "application/json";
        let kind = if is_json { "application/problem+json" } else { "text/plain; charset=utf-8" };
        let found = rejected(TooManyRequests::new().with_body(full), request).await;
        assert_eq!((header(&found.0, "content-type"), found.1.is_empty()), (kind, is_head));
    }
    let own = reject_fn(|_, _| Response::new(Unknown::default()));
    let found = rejected(own, requests().remove(0)).await;
    assert_eq!(header(&found.0, "content-type"), "text/plain; charset=utf-8");
    let mut call = Request::post("/").header("content-type", "application/grpc").body(());
    *call.as_mut().expect("a request").version_mut() = Version::HTTP_2;
    let found = rejected(TooManyRequests::new(), call.expect("a request")).await;
    assert_eq!(header(&found.0, "content-type"), "application/grpc");
}

/// Returns the status of a request for slots, and the number of store calls.
async fn asked<K: Rules>(rules: K) -> (StatusCode, usize) {
    let store = Counting::new(LocalStore::with_capacity(64));
    let layer = RateLimitLayer::rules(rules, store.clone());
    let status = answer(&layer, requests().remove(0)).await.status();
    (status, store.takes() + store.given_back())
}

fn rule(plan: impl Into<Plan>) -> Rule<Everyone> {
    Rule::new("api", Everyone, plan)
}

#[tokio::test]
async fn no_store_is_asked_for_a_slot_that_the_response_cannot_hold() {
    let slot = Quota::concurrent(1);
    let unavailable = (StatusCode::SERVICE_UNAVAILABLE, 0);
    assert_eq!(asked(rule(slot)).await, unavailable);
    assert_eq!(asked(rule([Quota::per_hour(9), slot])).await, unavailable);
    assert_eq!(
        asked((rule(Quota::per_hour(9)).cost(2), Rule::new("b", Everyone, slot))).await,
        unavailable
    );
    assert_eq!(asked(rule(slot).max_wait(Duration::from_secs(1))).await, unavailable);
    assert_eq!(asked(rule(Plan::from_fn(move |_, _| slot.into()))).await, unavailable);
    assert_eq!(asked(rule(Adaptive::gradient().plan())).await, unavailable);
    assert_eq!(asked(rule(&LivePlan::new(slot))).await, unavailable);

    let served = (StatusCode::OK, 1);
    assert_eq!(asked(rule(Quota::per_hour(9))).await, served);
    assert_eq!(asked(rule(&LivePlan::new(Quota::per_hour(9)))).await, served);
    assert_eq!(asked(rule(slot).cost(0)).await, served);
    assert_eq!(asked(rule(slot).report_only(true)).await, served);
}

#[tokio::test]
async fn a_live_plan_may_change_to_slots() {
    let live = LivePlan::new(Quota::per_hour(9));
    let store = Counting::new(LocalStore::with_capacity(64));
    let layer = RateLimitLayer::rules(rule(&live), store.clone());
    let status =
        async |layer: RateLimitLayer<_, _>| answer(&layer, requests().remove(0)).await.status();
    assert_eq!(status(layer.clone()).await, StatusCode::OK);
    live.replace(Quota::concurrent(1));
    assert_eq!(status(layer.clone()).await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((store.takes(), store.given_back()), (1, 0));
    assert_eq!(status(layer.hold_until(HoldUntil::Head)).await, StatusCode::OK);
}

/// The fixes that the compile error of a layer inside names: `TraceLayer` and `RequestBodyLimitLayer`
/// create bodies that nothing else can create.
#[tokio::test]
async fn each_fix_of_a_layer_inside_compiles_and_fills_the_rejection() {
    let limiter = || layer(Quota::blocked());
    let route = || Router::new().route("/", post(async || "served"));
    let own = route()
        .layer(RequestBodyLimitLayer::new(1_000))
        .layer(TraceLayer::new_for_http())
        .layer(limiter());
    let outside = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(RequestBodyLimitLayer::new(1_000))
        .layer(limiter());
    for app in [own, route().layer(outside)] {
        let request = Request::post("/").body(Body::empty()).expect("a request");
        let response = app.oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert_eq!(header(response.headers(), "content-type"), "text/plain; charset=utf-8");
        let text = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(text, "Access is blocked.\n");
    }
    let service = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(RequestBodyLimitLayer::new(1_000))
        .layer(limiter())
        .service(service_fn(async |_: Request<_>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }));
    let request = Request::post("/").body(Full::<Bytes>::default()).expect("a request");
    let response = service.oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}
