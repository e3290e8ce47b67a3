//! A quota per route.
//!
//! `cargo run -p dev --example per_route`
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    http::{Method, Request},
    routing::{delete, post},
};
use tower::ServiceExt;
use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, by_route};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let routes = by_route(
        [
            (Method::POST, "/url", Quota::per_minute(3)),
            (Method::DELETE, "/url/{id}", Quota::per_minute(1)),
        ],
        Quota::per_second(100),
    );
    // each handler answers one method, so that others cannot reach it (else see `any_method`)
    let layer = RateLimitLayer::rules(routes.each(PeerIp::new()), LocalStore::new());
    let app = Router::new()
        .route("/url", post(|| async {}).get(|| async {}))
        .route("/url/{id}", delete(|| async {}))
        .layer(layer);

    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for line in [
        "POST /url",
        "POST /url",
        "DELETE /url/1",
        "DELETE /url/2",
        "POST /url",
        "POST /url",
        "GET /url",
    ] {
        let (method, path) = line.split_once(' ').ok_or("a method and a path")?;
        let request = Request::builder().method(method).uri(path).extension(address);
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        println!("{line}: {} {:?}", response.status(), response.headers().get("ratelimit"));
    }
    Ok(())
}
