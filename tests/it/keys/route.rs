//! Routes as keys, which are counted by template.

use std::{convert::Infallible, task::Poll, time::Duration};

use axum::{Router, body::Body, response::Response, routing::get};
use http::{Method, Request};
use tower::ServiceExt;
use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::RouteKey, testing::FakeClock};

/// Allows two requests per hour for each route.
fn app() -> Router {
    let api = Router::new().route("/users/{id}", get(async || "nested"));
    Router::new()
        .route("/", get(async || "home"))
        .route("/users/{id}", get(async || "user"))
        .nest("/api", api)
        .layer(RateLimitLayer::new(RouteKey, Quota::per_hour(2), LocalStore::with_capacity(64)))
}

async fn statuses(method: Method, paths: [&str; 3]) -> [u16; 3] {
    let (app, mut statuses) = (app(), [0; 3]);
    for (status, path) in statuses.iter_mut().zip(paths) {
        let request = Request::builder().method(&method).uri(path).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await.expect("an answer");
        *status = response.status().as_u16();
    }
    statuses
}

#[tokio::test]
async fn one_template_is_one_account() {
    for paths in [
        ["/users/1", "/users/2", "/users/3"],
        ["/users/1", "/users/1?page=2", "/users/%31"],
        ["/users/%2e", "/users/%2e%2e", "/users/a%2fb"],
        ["/api/users/1", "/api/users/2", "/api/users/3"],
    ] {
        assert_eq!(statuses(Method::GET, paths).await, [200, 200, 429], "{paths:?}");
    }
    let post = statuses(Method::POST, ["/users/1", "/users/2", "/users/3"]).await;
    assert_eq!(post, [405, 405, 429]);
}

#[tokio::test]
async fn each_template_has_its_own_account() {
    let paths = ["/users/1", "/api/users/1", "/"];
    assert_eq!(statuses(Method::GET, paths).await, [200, 200, 200]);
}

#[tokio::test]
async fn unmatched_paths_share_one_account() {
    for paths in [
        ["/nope", "/no/such", "/users"],
        ["//users/1", "/users//1", "/./users/1"],
        ["/users/1/", "/USERS/1", "/api"],
    ] {
        assert_eq!(statuses(Method::GET, paths).await, [404, 404, 429], "{paths:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_route_have_the_part_of_one_key_in_the_queue() {
    let rule = Rule::new("route", RouteKey, Quota::per_second(1)).max_wait(Duration::from_secs(60));
    // A key has a 64th of the places.
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64)).max_waiters(64);
    let app = Router::new().route("/", get(async || "home")).layer(layer);
    for (path, first) in [("/none", 404), ("/", 200)] {
        let send = |_| Request::get(path).body(Body::empty()).expect("a request");
        let mut sent = [0, 1, 2].map(|at| tokio_test::task::spawn(app.clone().oneshot(send(at))));
        let status = |poll: Poll<Result<Response, Infallible>>| match poll {
            Poll::Ready(Ok(response)) => response.status().as_u16(),
            Poll::Pending => 0,
        };
        let statuses = sent.each_mut().map(|it| status(it.poll()));
        assert_eq!(statuses, [first, 0, 429], "{path}");
    }
}
