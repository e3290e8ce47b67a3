//! Bodies of the admin router: any bytes get an answer, never a fault of the server, and a look
//! changes nothing.

use axum::{
    Router,
    body::{Body, to_bytes},
};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::runtime::Builder;
use tower::{ServiceExt, layer::util::Identity};
use tower_sluice::{
    Algorithm, Quota, RateLimitLayer, Rule, admin::Admin, key::HeaderKey, testing::FakeClock,
};

use super::input::Input;

const ROUTES: [&str; 7] = ["peek", "reset", "block", "unblock", "switch", "layers", "health"];

/// Creates a router for one layer. `keyed` has a rate and a sliding log, and `slots` has slots.
fn router() -> Router {
    let log = Quota::per_hour(7).with_algorithm(Algorithm::SlidingLog);
    let rules = (
        Rule::new("keyed", HeaderKey::new("x-key"), [Quota::per_second(5), log]),
        Rule::new("slots", HeaderKey::new("x-key"), Quota::concurrent(3)),
    );
    let mut admin = Admin::new();
    drop(admin.watch("api", RateLimitLayer::rules(rules, FakeClock::new().store(64))));
    admin.router(Identity::new())
}

fn send(router: &Router, route: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
    let method = if matches!(route, "layers" | "health") { "GET" } else { "POST" };
    let request = Request::builder().method(method).uri(format!("/api/{route}"));
    let request = request.header(CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    // The health of a store is asked for in a task, with a timeout.
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let Ok(response) = router.clone().oneshot(request).await;
        let (head, body) = response.into_parts();
        (head.status, to_bytes(body, usize::MAX).await.expect("a body").to_vec())
    })
}

/// Reads the route, and the body.
pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (route, router) = (input.one_of(&ROUTES), router());
    let before = send(&router, "layers", &[]);
    let (status, answer) = send(&router, route, input.rest());
    let text = answer.escape_ascii();
    assert!(!status.is_server_error() && !status.is_redirection(), "{route}: {status} {text}");
    assert!(status.is_success() || !answer.is_empty(), "{route}: {status} without a reason");
    if status.is_success() && route != "switch" {
        assert!(serde_json::from_slice::<Value>(&answer).is_ok(), "{route}: {text}");
    }
    // A body that is an error, or that only looks, changes nothing.
    if !status.is_success() || route == "peek" {
        assert_eq!(send(&router, "layers", &[]), before);
        let again = send(&router, route, input.rest());
        assert_eq!(again, (status, answer), "{route} of the same body");
    }
}
