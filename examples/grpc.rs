//! Limits for gRPC and HTTP on one port, with shared accounts.
//!
//! Run `cargo run -p dev --features tonic --example grpc` and the commands that it prints. A peer
//! has ten calls per minute, and an `x-api-key` has three, for RPCs and plain requests together.
//! Opening a stream costs one; its messages are not counted.
#![allow(clippy::print_stdout)]

use std::{env, net::SocketAddr};

use axum::routing::get;
use tokio::{net::TcpListener, signal::ctrl_c};
use tonic::service::Routes;
use tower_sluice::{
    LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::HeaderKey, rule::OnMissingKey,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Metadata of a call are header fields.
    let key = Rule::new("key", HeaderKey::new("x-api-key"), Quota::per_minute(3));
    let rules = (
        Rule::new("peer", PeerIp::new(), Quota::per_minute(10)),
        key.on_missing_key(OnMissingKey::Skip),
    );

    // Replace this with your own services. Check is unary, Watch is a stream.
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
    // Five zero bytes are an empty message.
    println!(
        "printf '\\0\\0\\0\\0\\0' | curl -s -o /dev/null -D - --http2-prior-knowledge --data-binary @- \
         -H 'content-type: application/grpc' -H 'te: trailers' -H 'x-api-key: alice' \
         http://{here}/grpc.health.v1.Health/Check"
    );

    // axum passes the peer's address to the layer here; tonic's own server passes it without help.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(ctrl_c().await) })
        .await?;
    Ok(())
}
