//! How do I limit gRPC and HTTP on one port, by one account?
//!
//! `cargo run --features tonic --example grpc` and the lines it prints. A peer has ten calls a
//! minute, an `x-api-key` three, be they RPCs or plain requests. A stream costs one when it opens;
//! what is sent in it is not counted.
#![allow(clippy::print_stdout)]

use std::{env, net::SocketAddr};

use axum::routing::get;
use tokio::{net::TcpListener, signal::ctrl_c};
use tonic::service::Routes;
use tower_sluice::{LocalStore, Missing, PeerIp, Quota, RateLimitLayer, Rule, key::Header};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // the metadata of a call are header fields
    let key = Rule::new("key", Header::new("x-api-key"), Quota::per_minute(3));
    let rules =
        (Rule::new("peer", PeerIp::new(), Quota::per_minute(10)), key.missing(Missing::Skip));

    // stands in for services of your own: Check is unary, Watch is a stream
    let (_reporter, health) = tonic_health::server::health_reporter();
    let app = Routes::new(health)
        .into_axum_router()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::rules(rules, LocalStore::new()));

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    println!("listening on http://{here}; try three of these, and then both:");
    println!("curl -i -H 'x-api-key: alice' http://{here}/");
    // five zeros are an empty message
    println!(
        "printf '\\0\\0\\0\\0\\0' | curl -s -o /dev/null -D - --http2-prior-knowledge --data-binary @- \
         -H 'content-type: application/grpc' -H 'te: trailers' -H 'x-api-key: alice' \
         http://{here}/grpc.health.v1.Health/Check"
    );

    // the layer learns the peer's address from axum here; a server of tonic's own tells it by itself
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(ctrl_c().await) })
        .await?;
    Ok(())
}
