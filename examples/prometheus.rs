//! Metrics for Prometheus.
//!
//! `cargo run -p dev --features metrics --example prometheus`
#![allow(clippy::print_stdout)]

use axum::{Router, body::Body, http::Request, routing::get};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Install the recorder before the first request: counters register on first use.
    let recorder = PrometheusBuilder::new().install_recorder()?;

    let store = LocalStore::new();
    let rules = (
        Rule::new("site", Everyone, Quota::per_second(100)),
        Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_hour(5)),
    );
    let shown = store.clone();
    let scrape = get(async move || {
        // Reading the statistics updates the gauges of the store.
        let _ = shown.stats();
        recorder.render()
    });
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::rules(rules, store))
        .route("/metrics", scrape);

    for _ in 0..8 {
        let request = Request::get("/").header("x-api-key", "alice").body(Body::empty())?;
        app.clone().oneshot(request).await?;
    }
    app.clone().oneshot(Request::get("/").body(Body::empty())?).await?;

    let scraped = app.oneshot(Request::get("/metrics").body(Body::empty())?).await?;
    let text = scraped.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
