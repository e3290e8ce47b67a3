//! How do I give each customer the quota of his plan, and change it while the server runs?
//!
//! `cargo run --example plans`
#![allow(clippy::print_stdout)]

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, key::Header};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // What a free customer has may change at any time, without refilling anybody.
    let free = LivePlan::new(Quota::per_hour(2));
    let (handle, in_plan) = (free.clone(), free);
    let plan = Plan::from_fn(move |parts, _key| {
        match parts.headers.get("x-plan").is_some_and(|plan| plan == "gold") {
            true => Quota::per_hour(5).into(),
            false => in_plan.quotas(),
        }
    });
    let user = Rule::new("user", Header::new("x-api-key"), plan);
    let layer = RateLimitLayer::rules(user, LocalStore::new());
    let app = Router::new().route("/", get(|| async {})).layer(layer);

    let ask = async |key: &str, plan: &str, times: usize| {
        for _ in 0..times {
            let request = Request::get("/").header("x-api-key", key).header("x-plan", plan);
            let response = app.clone().oneshot(request.body(Body::empty())?).await?;
            let policy = response.headers().get("ratelimit-policy").cloned();
            println!("{key} ({plan}): {} {policy:?}", response.status());
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    ask("alice", "gold", 6).await?;
    ask("bob", "free", 3).await?;
    handle.replace(Quota::per_hour(4));
    println!("free is now 4 an hour, and who had used up his quota is not refilled");
    ask("bob", "free", 3).await
}
