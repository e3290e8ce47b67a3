//! `by_route` gives each route a quota of its own, in one layer on one store.

use std::net::SocketAddr;

use axum::{Router, body::Body, routing::get};
use http::{Method, Request, StatusCode};
use tower::ServiceExt;
use tower_sluice::{ByRoute, KeyExtractor, LocalStore, PeerIp, Quota, RateLimitLayer, by_route};

fn app<K>(rules: ByRoute<K>) -> Router
where
    K: KeyExtractor + Send + Sync + 'static,
{
    let any = || get(|| async {}).post(|| async {}).delete(|| async {});
    Router::new()
        .route("/url", any())
        .route("/url/{id}", any())
        .layer(RateLimitLayer::rules(rules, LocalStore::new()))
}

fn rules() -> ByRoute<tower_sluice::key::Everyone> {
    let routes = [
        (Method::POST, "/url", Quota::per_hour(2)),
        (Method::DELETE, "/url/{id}", Quota::per_hour(1)),
    ];
    by_route(routes, Quota::per_hour(3))
}

async fn ask(app: &Router, line: &str, peer: [u8; 4]) -> (StatusCode, String) {
    let (method, path) = line.split_once(' ').expect("a method and a path");
    let request = Request::builder().method(method).uri(path);
    let request = request.extension(SocketAddr::from((peer, 4000))).body(Body::empty());
    let response = app.clone().oneshot(request.expect("a request")).await.expect("infallible");
    let policy = response.headers().get("ratelimit").map(|value| value.to_str().expect("text"));
    (response.status(), policy.unwrap_or_default().to_owned())
}

#[tokio::test]
async fn each_route_has_its_own_quota_and_the_others_share_one() {
    let (app, here) = (app(rules()), [10, 0, 0, 1]);
    let ok = async |line| ask(&app, line, here).await.0 == StatusCode::OK;
    assert!(ok("POST /url").await && ok("POST /url").await && !ok("POST /url").await);
    assert!(ok("DELETE /url/1").await && !ok("DELETE /url/2").await, "one template, one quota");
    assert!(ok("GET /url").await && ok("POST /url/1").await && ok("GET /url/1").await);
    assert!(!ok("DELETE /url").await, "all others share the default");
}

#[tokio::test]
async fn rules_are_called_after_their_routes() {
    let app = app(rules());
    let (_, told) = ask(&app, "DELETE /url/7", [10, 0, 0, 1]).await;
    assert_eq!(told, "\"DELETE /url/{id}\";r=0;t=3600");
    let (_, told) = ask(&app, "GET /url", [10, 0, 0, 1]).await;
    assert!(told.starts_with("\"other\";r=2"), "{told}");
}

#[tokio::test]
async fn each_key_may_be_counted_apart() {
    let app = app(rules().each(PeerIp::new()));
    for peer in [[10, 0, 0, 1], [10, 0, 0, 2]] {
        assert_eq!(ask(&app, "DELETE /url/1", peer).await.0, StatusCode::OK);
        assert_eq!(ask(&app, "DELETE /url/1", peer).await.0, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[test]
#[should_panic(expected = "give at most 64")]
fn a_route_too_long_for_a_name_is_refused_when_built() {
    let long = "/a/very/long/template/that/nobody/should/write/but/somebody/certainly/will/{id}";
    drop(by_route([(Method::GET, long, Quota::per_second(1))], Quota::per_second(1)));
}
