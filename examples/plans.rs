//! A quota per customer, by plan, which can change at run time.
//!
//! `cargo run -p dev --example plans`
#![allow(clippy::print_stdout)]

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use tower::ServiceExt;
use tower_sluice::{
    LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule,
    key::{Everyone, ExtensionKey},
};

/// The users by key; a database in a real server.
const USERS: [(&str, User); 2] =
    [("k-1", User { name: "alice", gold: true }), ("k-2", User { name: "bob", gold: false })];

#[derive(Clone, Copy)]
struct User {
    name: &'static str,
    gold: bool,
}

/// Identifies the user on the server. A client that could name its own plan would choose gold.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").cloned();
    match USERS.iter().find(|(known, _)| key.as_ref().is_some_and(|key| key == known)) {
        Some((_, user)) => request.extensions_mut().insert(*user),
        None => return StatusCode::UNAUTHORIZED.into_response(),
    };
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The quota of free customers can change at any time, without a refill.
    let free = LivePlan::new(Quota::per_hour(2));
    let (handle, in_plan) = (free.clone(), free);
    let plan = Plan::from_fn(move |head, _key| match head.extensions.get::<User>() {
        Some(User { gold: true, .. }) => Quota::per_hour(5).into(),
        _ => in_plan.quotas(),
    });
    let user = Rule::new("user", ExtensionKey::by(|user: &User| user.name), plan);
    let site = Rule::new("site", Everyone, Quota::per_second(1_000));
    let app = Router::new()
        .route("/", get(|| async {}))
        .layer(RateLimitLayer::rules((user, site), LocalStore::new()))
        .layer(from_fn(authenticate)); // the last is the outermost: it comes first

    let ask = async |key: &str, times: usize| {
        for _ in 0..times {
            let request = Request::get("/").header("x-api-key", key).body(Body::empty())?;
            let response = app.clone().oneshot(request).await?;
            let left = response.headers().get("ratelimit").cloned();
            println!("{key}: {} {left:?}", response.status());
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    ask("k-1", 6).await?;
    ask("k-2", 3).await?;
    handle.replace(Quota::per_hour(4));
    println!("free is now 4 per hour, and used quotas are not refilled");
    ask("k-2", 1).await
}
