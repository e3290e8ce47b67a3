//! The routes, and what lies around them.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{OriginalUri, Request, State},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, get, post},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use serde_json::{Value, json};

use super::{
    account::Account,
    body::Body,
    guard::Guard,
    problem::Problem,
    show,
    watched::{self, Watched},
};

type Layers = State<Arc<[Watched]>>;
type Answer = Result<Json<Value>, Problem>;

/// What lies around every answer of ours: nothing is kept, guessed, framed or loaded from elsewhere.
const HEADERS: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

const ACCOUNT: &[&str] = &["layer", "rule", "key", "quotas"];

pub(super) fn router(layers: Arc<[Watched]>, guard: Guard) -> Router {
    let router = Router::new()
        .route("/", get(to_page))
        .route("/page", file("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("style.css")))
        .route("/api/layers", get(async |State(all): Layers| Json(show::layers(&all))))
        .route("/api/refusals", get(async |State(all): Layers| Json(show::refusals(&all))))
        .route("/api/health", get(async |State(all): Layers| Json(show::health(&all).await)))
        .route("/api/peek", post(peek))
        .route("/api/reset", post(reset))
        .route("/api/block", post(block))
        .route("/api/unblock", post(unblock))
        .route("/api/switch", post(switch))
        .route("/api/report-only", post(report_only))
        // no fallback: a router that is nested twice would leave that to the outermost
        .route("/{*unknown}", any(nothing))
        .method_not_allowed_fallback(other_method)
        .with_state(layers)
        .layer(middleware::map_response(guarded));
    guard.around(router).layer(middleware::map_response(unkept))
}

fn file<S>(kind: &'static str, text: &'static str) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    get(async move || ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text))
}

async fn guarded(mut response: Response) -> Response {
    let headers: &mut HeaderMap = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The answers of a guard are its own, and a login form may need what a page of ours may not do.
async fn unkept(mut response: Response) -> Response {
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().entry(CACHE_CONTROL).or_insert(no_store);
    response
}

/// To the page, by a path that holds below any prefix, be it one that a proxy has taken off: under
/// `/admin` that is `admin/page`, and under `/admin/` it is `page`.
async fn to_page(OriginalUri(uri): OriginalUri) -> Response {
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let path = if last.is_empty() { "./page".to_owned() } else { format!("./{last}/page") };
    match HeaderValue::try_from(path) {
        Ok(path) => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, path)]).into_response(),
        Err(_) => nothing().await.into_response(),
    }
}

async fn nothing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is no such route; give one of the module's table")
}

async fn other_method() -> Problem {
    let why = "the route takes another method; GET looks, and POST changes or peeks";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

async fn peek(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, ACCOUNT).await?;
    Account::with_quotas(&layers, &body)?.peek().await.map(Json)
}

async fn reset(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, ACCOUNT).await?;
    Account::with_quotas(&layers, &body)?.reset().await.map(Json)
}

async fn block(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, &["layer", "rule", "key", "for"]).await?;
    Account::of_key(&layers, &body)?.block(body.time()?).await.map(Json)
}

async fn unblock(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, &["layer", "rule", "key"]).await?;
    Account::of_key(&layers, &body)?.unblock().await.map(Json)
}

async fn switch(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, &["layer", "on"]).await?;
    let (name, on) = (body.layer()?, body.on()?);
    watched::find(&layers, name)?.switch.set(on);
    Ok(Json(json!({ "layer": name, "on": on })))
}

async fn report_only(State(layers): Layers, request: Request) -> Answer {
    let body = Body::read(request, &["layer", "rule", "on"]).await?;
    let (name, on) = (body.layer()?, body.on()?);
    watched::find(&layers, name)?.report_only(body.rule.as_deref(), on)?;
    Ok(Json(json!({ "layer": name, "rule": body.rule, "on": on })))
}
