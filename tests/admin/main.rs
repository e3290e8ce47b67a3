//! The routes of operators: who gets in, what they see of accounts, and what they change.

mod accounts;
mod gate;
mod health;
mod redis;
#[path = "../support/servers/mod.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod switches;

use std::convert::Infallible;

use axum::{Router, body::Body, routing::any};
use http::{HeaderMap, Request, StatusCode, request::Parts};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule, Rules, Store,
    admin::{Admin, Guard},
    key::Header,
};

/// Nothing flows back while a test runs.
const THREE: Quota = Quota::per_day(3);
const OPERATOR: (&str, &str) = ("x-operator", "yes");

type Users = RateLimitLayer<Rule<Header>, LocalStore>;

fn user() -> Rule<Header> {
    Rule::new("user", Header::new("x-user"), THREE)
}

fn users() -> Users {
    RateLimitLayer::rules(user(), LocalStore::new())
}

fn knows(parts: &Parts) -> bool {
    parts.headers.get(OPERATOR.0).is_some_and(|value| value == OPERATOR.1)
}

fn guard() -> Guard {
    Guard::from_fn(|parts| if knows(parts) { Ok(()) } else { Err(StatusCode::UNAUTHORIZED) })
}

/// An answer, read to its end.
#[derive(Debug)]
struct Said {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    fn header(&self, name: &str) -> &str {
        support::header(&self.headers, name)
    }
}

async fn send(app: &Router, request: Request<Body>) -> Said {
    let Ok(response) = app.clone().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    Said { status: parts.status, headers: parts.headers, text }
}

/// A site behind the layer, and the operators' routes at `/admin`.
fn site<K, S>(layer: RateLimitLayer<K, S>, admin: &Admin) -> Router
where
    K: Rules + Send + Sync + 'static,
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    let hello = any(async || "hello");
    Router::new()
        .route("/", hello.clone())
        .route("/users/{id}", hello)
        .layer(layer)
        .nest("/admin", admin.router(guard()))
}

/// The site of a layer that is watched as `api`.
fn watched<K, S>(layer: RateLimitLayer<K, S>) -> Router
where
    K: Rules + Send + Sync + 'static,
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    let mut admin = Admin::new();
    let layer = admin.watch("api", layer);
    site(layer, &admin)
}

/// What an operator sees.
async fn look(app: &Router, route: &str) -> Value {
    let request = Request::get(format!("/admin/api/{route}")).header(OPERATOR.0, OPERATOR.1);
    let said = send(app, request.body(Body::empty()).expect("a request")).await;
    assert_eq!(said.status, StatusCode::OK, "{said:?}");
    said.json()
}

/// What an operator is answered.
async fn post(app: &Router, route: &str, body: &Value) -> Said {
    let request = Request::post(format!("/admin/api/{route}"))
        .header(OPERATOR.0, OPERATOR.1)
        .header("content-type", "application/json");
    send(app, request.body(body.to_string().into()).expect("a request")).await
}

async fn done(app: &Router, route: &str, body: &Value) -> Value {
    let said = post(app, route, body).await;
    assert_eq!(said.status, StatusCode::OK, "{said:?}");
    said.json()
}

/// Why an operator is told no.
async fn refused(app: &Router, route: &str, body: &Value, status: u16) -> String {
    let said = post(app, route, body).await;
    assert_eq!(said.status.as_u16(), status, "{body}: {said:?}");
    assert_eq!(said.header("content-type"), "application/problem+json");
    let problem = said.json();
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().expect("text").to_owned()
}

/// The status of a request by this user.
async fn visit(app: &Router, user: &str) -> u16 {
    let request = Request::get("/").header("x-user", user).body(Body::empty());
    send(app, request.expect("a request")).await.status.as_u16()
}

async fn visits(app: &Router, user: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(visit(app, user).await);
    }
    statuses
}

/// The body that names an account of the rule `user`.
fn of(key: impl Into<Value>) -> Value {
    json!({ "layer": "api", "rule": "user", "key": key.into() })
}

fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}
