//! A handler that limits itself, by the recipient in the body of the request.
//!
//! A layer decides before the body is read. The handler calls a `Limiter` instead, and the decision
//! becomes a response with the same fields as those of a layer.
//!
//! `cargo run -p dev --example handler`
#![allow(clippy::print_stdout)]

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use tower::ServiceExt;
use tower_sluice::{Headers, Limiter, Quota};

/// Invitations to one person, from all senders.
const INVITATIONS: Quota = Quota::per_hour(2);

async fn invite(State(received): State<Limiter>, head: Parts, recipient: String) -> Response {
    let decision = received.take(recipient.to_lowercase(), &INVITATIONS, 1).now();
    if let Some(rejection) = decision.rejection(&INVITATIONS, &head) {
        return rejection;
    }
    let mut response = format!("{recipient} is invited").into_response();
    Headers::RateLimit.write(&decision, &INVITATIONS, response.headers_mut());
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().route("/invite", post(invite)).with_state(Limiter::local());
    for recipient in ["ann@example.com", "Ann@example.com", "ann@example.com", "bob@example.com"] {
        let request = Request::post("/invite").body(Body::from(recipient))?;
        let response = app.clone().oneshot(request).await?;
        let field = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (left, wait) = (field("ratelimit"), field("retry-after"));
        println!("{recipient}: {}, {left:?}, retry after {wait:?}", response.status());
    }
    Ok(())
}
