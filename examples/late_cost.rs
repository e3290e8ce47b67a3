//! Charges the real cost of a request afterwards, such as the tokens of a streamed answer.
//!
//! `cargo run -p dev --example late_cost`
#![allow(clippy::print_stdout)]

use axum::{
    Router,
    body::{Body, Bytes},
    http::Request,
    routing::get,
};
use futures::stream;
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_sluice::{
    Limiter, LocalStore, Quota, RateLimitLayer, Rule,
    key::HeaderKey,
    middleware::{Adjustment, ChargeHandle},
};

const TOKENS: Quota = Quota::per_hour(1_000);

/// Streams ten words. The stream owns the reservation and adjusts it when the stream ends.
async fn complete(reservation: ChargeHandle) -> Body {
    let words = stream::unfold((0, reservation), |(sent, reservation)| async move {
        if sent == 10 {
            reservation.adjust_rule_to("tokens", sent).expect("the layer has this rule");
            return None;
        }
        Some((Ok::<_, std::convert::Infallible>(Bytes::from("word ")), (sent + 1, reservation)))
    });
    Body::from_stream(words)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = LocalStore::new();
    // Each request reserves 100 tokens. A stream that breaks off has cost the whole reservation.
    let rule = Rule::new("tokens", HeaderKey::new("x-api-key"), TOKENS).cost(100);
    let layer = RateLimitLayer::rules(rule, store.clone()).expose_charge(Adjustment::Keep);
    let app = Router::new().route("/", get(complete)).layer(layer);
    let accounts = Limiter::named("tokens", store);
    let left = |when| {
        let decision = accounts.peek("alice", &TOKENS).now();
        println!("{when}: {} tokens left", decision.remaining().unwrap_or_default());
    };

    let ask = || Request::get("/").header("x-api-key", "alice").body(Body::empty());
    let response = app.clone().oneshot(ask()?).await?;
    left("while it streams");
    response.into_body().collect().await?;
    left("after ten words");
    let cut = app.oneshot(ask()?).await?;
    drop(cut);
    left("after one that was cut");
    Ok(())
}
