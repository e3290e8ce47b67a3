//! `by_route` gives each route its own quota, in one layer on one store.

use std::{convert::Infallible, net::SocketAddr};

use axum::{Router, body::Body, routing::get};
use http::{Method, Request, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    KeyExtractor, LocalStore, Quota, RateLimitLayer, Rule, by_route,
    key::{Everyone, HeaderKey},
    rule::{ByRoute, OnMissingKey},
};

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

fn rules() -> ByRoute<Everyone> {
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
async fn head_is_charged_as_get_without_its_own_quotas() {
    let hour = Quota::per_hour;
    let get = || by_route([(Method::GET, "/url", hour(3))], hour(1_000));
    let statuses = async |app: &Router, line| {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(ask(app, line, [10, 0, 0, 1]).await.0.as_u16());
        }
        statuses
    };
    assert_eq!(statuses(&app(get()), "HEAD /url").await, [200, 200, 200, 429]);
    let shared = app(get());
    ask(&shared, "GET /url", [10, 0, 0, 1]).await;
    assert_eq!(statuses(&shared, "HEAD /url").await, [200, 200, 429, 429], "one account");
    let both = [(Method::GET, "/url", hour(3)), (Method::HEAD, "/url", hour(1))];
    assert_eq!(statuses(&app(by_route(both, hour(9))), "HEAD /url").await, [200, 429, 429, 429]);
    // methods other than HEAD are not charged as GET: they share the default
    let (_, reported) = ask(&app(get()), "POST /url", [10, 0, 0, 1]).await;
    assert!(reported.starts_with("\"other\";r=999"), "{reported}");
}

#[tokio::test]
async fn a_path_can_be_limited_for_any_method() {
    let hour = Quota::per_hour;
    let rules =
        || by_route([(Method::GET, "/url", hour(3))], hour(1_000)).any_method("/url", hour(2));
    let app = app(rules());
    let name = async |line| ask(&app, line, [10, 0, 0, 1]).await.1;
    assert_eq!(name("GET /url").await, "\"GET /url\";r=2;t=2400");
    assert_eq!(name("HEAD /url").await, "\"GET /url\";r=1;t=1200");
    assert_eq!(name("POST /url").await, "\"/url\";r=1;t=1800");
    assert_eq!(name("PURGE /url").await, "\"/url\";r=0;t=1800");
    assert!(name("GET /url/1").await.starts_with("\"other\""));
}

/// As in `tonic::transport::Server::layer`, where no matched path is in the extensions.
#[tokio::test]
async fn a_grpc_path_is_limited_without_a_matched_path() {
    let hour = Quota::per_hour;
    let routes = [(Method::POST, "/shop.Cart/Buy", hour(2))];
    let layer = RateLimitLayer::rules(by_route(routes, hour(1_000)), LocalStore::new());
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for (path, name) in [
        ("/shop.Cart/Buy", "\"POST /shop.Cart/Buy\""),
        ("/shop.Cart/List", "\"other\""),
        ("/shop.Cart", "\"other\""),
        ("/shop.Carton/Buy", "\"other\""),
    ] {
        let request = Request::put(path).body(()).expect("a request");
        let response = service.clone().oneshot(request).await.expect("infallible");
        let reported = response.headers()["ratelimit"].to_str().expect("text");
        assert_eq!(reported.split(';').next(), Some(name), "{path}");
    }
}

/// A route that the router does not know charges nothing, and the log names it.
#[tokio::test]
async fn a_path_matches_exactly_as_in_the_router() {
    for path in ["/url/{short}", "/url/{*rest}", "/url/7", "/URL/{id}", "/url/{id}/"] {
        let rules = by_route([(Method::GET, path, Quota::per_hour(3))], Quota::per_hour(9));
        let (_, reported) = ask(&app(rules), "GET /url/7", [10, 0, 0, 1]).await;
        assert_eq!(reported, "\"other\";r=8;t=3200", "{path}");
    }
}

/// A client that switches twelve rules on and off at will exceeds the number of cached templates.
/// Its responses still carry the rules that charged it.
#[tokio::test]
async fn any_set_of_rules_is_reported_correctly() {
    let named: Vec<_> = (0..12).map(|n| (format!("r{n}"), format!("x-{n}"))).collect();
    let rules: Vec<_> = named
        .iter()
        .map(|(rule, header)| {
            Rule::new(rule, HeaderKey::new(header.clone().leak()), Quota::per_hour(9_000))
                .on_missing_key(OnMissingKey::Skip)
        })
        .collect();
    let layer = RateLimitLayer::rules(rules, LocalStore::new());
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for round in 0..2 {
        for set in 1..1_u32 << named.len() {
            let sent = |n: &usize| set & 1 << n != 0;
            let mut request = Request::get("/");
            for n in (0..named.len()).filter(sent) {
                request = request.header(&named[n].1, "me");
            }
            let request = request.body(()).expect("a request");
            let response = service.clone().oneshot(request).await.expect("infallible");
            let policy = response.headers()["ratelimit-policy"].to_str().expect("text");
            let expected: Vec<_> =
                (0..named.len()).filter(sent).map(|n| format!("\"r{n}\";q=9000;w=3600")).collect();
            assert_eq!(policy, expected.join(", "), "{round}");
        }
    }
}
