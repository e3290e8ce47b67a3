//! A router for operators: rules, limits, accounts, denials, switches and health.
//!
//! During an incident, the router shows which clients are denied and why. Operators can change
//! limits without a deployment.
//!
//! Add each layer under a name, and mount the router under a path. The router needs a guard: a Tower
//! layer that authenticates operators, because users of the router can turn limits off.
//!
//! ```
//! use axum::{
//!     Router, extract::Request, http::StatusCode, middleware::{Next, from_fn}, response::Response,
//!     routing::get,
//! };
//! use tower_sluice::{Quota, RateLimitLayer, admin::Admin};
//!
//! let mut admin = Admin::new();
//! let layer = admin.watch("api", RateLimitLayer::per_ip(Quota::per_second(10)));
//!
//! // replace this with your own authentication
//! async fn operators_only(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     match request.headers().contains_key("x-operator") {
//!         true => Ok(next.run(request).await),
//!         false => Err(StatusCode::FORBIDDEN),
//!     }
//! }
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(layer) // the layer that `watch` returned
//!     .nest("/admin", admin.router(from_fn(operators_only)));
//! ```
//!
//! The next example has two layers with a secret, which all processes use, so fingerprints are equal
//! in every process.
//!
//! ```
//! use tower_sluice::{
//!     LocalStore, Quota, RateLimitLayer, Rule,
//!     admin::Admin,
//!     fingerprint::FingerprintKey,
//!     key::{HeaderKey, PeerIp},
//! };
//!
//! let secret = FingerprintKey::new("correct horse battery staple")?; // from configuration
//! let mut admin = Admin::new();
//! let store = LocalStore::new();
//! let login = Rule::new("login", PeerIp::new(), Quota::per_minute(5));
//! let login = RateLimitLayer::rules(login, store.clone()).fingerprint(secret);
//! let login = admin.watch("login", login);
//! let user = Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_second(50));
//! let user = RateLimitLayer::rules(user, store).fingerprint(secret);
//! let user = admin.watch("user", user);
//! # let _ = (login, user);
//! # Ok::<(), tower_sluice::fingerprint::FingerprintKeyError>(())
//! ```
//!
//! # Password guessing
//!
//! The router does not limit password guesses. Limit them with a layer around the guard. This layer
//! limits each client address and counts only wrong guesses:
//!
//! ```
//! use axum::{extract::Request, http::{HeaderMap, StatusCode, header}, middleware::{self, Next}};
//! use tower::ServiceBuilder;
//! use tower_sluice::{
//!     Headers, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, admin::Admin,
//!     middleware::{Adjustment, ChargeHandle}, rule::Applies,
//! };
//!
//! # fn is_right(headers: &HeaderMap) -> bool { headers.is_empty() }
//! async fn check(request: Request, next: Next) -> Result<axum::response::Response, StatusCode> {
//!     if !is_right(request.headers()) {
//!         return Err(StatusCode::UNAUTHORIZED); // the charge stays
//!     }
//!     if let Some(guess) = request.extensions().get::<ChargeHandle>() {
//!         guess.adjust_to(0); // before the routes run, because they may be slow
//!     }
//!     Ok(next.run(request).await)
//! }
//!
//! // behind a proxy: ClientIp::behind
//! let guesses = Rule::new("password", PeerIp::new(), Quota::per_minute(5)).applies(|parts| {
//!     // the first request of a browser has no password, so it is not a guess
//!     if parts.headers.contains_key(header::AUTHORIZATION) { Applies::Charge } else { Applies::Skip }
//! });
//! let limit = RateLimitLayer::rules(guesses, LocalStore::new())
//!     .headers(Headers::RateLimit.only_when_denied())
//!     .expose_charge(Adjustment::Keep);
//! let guard = ServiceBuilder::new().layer(limit).layer(middleware::from_fn(check));
//! let router = Admin::new().router(guard);
//! ```
//!
//! A guess is charged before the password is checked, so parallel guesses count too. An address
//! without guesses left is denied even with the right password.
//!
//! Each address has its own account, so a client cannot lock out an operator at another address. An
//! operator who shares an address with an attacker must connect from elsewhere, such as loopback
//! through SSH.
//!
//! Do not limit all addresses together, because anyone could then lock out operators. An attacker
//! with a thousand addresses has 5000 guesses per minute, so use a random password of at least 64
//! bits.
//!
//! # Routes
//!
//! Paths are relative to the path of the router. `Router::nest("/admin", …)` serves `/admin` and
//! the paths below it, but not `/admin/`. `nest_service` also serves `/admin/`. `examples/admin.rs`
//! serves the routes behind a password.
//!
//! | route | request | response |
//! |---|---|---|
//! | `GET /` | | redirects to the page |
//! | `GET /page` | | a page that uses the routes below |
//! | `GET /api/layers` | | `{"layers": [{"layer": "api", "on": true, "report_only": false, "rules": [..]}]}` |
//! | `GET /api/health` | | `{"layers": [{"layer": "api", "health": {"store": "local", "status": "healthy", ..}}]}` |
//! | `POST /api/peek` | `{"layer": "api", "rule": "ip", "key": {"address": "203.0.113.9"}}` | the account, as below |
//! | `POST /api/reset` | as `peek` | `{"layer": "api", "rule": "ip", "key": "55bb…", "done": "reset", "by": "local"}` |
//! | `POST /api/block` | as `peek`, with `"for": "10min"` | as `reset`, with `"done": "block"` |
//! | `POST /api/unblock` | as `peek` | as `reset`, with `"done": "unblock"` |
//! | `POST /api/switch` | `{"layer": "api", "on": false}` | empty |
//! | `POST /api/switch` | `{"layer": "api", "rule": "ip", "report_only": true}` | empty |
//!
//! `switch` turns a layer off: with `"on": false` every request passes, and the store is not
//! called. `report_only` without a rule applies to the whole layer. Both apply to this process
//! until it ends.
//!
//! In `layers`, a rule has the form below.
//!
//! - `quotas` have the form of a [configuration](crate::Quota), or are `null` if they are chosen per
//!   request. `live` is `true` if they can be [replaced](crate::LivePlan).
//! - `cost` and `headroom` are `null` if they are read from the request.
//! - `denied` is the number of denied requests. `reported` is the number of requests that the rule would
//!   have denied, if the rule or the layer had not only reported or an
//!   [`Overcommit`](crate::middleware::Overcommit) had not admitted them. This process counts both from when
//!   the layer was added.
//! - `recent` lists the latest 50 denials, newest first. `at_ms` is Unix time, and `key` is the
//!   [fingerprint](crate::fingerprint::Fingerprint) of the key. `retry_after_ms` is `null` if waiting
//!   does not help.
//! - `top` lists up to 50 keys, the most denied first. `denied` is the number of denials since the
//!   key entered the list, including reported ones. A new key replaces the least denied one. A key
//!   that the router has blocked stays listed until the Unix time `blocked_until_ms`. `clear` is the
//!   key in clear text, only with [`Admin::show_keys`].
//!
//! ```json
//! {
//!   "rule": "ip", "quotas": ["10/s"], "live": false, "cost": 1, "headroom": 0, "queues": false,
//!   "report_only": false, "denied": 12, "reported": 0,
//!   "recent": [{"at_ms": 1764547200123, "key": "55bbf4838f29aabc", "result": "limited", "retry_after_ms": 100}],
//!   "top": [{"key": "55bbf4838f29aabc", "denied": 12, "blocked_until_ms": null}]
//! }
//! ```
//!
//! `peek`, `reset`, `block` and `unblock` accept `"fingerprint": "55bbf4838f29aabc"` instead of
//! `key`, for a key in `top`. During an incident, an operator can thus block a key that is not shown.
//!
//! `peek` returns an account without charging it. `blocked_ms` is the remaining time of a block, or
//! `null`. `would` [explains](crate::explain) the decision that the next request would get if it did
//! not wait. `held` is the number of slots of the running requests, or `null` if the quota is not
//! [concurrent](crate::Quota::concurrent).
//!
//! ```json
//! {
//!   "layer": "api", "rule": "ip", "key": "55bbf4838f29aabc", "by": "local",
//!   "quotas": [{
//!     "text": "10/s", "limit": 10, "remaining": 3, "held": null, "reset_after_ms": 700,
//!     "next_after_ms": 100
//!   }],
//!   "blocked_ms": null,
//!   "would": "would be allowed\n  rule …"
//! }
//! ```
//!
//! # Keys
//!
//! Write a key as the extractor of the rule produces it. The router cannot see the type of a rule's
//! keys: text that looks like an address is another key than the address. To be sure, compare the
//! fingerprint in the response with those in `layers`, or use `fingerprint` instead of `key`.
//!
//! | key | extractor |
//! |---|---|
//! | `"alice"` or `{"text": "alice"}` | [`HeaderKey`](crate::key::HeaderKey), `MethodKey`, `RouteKey` and other extractors of text |
//! | `{"address": "203.0.113.9"}` | [`PeerIp`](crate::PeerIp) and [`ClientIp`](crate::ClientIp) |
//! | `{"number": 7}` | an extractor of numbers; from 2⁶⁴ on, write the number as text |
//! | `{"bytes": "/w=="}` | an extractor of bytes that are not text, in base64 |
//! | `{"everyone": true}` | [`Everyone`](crate::key::Everyone) |
//! | `{"unidentified": true}` | none: the key that requests without an identity share ([`OnMissingKey::Share`](crate::rule::OnMissingKey)) |
//! | `["GET", {"address": "203.0.113.9"}]` | a tuple of extractors |
//!
//! An IPv6 address stands for its /64, as in the extractors. If a rule counts by other prefixes, give the prefix: `{"address": "2001:db8::7/48"}`.
//!
//! # Quotas
//!
//! Omit `quotas` for a rule with fixed or [live](crate::LivePlan) quotas. If the rule [chooses
//! quotas per request](crate::Plan::from_fn), `peek` and `reset` need the quotas of the key:
//! `"quotas": ["5/s burst 20", {"units": 1000, "period": "day", "algorithm": "fixed_window"}]`. Names
//! of them are ignored.
//!
//! Quotas find accounts by their period, algorithm and unit. To look at accounts of an older plan of a
//! rule, or to end them, give `peek` or `reset` the older quotas. `reset` ends only the accounts of the
//! quotas that it has.
//!
//! # Errors
//!
//! Errors are problem+json ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). Their `detail` has
//! the field, its value and the fix. An unknown field is an error.
//!
//! | status | reason |
//! |---|---|
//! | 400 | invalid body |
//! | 404 | unknown layer, rule, route or method |
//! | 409 | the store does not support report-only for the rule |
//! | 413, 415 | a body above 16 KiB, or one that is not `application/json` |
//! | 501 | the store does not support the operation: a governor limiter can neither peek nor reset |
//! | 503 | the store failed, or its fallback made the change in this process only |
//! | 507 | the store has no room for another block |
//!
//! # Limitations
//!
//! - Security depends on the guard. Every client that the guard allows can read all limits and turn
//!   them off. Keys reach the server in clear text, so serve the router over TLS.
//! - In an operator's browser, pages of other sites can send forms and plain text to the router.
//!   They can send JSON only if your CORS policy allows it. Every change therefore requires a
//!   `POST` of `application/json`. Do not place a permissive CORS layer around this router.
//! - A guard that checks only the address, such as loopback, also allows pages of other sites in a
//!   browser at that address (DNS rebinding). Require a secret.
//! - The router shows one process. Accounts and blocks in Redis are shared by all processes;
//!   switches, counts and denials belong to this process.
//! - The listed keys are in the memory of the process, in clear text: at most 50 per rule, each of
//!   at most [`max_key_len`](crate::Rule::max_key_len) bytes.
//! - `recent` and `top` list only denials by rules. Rejections for a missing key or by a deny list are
//!   absent.
//! - Limits of the managed layers do not apply to the router itself. See [password
//!   guessing](#password-guessing).

mod account;
mod denials;
mod key;
mod managed;

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, OriginalUri, Request, State, rejection::JsonRejection},
    middleware::map_response,
    response::{IntoResponse, Redirect, Response},
    routing::{MethodRouter, Route, any, get, post},
};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use serde::Deserialize;
use serde_json::json;
use tower::{Layer, Service};

use self::{account::AccountBody, denials::DenialLog, managed::ManagedLayer};
use crate::{
    fingerprint::FingerprintKey,
    middleware::RateLimitLayer,
    rule::{RuleName, Rules, infos},
    store::{Store, StoreExt, literal},
};

/// Builder of the router.
///
/// See the [module](self) for examples.
#[must_use]
pub struct Admin {
    secret: FingerprintKey,
    shows_keys: bool,
    layers: Vec<ManagedLayer>,
}

impl Admin {
    /// Creates a builder without layers. Layers without a
    /// [secret](RateLimitLayer::fingerprint) share a random one.
    pub fn new() -> Self {
        Self {
            secret: FingerprintKey::random(),
            shows_keys: false,
            layers: Vec::new(),
        }
    }

    /// Shows the most denied keys in clear text, beside their fingerprints.
    ///
    /// Defaults to fingerprints only, because a key may be personal or secret: an address, or the
    /// value of a header. The setting applies to layers that are added after this call.
    pub fn show_keys(self) -> Self {
        Self {
            shows_keys: true,
            ..self
        }
    }

    /// Adds a layer under a name, and returns a layer that records its denials.
    ///
    /// Build your services with the returned layer or its clones. Clones made before this call do
    /// not record denials. The returned layer has a [secret](RateLimitLayer::fingerprint), so its
    /// spans and debug lines contain fingerprints. It keeps its secret and its toggles, because the page
    /// shows them: call `fingerprint`, `enabled` and `report_only` before this method.
    ///
    /// A layer may be added under several names. Each entry shows the denials of the layer that was
    /// returned for it, and of its clones. Layers may share a store.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, admin::Admin};
    ///
    /// let mut admin = Admin::new();
    /// let layer = admin.watch("api", RateLimitLayer::per_ip(Quota::per_second(10)));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if another layer has this name, or if the name is not 1 to 64 printable ASCII
    /// characters.
    #[track_caller]
    pub fn watch<K, S, R>(
        &mut self,
        name: &str,
        mut layer: RateLimitLayer<K, S, R>,
    ) -> RateLimitLayer<K, S, R>
    where
        K: Rules + Send + Sync + 'static,
        S: Store<Error = Infallible> + Send + Sync + 'static,
    {
        let name = literal(RuleName::new(name));
        let taken = self.layers.iter().any(|layer| layer.name == name);
        assert!(
            !taken,
            "another layer has the name {name:?}; give another name"
        );
        let rules: Arc<dyn Rules + Send + Sync> = layer.rules.clone();
        let denial_log = DenialLog::new(&infos(&*rules));
        let settings = &mut layer.settings;
        settings.hooks.push(Arc::new(denial_log.clone()));
        settings.is_on_admin_page = true;
        self.layers.push(ManagedLayer {
            name,
            rules,
            store: layer.store.clone().boxed(),
            switch: settings.enabled.clone(),
            report_only: settings.report_only.clone(),
            denial_log,
            secret: *settings.secret.get_or_insert(self.secret),
            shows_keys: self.shows_keys,
        });
        layer
    }

    /// Creates the router. Mount it under a path with `Router::nest("/admin", …)`.
    ///
    /// The guard is a Tower layer, such as one of `axum::middleware::from_fn`, or several layers in a
    /// `ServiceBuilder`. It wraps all routes and unknown paths: a request that it does not forward
    /// never reaches the router. Compare secrets in constant time, as `examples/admin.rs` does.
    ///
    /// Layers that are added later are not part of the router.
    pub fn router<G>(&self, guard: G) -> Router
    where
        G: Layer<Route> + Clone + Send + Sync + 'static,
        G::Service: Service<Request> + Clone + Send + Sync + 'static,
        <G::Service as Service<Request>>::Response: IntoResponse + 'static,
        <G::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <G::Service as Service<Request>>::Future: Send + 'static,
    {
        routes()
            .with_state(self.layers.as_slice().into())
            .layer(guard)
            .layer(map_response(no_store))
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.layers.iter().map(|layer| &layer.name);
        f.debug_struct("Admin")
            .field("layers", &names.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

type Layers = State<Arc<[ManagedLayer]>>;
type Body<T> = Result<Json<T>, JsonRejection>;

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

fn routes() -> Router<Arc<[ManagedLayer]>> {
    Router::new()
        .route("/", get(redirect_to_page))
        .route(
            "/page",
            file("text/html; charset=utf-8", include_str!("page.html")),
        )
        .route(
            "/page.js",
            file("text/javascript; charset=utf-8", include_str!("page.js")),
        )
        .route(
            "/style.css",
            file("text/css; charset=utf-8", include_str!("style.css")),
        )
        .route(
            "/api/layers",
            get(async |State(all): Layers| Json(managed::layers(&all))),
        )
        .route(
            "/api/health",
            get(async |State(all): Layers| Json(managed::health(&all).await)),
        )
        .route("/api/peek", account("peek"))
        .route("/api/reset", account("reset"))
        .route("/api/block", account("block"))
        .route("/api/unblock", account("unblock"))
        .route("/api/switch", post(switch))
        // A route, because a router that is nested twice has no fallback of its own.
        .route("/{*unknown}", any(not_found))
        .method_not_allowed_fallback(not_found)
        .layer(DefaultBodyLimit::max(16 * 1024))
        .layer(map_response(async |response: Response| (HEADERS, response)))
}

fn file(kind: &'static str, text: &'static str) -> MethodRouter<Arc<[ManagedLayer]>> {
    get(async move || ([(CONTENT_TYPE, kind)], text))
}

/// Forbids caching of a response that the guard creates.
///
/// The other fields of [`HEADERS`] are not added, because they could break a login form of the
/// guard.
async fn no_store(mut response: Response) -> Response {
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .entry(CACHE_CONTROL)
        .or_insert(no_store);
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
    let why = "unknown route or method; the documentation of tower_sluice::admin lists the routes";
    Problem(StatusCode::NOT_FOUND, why.into())
}

fn account(operation: &'static str) -> MethodRouter<Arc<[ManagedLayer]>> {
    post(
        async move |State(layers): Layers, body: Body<AccountBody>| {
            account::run(operation, &layers, body?.0).await.map(Json)
        },
    )
}

async fn switch(State(all): Layers, body: Body<SwitchBody>) -> Result<(), Problem> {
    let Json(SwitchBody {
        layer,
        rule,
        on,
        report_only,
    }) = body?;
    let layer = managed::find(&all, &layer)?;
    match (on, report_only, rule) {
        (Some(on), None, None) => layer.switch.set(on),
        (None, Some(on), rule) => layer.set_report_only(rule.as_deref(), on)?,
        _ => Err("give on for a layer, or report_only for a layer or a rule".to_owned())?,
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchBody {
    layer: String,
    rule: Option<String>,
    on: Option<bool>,
    report_only: Option<bool>,
}

/// An error response: a status, and a sentence that describes the fix.
struct Problem(StatusCode, String);

/// Creates an error for an invalid body.
impl From<String> for Problem {
    fn from(detail: String) -> Self {
        Self(StatusCode::BAD_REQUEST, detail)
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        Self(status, rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self(status, detail) = self;
        let problem = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("Problem"),
            "status": status.as_u16(),
            "detail": detail,
        });
        (
            status,
            [(CONTENT_TYPE, "application/problem+json")],
            Json(problem),
        )
            .into_response()
    }
}
