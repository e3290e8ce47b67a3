//! Requests that claim to be CORS preflights.

use axum::{Router, body::Body, routing::any};
use http::{Method, Request, StatusCode};
use tower::ServiceExt;
use tower_sluice::{AccessList, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::Everyone};

use super::{from, ip, statuses, three};

const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "https://a.example"), ("access-control-request-method", "POST")];

fn claimed(peer: &str) -> Request<()> {
    let mut request = from(ip(peer), &PREFLIGHT);
    *request.method_mut() = Method::OPTIONS;
    request
}

type Limit = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// Sends a thousand preflights with a body and counts how often the handler runs.
async fn served<S>(app: S, more: &[(&str, &str)], body: &'static str) -> usize
where
    S: tower::Service<Request<Body>, Response = http::Response<Body>> + Clone,
    S::Error: std::fmt::Debug,
{
    let mut served = 0;
    for _ in 0..1_000 {
        let request = PREFLIGHT.iter().chain(more).fold(
            Request::builder().method(Method::OPTIONS).uri("/pay"),
            |request, (name, value)| request.header(*name, *value),
        );
        let request = request.body(Body::from(body)).expect("a request");
        let response = app.clone().oneshot(request).await.expect("an answer");
        served += usize::from(response.status() == StatusCode::OK);
    }
    served
}

#[tokio::test]
async fn a_preflight_is_charged() {
    let thousand = || (0..1_000).map(|_| claimed("203.0.113.9"));
    let held = [(200, 3), (429, 997)];
    assert_eq!(statuses(&three(PeerIp::new()), thousand()).await, held);
    // Other methods, a method that a layer inside overrides, and no `Origin`.
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PURGE", "OPTIONS"];
    let others = thousand().zip(methods.iter().cycle()).map(|(mut request, method)| {
        *request.method_mut() = Method::from_bytes(method.as_bytes()).expect("a method");
        request.headers_mut().insert("x-http-method-override", "OPTIONS".parse().expect("one"));
        request
    });
    assert_eq!(statuses(&three(PeerIp::new()), others).await, held);
    let bare = thousand().map(|mut request| {
        request.headers_mut().remove("origin");
        request
    });
    assert_eq!(statuses(&three(PeerIp::new()), bare).await, held);
}

#[tokio::test]
async fn a_handler_for_any_method_runs_three_times() {
    let app = |limit: Limit| Router::new().route("/pay", any(async || "paid")).layer(limit);
    assert_eq!(served(app(three(Everyone)), &[], "amount=1").await, 3);
    // an exempt preflight is charged if its head announces a body
    let exempt = || app(three(Everyone).exempt_preflights());
    assert_eq!(served(exempt(), &[("content-length", "8")], "amount=1").await, 3);
    assert_eq!(served(exempt(), &[("transfer-encoding", "chunked")], "amount=1").await, 3);
    assert_eq!(served(exempt(), &[("content-type", "text/plain")], "amount=1").await, 3);
}

/// The deny list is checked before the exemption, and a blocked quota stays blocked.
#[tokio::test]
async fn preflights_do_not_pass_a_deny_list_or_a_blocked_quota() {
    let denied = || AccessList::networks(["203.0.113.0/24"]).expect("a network");
    for layer in [three(PeerIp::new()), three(PeerIp::new()).exempt_preflights()] {
        let layer = layer.deny(denied());
        assert_eq!(statuses(&layer, [claimed("203.0.113.9")]).await, [(403, 1)]);
    }
    let blocked = RateLimitLayer::new(PeerIp::new(), Quota::blocked(), LocalStore::new());
    assert_eq!(statuses(&blocked, [claimed("203.0.113.9")]).await, [(403, 1)]);
}
