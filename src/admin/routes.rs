//! Routes of the router, and the header fields of its responses.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, OriginalUri, State, rejection::JsonRejection},
    middleware,
    response::{IntoResponse, Redirect, Response},
    routing::{MethodRouter, any, get, post},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use serde_json::{Value, json};

use super::{
    Guard,
    account::ManagedAccount,
    body::{AccountBody, Problem, ReportOnlyBody, SwitchBody},
    managed::{self, ManagedLayer},
    show,
};

type ManagedLayers = State<Arc<[ManagedLayer]>>;
type Body<T> = Result<Json<T>, JsonRejection>;
type JsonResult = Result<Json<Value>, Problem>;

/// Header fields of every response.
///
/// With these fields, a browser does not cache a response, guess its type, show it in a frame, or
/// load resources of other origins.
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

pub(super) fn router(layers: Arc<[ManagedLayer]>, guard: Guard) -> Router {
    let router = Router::new()
        .route("/", get(redirect_to_page))
        .route("/page", file("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("style.css")))
        .route("/api/layers", get(async |State(all): ManagedLayers| Json(show::layers(&all))))
        .route("/api/denials", get(async |State(all): ManagedLayers| Json(show::denials(&all))))
        .route("/api/health", get(async |State(all): ManagedLayers| Json(show::health(&all).await)))
        .route("/api/peek", account("peek"))
        .route("/api/reset", account("reset"))
        .route("/api/block", account("block"))
        .route("/api/unblock", account("unblock"))
        .route("/api/switch", post(switch))
        .route("/api/report-only", post(report_only))
        // A route, because a router that is nested twice has no fallback of its own.
        .route("/{*unknown}", any(not_found))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(layers)
        .layer(DefaultBodyLimit::max(16 * 1024))
        .layer(middleware::map_response(with_headers));
    guard.wrap(router).layer(middleware::map_response(with_no_store))
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<[ManagedLayer]>> {
    get(async move || ([(CONTENT_TYPE, kind)], text))
}

async fn with_headers(response: Response) -> impl IntoResponse {
    (HEADERS, response)
}

/// Forbids caching of a response that the guard creates.
///
/// The other fields of [`HEADERS`] are not added, because they could break a login form of the
/// guard.
async fn with_no_store(mut response: Response) -> Response {
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().entry(CACHE_CONTROL).or_insert(no_store);
    response
}

/// Redirects to the page by a relative path, which is valid under any prefix.
async fn redirect_to_page(OriginalUri(uri): OriginalUri) -> Redirect {
    match uri.path().rsplit('/').next() {
        None | Some("") => Redirect::temporary("./page"),
        Some(last) => Redirect::temporary(&format!("./{last}/page")),
    }
}

async fn not_found() -> Problem {
    let why = "unknown route; the documentation of tower_sluice::admin lists the routes";
    Problem::new(StatusCode::NOT_FOUND, why)
}

async fn method_not_allowed() -> Problem {
    let why = "wrong method; use POST to peek or to change, and GET for all other routes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, why)
}

fn account(operation: &'static str) -> MethodRouter<Arc<[ManagedLayer]>> {
    post(async move |State(layers): ManagedLayers, body: Body<AccountBody>| -> JsonResult {
        let Json(body) = body?;
        let time = body.time(operation == "block")?;
        let needs_quotas = matches!(operation, "peek" | "reset");
        let account = ManagedAccount::find(&layers, &body, needs_quotas)?;
        match operation {
            "peek" => account.peek().await.map(Json),
            _ => account.change(operation, time).await.map(Json),
        }
    })
}

async fn switch(State(layers): ManagedLayers, body: Body<SwitchBody>) -> JsonResult {
    let Json(SwitchBody { layer, on }) = body?;
    managed::find(&layers, &layer)?.switch.set(on);
    Ok(Json(json!({ "layer": layer, "on": on })))
}

async fn report_only(State(layers): ManagedLayers, body: Body<ReportOnlyBody>) -> JsonResult {
    let Json(ReportOnlyBody { layer, rule, on }) = body?;
    managed::find(&layers, &layer)?.set_report_only(rule.as_deref(), on)?;
    Ok(Json(json!({ "layer": layer, "rule": rule, "on": on })))
}
