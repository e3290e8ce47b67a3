//! Smooths a burst instead of denying it.
//!
//! `cargo run -p dev --example smooth`
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use axum::{Router, body::Body, http::Request, routing::get};
use futures::future::try_join_all;
use tower::ServiceExt;
use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::Everyone};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Ten per second, one at a time. A request that would wait longer than half a second is denied.
    let rule = Rule::new("site", Everyone, Quota::per_second(10).with_burst(1))
        .max_wait(Duration::from_millis(500));
    let layer = RateLimitLayer::rules(rule, LocalStore::new()).max_waiters(100);
    let app = Router::new().route("/", get(|| async {})).layer(layer);

    let start = Instant::now();
    let ask = |n: u32| {
        let app = app.clone();
        async move {
            let request = Request::get("/").body(Body::empty())?;
            let response = app.oneshot(request).await?;
            let after = start.elapsed().as_millis();
            println!("request {n}: {} after {after} ms", response.status());
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    };
    try_join_all((1..=8).map(ask)).await?;
    Ok(())
}
