//! Limits on PostgreSQL, for those who have it and no Redis.
//!
//! `cargo run -p dev --example postgres_store -- postgres://user:password@127.0.0.1/database`
//!
//! Start it twice, with another `ADDR`: both processes count the same accounts.
#![allow(clippy::print_stdout)]

mod call;
#[allow(dead_code, reason = "tests drive the clock, and wait for undos")]
mod store;

use std::{env, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use store::PostgresStore;
use tokio::net::TcpListener;
use tower::BoxError;
use tower_sluice::{Algorithm, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, StoreExt};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = env::args().nth(1).ok_or("give the address: postgres://user@127.0.0.1/database")?;
    let store = PostgresStore::connect(&url).await?;
    // While PostgreSQL is down, each process counts by itself.
    let store = store
        .timeout(Duration::from_millis(250))
        .breaker()
        .fallback(LocalStore::with_capacity(100_000), 2);
    let burst = Quota::per_second(5).with_burst(10);
    let day = Quota::per_day(1_000).with_algorithm(Algorithm::fixed_window());
    let layer = RateLimitLayer::rules(Rule::new("peer", PeerIp::new(), [burst, day]), store);
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}; try: curl -i http://{0}/", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
