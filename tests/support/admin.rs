//! A site with the admin router, and the requests of its operators.

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule, Store, admin::Admin, key::HeaderKey, rule::Rules,
};

/// A quota that returns no unit while a test runs.
pub(crate) const THREE: Quota = Quota::per_day(3);
pub(crate) const OPERATOR: (&str, &str) = ("x-operator", "yes");

pub(crate) type Users = RateLimitLayer<Rule<HeaderKey>, LocalStore>;

pub(crate) fn user() -> Rule<HeaderKey> {
    Rule::new("user", HeaderKey::new("x-user"), THREE)
}

pub(crate) fn users() -> Users {
    RateLimitLayer::rules(user(), LocalStore::new())
}

/// The guard of a site.
pub(crate) async fn operators(request: Request<Body>, next: Next) -> Result<Response, StatusCode> {
    let known = request.headers().get(OPERATOR.0).is_some_and(|value| value == OPERATOR.1);
    if known { Ok(next.run(request).await) } else { Err(StatusCode::UNAUTHORIZED) }
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        super::header(&self.headers, name)
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Said {
    let Ok(response) = app.clone().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    Said { status: parts.status, headers: parts.headers, text }
}

/// A site behind the layer, with the admin router at `/admin`.
pub(crate) fn site<K, S>(layer: RateLimitLayer<K, S>, admin: &Admin) -> Router
where
    K: Rules + Send + Sync + 'static,
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    let hello = any(async || "hello");
    Router::new()
        .route("/", hello.clone())
        .route("/users/{id}", hello)
        .layer(layer)
        .nest("/admin", admin.router(from_fn(operators)))
}

/// The site of a layer that is watched as `api`.
pub(crate) fn watched<K, S>(layer: RateLimitLayer<K, S>) -> Router
where
    K: Rules + Send + Sync + 'static,
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    let mut admin = Admin::new();
    let layer = admin.watch("api", layer);
    site(layer, &admin)
}

/// Sends a GET of an operator, and returns the JSON.
pub(crate) async fn look(app: &Router, route: &str) -> Value {
    let request = Request::get(format!("/admin/api/{route}")).header(OPERATOR.0, OPERATOR.1);
    let said = send(app, request.body(Body::empty()).expect("a request")).await;
    assert_eq!(said.status, StatusCode::OK, "{said:?}");
    said.json()
}

/// Sends a POST of an operator, and returns the answer.
pub(crate) async fn post(app: &Router, route: &str, body: &Value) -> Said {
    let request = Request::post(format!("/admin/api/{route}"))
        .header(OPERATOR.0, OPERATOR.1)
        .header("content-type", "application/json");
    send(app, request.body(body.to_string().into()).expect("a request")).await
}

pub(crate) async fn done(app: &Router, route: &str, body: &Value) -> Value {
    let said = post(app, route, body).await;
    assert_eq!(said.status, StatusCode::OK, "{said:?}");
    if said.text.is_empty() { Value::Null } else { said.json() }
}

/// Returns the problem with which a request of an operator fails.
pub(crate) async fn denied(app: &Router, route: &str, body: &Value, status: u16) -> String {
    let said = post(app, route, body).await;
    assert_eq!(said.status.as_u16(), status, "{body}: {said:?}");
    assert_eq!(said.header("content-type"), "application/problem+json");
    let problem = said.json();
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().expect("text").to_owned()
}

/// Returns the status of a request by this user.
pub(crate) async fn visit(app: &Router, user: &str) -> u16 {
    let request = Request::get("/").header("x-user", user).body(Body::empty());
    send(app, request.expect("a request")).await.status.as_u16()
}

pub(crate) async fn visits(app: &Router, user: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(visit(app, user).await);
    }
    statuses
}

/// Returns the body that names an account of the rule `user`.
pub(crate) fn of(key: impl Into<Value>) -> Value {
    json!({ "layer": "api", "rule": "user", "key": key.into() })
}

pub(crate) fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}
