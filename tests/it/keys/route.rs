//! Routes as keys, which are counted by template.

use std::{convert::Infallible, task::Poll, time::Duration};

use axum::{Router, body::Body, response::Response, routing::get};
use http::Request;
use tower::ServiceExt;
use tower_sluice::{Quota, RateLimitLayer, Rule, key::RouteKey, testing::FakeClock};

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
