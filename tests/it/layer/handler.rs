//! Handlers that limit themselves, and rejections with bodies of any type.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use tower::{Layer, service_fn};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, TooManyRequests, key::Everyone,
};

use crate::support::{answer, ask, lines, store};

const ONE: [Quota; 2] = [Quota::per_minute(1), Quota::per_day(100).with_name("day")];

/// Requests that are rejected in different forms.
fn requests() -> [Request<()>; 4] {
    let request = |method, version, name, value| {
        let request = Request::builder().method(method).version(version).header(name, value);
        request.body(()).expect("a request")
    };
    [
        request(Method::GET, Version::HTTP_11, header::ACCEPT, "*/*"),
        request(Method::HEAD, Version::HTTP_11, header::ACCEPT, "*/*"),
        request(Method::GET, Version::HTTP_11, header::ACCEPT, "application/json"),
        request(Method::POST, Version::HTTP_2, header::CONTENT_TYPE, "application/grpc"),
    ]
}

fn take(store: &LocalStore) -> Decision {
    Limiter::named("default", store.clone()).take(Key::everyone(), &ONE, 1).now()
}

#[test]
fn a_denial_without_a_wait_has_no_retry_after() {
    let blocked = Limiter::named("default", store()).take("key", &Quota::blocked(), 1).now();
    let quota = Quota::blocked();
    let response = blocked.rejection::<String>(&quota, &Request::new(())).expect("a denial");
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key(header::RETRY_AFTER));
    let response = Decision::deny().rejection::<String>(&ONE, &Request::new(()));
    let response = response.expect("a denial");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.body(), "Quota exhausted; retry later.\n");
}

/// A body without `Default`.
#[derive(Debug, PartialEq)]
struct Own(Bytes);

#[tokio::test]
async fn with_body_fills_a_body_without_default_as_the_default_fills_text() {
    let store = store();
    let layer = RateLimitLayer::new(Everyone, ONE, store.clone());
    let hello = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Own("hi".into()))) };
    let mut service =
        layer.clone().reject(TooManyRequests::new().with_body(Own)).layer(service_fn(hello));
    assert!(take(&store).is_allowed());
    for (request, same) in requests().into_iter().zip(requests()) {
        let own = ask(&mut service, request).await;
        let mut text = answer(&layer, same).await;
        // The length of another body is unknown.
        text.headers_mut().remove(header::CONTENT_LENGTH);
        assert_eq!(lines(own.headers()), lines(text.headers()));
        assert_eq!(*own.body(), Own(text.into_body().into()));
    }
}
