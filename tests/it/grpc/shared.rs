//! gRPC and plain HTTP on one port, charged to one account.

use axum::body::Body;
use http::Method;
use tonic::service::Routes;
use tower::ServiceExt as _;
use tower_sluice::{LocalStore, Quota, RateLimitLayer, by_route};

/// tonic ignores the method, so a GET also runs the handler.
#[tokio::test]
async fn a_call_is_charged_for_any_method() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    for template in ["/grpc.health.v1.Health/{*rest}", "/grpc.health.v1.Health/Check"] {
        let rules =
            by_route([(Method::POST, template, Quota::per_hour(3))], Quota::per_hour(1_000));
        let layer = RateLimitLayer::rules(rules, LocalStore::with_capacity(64));
        let app = Routes::new(health.clone()).into_axum_router().layer(layer);
        let mut served = 0;
        for method in ["POST", "GET", "HEAD", "PUT", "OPTIONS", "PURGE"].repeat(5) {
            let request = http::Request::builder().method(method).version(http::Version::HTTP_2);
            let request = request.uri("/grpc.health.v1.Health/Check");
            let request = request.header("content-type", "application/grpc");
            let request = request.body(Body::from(vec![0; 5])).expect("a request");
            let response = app.clone().oneshot(request).await.expect("infallible");
            // the handler's status is in the trailers
            let denied = response.headers().contains_key("grpc-status");
            served += usize::from(response.status() == 200 && !denied);
        }
        assert_eq!(served, 3, "{template}");
    }
}
