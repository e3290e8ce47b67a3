//! A rate limit service for Envoy.
//!
//! `cargo run --manifest-path examples/envoy_rls/Cargo.toml -- redis://127.0.0.1 limits.toml`
//!
//! It implements `envoy.service.ratelimit.v3.RateLimitService`. All descriptors of a request are
//! charged, or none. See `src/guide/beyond.md` for a configuration of Envoy.
#![allow(clippy::print_stdout)]

use std::{env, error::Error, fs, net::SocketAddr, time::Duration};

use envoy_rls::{limits::Limits, service::Service};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tokio::{net::TcpListener, signal::ctrl_c};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tower_sluice::{RedisStore, StoreExt};

const USAGE: &str = "usage: envoy_rls REDIS_URL LIMITS.toml";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().ok_or(USAGE)?;
    let file = arguments.next().ok_or(USAGE)?;
    let limits = Limits::read(&fs::read_to_string(file)?)?;
    // A failure is an error of the call: `failure_mode_deny` of Envoy decides then.
    let store = RedisStore::connect(&url).prefix("envoy").await?;
    let service = Service::new(limits, store.timeout(Duration::from_millis(100)).breaker())?;

    let address: SocketAddr = env::var("ADDR").as_deref().unwrap_or("127.0.0.1:8081").parse()?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    Server::builder()
        .add_service(RateLimitServiceServer::new(service))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            drop(ctrl_c().await);
        })
        .await?;
    Ok(())
}
