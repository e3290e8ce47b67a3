//! How do I give each customer the quota of his plan, and change it while the server runs?
//!
//! `cargo run --example plans`
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
    key::{Everyone, Extension},
};

/// Who a key belongs to; a database in earnest.
const USERS: [(&str, User); 2] =
    [("k-1", User { name: "alice", gold: true }), ("k-2", User { name: "bob", gold: false })];

#[derive(Clone, Copy)]
struct User {
    name: &'static str,
    gold: bool,
}

/// The server says who it is and what he pays for. A client that could say it would be gold.
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
    // What a free customer has may change at any time, without refilling anybody.
    let free = LivePlan::new(Quota::per_hour(2));
    let (handle, in_plan) = (free.clone(), free);
    let plan = Plan::from_fn(move |parts, _key| match parts.extensions.get::<User>() {
        Some(User { gold: true, .. }) => Quota::per_hour(5).into(),
        _ => in_plan.quotas(),
    });
    let user = Rule::new("user", Extension::by(|user: &User| user.name), plan);
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
    println!("free is now 4 an hour, and who had used up his quota is not refilled");
    ask("k-2", 1).await
}
