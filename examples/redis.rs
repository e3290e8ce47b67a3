//! One limit for several processes.
//!
//! Start a server (`redis-server`), then run this in two terminals at once: together they allow 10
//! requests. `cargo run -p dev --features redis --example redis [redis://127.0.0.1]`
#![allow(clippy::print_stdout)]

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, PeerIp, Quota, RateLimitLayer, RedisStore, StoreExt, store::Timeout,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".into());
    let redis = RedisStore::connect(&url).await?;

    // The deadline bounds the wait. The breaker stops calls to a failed server. During an outage
    // this process, one of two, decides with half of the quota.
    let here = LocalStore::with_capacity(100_000);
    let store = redis.timeout(Timeout::DEFAULT).breaker().fallback(here, 2);

    let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_minute(10), store);
    let app = Router::new().route("/", get(|| async {})).layer(layer);

    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for _ in 0..10 {
        let request = Request::get("/").extension(address).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{} {:?}", response.status(), response.headers().get("ratelimit"));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}
