//! Response bodies of a type that the layer does not know, as that of a layer inside.

use std::{
    convert::Infallible,
    future::{Ready, ready},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn, util::ServiceFn};
use tower_sluice::{
    AccessList, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::{Everyone, HeaderKey},
};

use crate::support::{
    header,
    shaky::{Mood, Shaky},
};

/// Has a `Default`, and is not known.
type Unknown = UnsyncBoxBody<Bytes, BoxError>;

type Responds = Ready<Result<Response<Unknown>, Infallible>>;
type Inner = ServiceFn<fn(Request<()>) -> Responds>;

fn respond(_: Request<()>) -> Responds {
    ready(Ok(Response::new(Unknown::default())))
}

/// Returns the response of a layer around a service with unknown bodies.
async fn answer<L>(layer: &L, request: Request<()>) -> Response<Unknown>
where
    L: Layer<Inner>,
    L::Service: Service<Request<()>, Response = Response<Unknown>, Error = Infallible>,
{
    layer.layer(service_fn(respond as fn(_) -> _)).oneshot(request).await.expect("infallible")
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
    store.set_mood(Mood::Failing);
    let failed = RateLimitLayer::new(Everyone, Quota::per_hour(1), store.fail_closed());
    is_empty_without_a_type(&failed, StatusCode::SERVICE_UNAVAILABLE).await;
    let key = HeaderKey::new("x-id");
    let unkeyed = RateLimitLayer::new(key, Quota::per_hour(1), LocalStore::with_capacity(64));
    is_empty_without_a_type(&unkeyed, StatusCode::BAD_REQUEST).await;
}
