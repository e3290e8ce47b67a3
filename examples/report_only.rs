//! Tries a limit without denying any request.
//!
//! `cargo run -p dev --example report_only`
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;

use axum::{Router, body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_sluice::{
    Decision, LocalStore, PeerIp, Quota, RateLimitLayer, Rule,
    key::Everyone,
    middleware::{Counters, Toggle},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (counters, switch) = (Counters::new(), Toggle::on());
    let rules = (
        Rule::new("site", Everyone, Quota::per_minute(6)),
        // A new rule on trial: it counts, and denies nothing.
        Rule::new("ip", PeerIp::new(), Quota::per_minute(2)).report_only(true),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new())
        .expose_decision()
        .on_decision(counters.clone())
        .enabled(&switch);
    let handler = |decision: Decision| async move {
        if decision.would_deny() { "would be denied" } else { "fine" }
    };
    let app = Router::new().route("/", get(handler)).layer(layer);
    let bare = |app: Router| async move {
        let address: SocketAddr = "203.0.113.9:4711".parse()?;
        let request = Request::get("/").extension(address).body(Body::empty())?;
        let response = app.oneshot(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("{status} {}", String::from_utf8_lossy(&body));
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    for _ in 0..8 {
        bare(app.clone()).await?;
    }
    println!("{:?}", counters.snapshot());
    switch.set(false); // and everything passes
    println!("switched off; the store is not asked any more");
    bare(app).await?;
    Ok(())
}
