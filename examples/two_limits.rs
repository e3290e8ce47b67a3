//! Limits by address and by API key at once.
//!
//! `cargo run -p dev --example two_limits`
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, PeerIp, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    rule::OnMissingKey,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One decision: the address, the key (under two quotas) and the site are all charged, or none
    // is.
    let rules = (
        Rule::new("ip", PeerIp::new(), Quota::per_minute(6)),
        Rule::new(
            "user",
            HeaderKey::new("x-api-key"),
            [Quota::per_minute(4), Quota::per_day(1_000)],
        )
        .on_missing_key(OnMissingKey::Skip),
        Rule::new("site", Everyone, Quota::per_second(1_000)),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new());
    let app = Router::new().route("/", get(|| async {})).layer(layer);

    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for key in ["alice", "alice", "alice", "alice", "alice", "bob", "bob", "bob"] {
        let request = Request::get("/").header("x-api-key", key).extension(address);
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        let headers = response.headers();
        println!("{key}: {} {:?}", response.status(), headers.get("ratelimit"));
    }
    Ok(())
}
