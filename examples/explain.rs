//! Explains a denied request.
//!
//! `cargo run -p dev --example explain`
#![allow(clippy::print_stdout)]

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    Cost, Decision, Key, LocalStore, Quota, RateLimitLayer, Rule,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let price = Cost::from_fn(|head| if head.path() == "/report" { 3 } else { 1 });
    let by_key = [Quota::per_minute(5).with_burst(20), Quota::per_day(10_000)];
    let rules = (
        Rule::new("user", HeaderKey::new("x-api-key"), by_key).cost(price),
        Rule::new("site", Everyone, Quota::per_second(1_000)),
    );
    let secret = FingerprintKey::new("sixteen bytes at least, from configuration")?;
    let layer =
        RateLimitLayer::rules(rules, LocalStore::new()).expose_decision().fingerprint(secret);
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/report", get(|| async { "a report" }))
        .layer(layer.clone());

    let request = |path: &str| Request::get(path).header("x-api-key", "alice").body(());
    for _ in 0..19 {
        app.clone().oneshot(request("/")?.map(|()| Body::empty())).await?;
    }

    println!("# explanation of a request of alice; nothing is charged");
    let (head, ()) = request("/report")?.into_parts();
    print!("{}", layer.explain(&head).await);

    println!("# explanation of the decision in the response");
    let response = app.oneshot(request("/report")?.map(|()| Body::empty())).await?;
    let decision = response.extensions().get::<Decision>().ok_or("no decision")?;
    print!("{}", layer.explain_decision(decision, &head));

    println!("# the fingerprint of a key");
    println!("alice is {}", Key::from("alice").fingerprint(&secret));
    Ok(())
}
