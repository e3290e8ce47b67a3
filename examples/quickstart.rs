//! Limits an axum server. Run `cargo run --example quickstart` and the command that it prints.
//!
//! Each address is allowed 5 requests per second, with a burst of 10. `/free` is not limited.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{env, net::SocketAddr, process::ExitCode};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    http::{StatusCode, header::RETRY_AFTER},
    middleware::{Next, from_fn},
    response::Response,
    routing::get,
};
use tokio::net::TcpListener;
use tower_sluice::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().init();
    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let Err(error) = serve(&address).await else { return ExitCode::SUCCESS };
    eprintln!("cannot serve on {address:?}: {error}; set ADDR to a free ip:port");
    ExitCode::FAILURE
}

async fn serve(address: &str) -> std::io::Result<()> {
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::per_ip(Quota::per_second(5).with_burst(10)))
        .route("/free", get(async || "as often as you like\n"))
        .layer(from_fn(log_rejections));

    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    println!("listening on http://{here}; try:");
    println!("curl -s -o /dev/null -w '%{{http_code}} ' 'http://{here}/?[1-12]'");

    // The layer needs the peer's address, which the server must provide.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// Prints a line per rejection.
async fn log_rejections(
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let line = format!("{peer} {} {}", request.method(), request.uri());
    let response = next.run(request).await;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        let wait = response.headers().get(RETRY_AFTER).and_then(|wait| wait.to_str().ok());
        println!("rejected {line}: retry after {} s", wait.unwrap_or("?"));
    }
    response
}
