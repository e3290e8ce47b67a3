//! A server for exports: each customer runs two at a time, and starts ten per minute.
//!
//! `cargo run -p dev --example exports`, then in several terminals:
//! `curl -i -H 'x-api-key: alice' http://127.0.0.1:3000/export`
//!
//! `ADDR=127.0.0.1:8080` chooses another address.
//!
//! An export is a stream that lasts ten seconds. The third one at a time is rejected with 429, and
//! a client that leaves with Ctrl-C frees its slot at once.
#![allow(clippy::print_stdout)]

use std::{convert::Infallible, time::Duration};

use axum::{Router, body::Body, extract::State, routing::get};
use futures::{Stream, stream};
use tokio::{net::TcpListener, time::sleep};
use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::HeaderKey};

/// The rows of an export, one per `interval`.
fn rows(interval: Duration) -> impl Stream<Item = Result<String, Infallible>> {
    stream::unfold(0, move |row| async move {
        sleep(interval).await;
        (row < 10).then(|| (Ok(format!("row {row}\n")), row + 1))
    })
}

async fn export() -> Body {
    Body::from_stream(rows(Duration::from_secs(1)))
}

/// Reports the number of running exports.
async fn running(State(store): State<LocalStore>) -> String {
    format!("{} exports are running\n", store.stats().held)
}

fn app() -> Router {
    let store = LocalStore::new();
    let quotas = [Quota::concurrent(2), Quota::per_minute(10)];
    let exports = Rule::new("exports", HeaderKey::new("x-api-key"), quotas);
    Router::new()
        .route("/export", get(export))
        .layer(RateLimitLayer::rules(exports, store.clone()))
        .route("/running", get(running))
        .with_state(store)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}; try:", listener.local_addr()?);
    println!("curl -i -H 'x-api-key: alice' http://{}/export", listener.local_addr()?);
    axum::serve(listener, app()).await
}
