//! Custom responses for rejected requests.
//!
//! `cargo run -p dev --example own_response`
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;

use axum::{Json, Router, body::Body, http::Request, response::IntoResponse, routing::get};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use tower_sluice::{Quota, RateLimitLayer, reject::reject_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // All rejections arrive here, so keep their status: 429, or 400 for a request without a key.
    // Retry-After and the RateLimit fields are added to the returned response.
    let sorry = reject_fn(|why, _parts| {
        let body = json!({
            "error": format!("{:?}", why.reason()),
            "limits": why.violated().collect::<Vec<_>>(),
            "seconds": why.retry_after().map(|wait| wait.as_secs()),
        });
        (why.status(), Json(body)).into_response()
    });
    let layer = RateLimitLayer::per_ip(Quota::per_minute(2)).reject(sorry);
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);

    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for _ in 0..3 {
        let request = Request::get("/").extension(address).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        let (status, wait) = (response.status(), response.headers().get("retry-after").cloned());
        let body = response.into_body().collect().await?.to_bytes();
        println!("{status} {wait:?} {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}
