//! A router for operators: rules, limits, accounts, denials, switches and health.
//!
//! During an incident, the router shows which clients are denied and why. Operators can change
//! limits without a deployment.
//!
//! Add each layer under a name, and mount the router under a path. A [`Guard`] is required, because
//! users of the router can turn limits off.
//!
//! ```
//! use axum::{Router, http::{HeaderMap, StatusCode}, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer, admin::{Admin, Guard}};
//!
//! let mut admin = Admin::new();
//! let layer = admin.watch("api", RateLimitLayer::per_ip(Quota::per_second(10)));
//!
//! // replace this with your own authentication
//! let guard = Guard::from_fn(|parts| match parts.headers.get("x-operator") {
//!     Some(_) => Ok(()),
//!     None => Err(StatusCode::FORBIDDEN),
//! });
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(layer) // the layer that `watch` returned
//!     .nest("/admin", admin.router(guard));
//! ```
//!
//! The next example has two layers and a Tower layer as the guard. All processes use one secret, so
//! fingerprints are equal in every process.
//!
//! ```
//! use axum::{Router, extract::Request, http::StatusCode, middleware, response::Response};
//! use tower_sluice::{
//!     LocalStore, Quota, RateLimitLayer, Rule,
//!     admin::{Admin, Guard},
//!     fingerprint::FingerprintKey,
//!     key::{HeaderKey, PeerIp},
//! };
//!
//! async fn operators_only(request: Request, next: middleware::Next) -> Result<Response, StatusCode> {
//! #   let knows = |_: &Request| true;
//!     if knows(&request) { Ok(next.run(request).await) } else { Err(StatusCode::UNAUTHORIZED) }
//! }
//!
//! let secret = FingerprintKey::new("correct horse battery staple")?; // from configuration
//! let mut admin = Admin::new().fingerprint(secret);
//! let store = LocalStore::new();
//! let login = Rule::new("login", PeerIp::new(), Quota::per_minute(5));
//! let login = admin.watch("login", RateLimitLayer::rules(login, store.clone()));
//! let user = Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_second(50));
//! let user = admin.watch("user", RateLimitLayer::rules(user, store));
//! let router = admin.router(Guard::layer(middleware::from_fn(operators_only)));
//! # let _: (Router, _, _) = (router, login, user);
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
//!     Headers, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, admin::Guard,
//!     middleware::{ChargeHandle, Unadjusted}, rule::Applies,
//! };
//!
//! # fn is_right(headers: &HeaderMap) -> bool { headers.is_empty() }
//! async fn check(request: Request, next: Next) -> Result<axum::response::Response, StatusCode> {
//!     if !is_right(request.headers()) {
//!         return Err(StatusCode::UNAUTHORIZED); // the charge stays
//!     }
//!     if let Some(guess) = request.extensions().get::<ChargeHandle>() {
//!         guess.refund(); // before the routes run, because they may be slow
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
//!     .expose_charge(Unadjusted::Keep);
//! let guard = Guard::layer(ServiceBuilder::new().layer(limit).layer(middleware::from_fn(check)));
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
//! | `GET /api/denials` | | `{"layers": [{"layer": "api", "rules": [{"rule": "ip", "recent": [..], "top": [..]}]}]}` |
//! | `GET /api/health` | | `{"layers": [{"layer": "api", "health": {"store": "local", "status": "healthy", ..}}]}` |
//! | `POST /api/peek` | `{"layer": "api", "rule": "ip", "key": {"address": "203.0.113.9"}}` | the account, as below |
//! | `POST /api/reset` | as `peek` | `{"layer": "api", "rule": "ip", "key": "55bb…", "prefix": null, "done": "reset", "by": "local"}` |
//! | `POST /api/block` | as `peek`, with `"for": "10min"` | as `reset`, with `"done": "block"` |
//! | `POST /api/unblock` | as `peek` | as `reset`, with `"done": "unblock"` |
//! | `POST /api/switch` | `{"layer": "api", "on": false}` | `{"layer": "api", "on": false}` |
//! | `POST /api/report-only` | `{"layer": "api", "rule": "ip", "on": true}` | `{"layer": "api", "rule": "ip", "on": true}` |
//!
//! `switch` turns a layer off: with `"on": false` every request passes, and the store is not
//! called. `report-only` without a rule applies to the whole layer. Both apply to this process
//! until it ends.
//!
//! In `layers`, a rule has the form below.
//!
//! - `denied` is the number of denied requests. `reported` is the number of requests that
//!   report-only rules would have denied. This process counts both from when the layer was added.
//! - `quotas` is `null` if quotas are chosen per request. `quotas_are` is `fixed`, `live` or
//!   `per request`.
//! - `cost` and `headroom` are `null` if they are read from the request.
//!
//! ```json
//! {
//!   "rule": "ip", "quotas_are": "fixed", "cost": 1, "headroom": 0, "queues": false,
//!   "quotas": [{"text": "10/s", "algorithm": "gcra", "limit": 10, "units": 10, "period_ms": 1000, "max_debt": 10}],
//!   "report_only": false, "denied": 7, "reported": 0
//! }
//! ```
//!
//! In `denials`, `recent` lists the latest 50 denials of a rule, newest first. `at_ms` is Unix
//! time, and `key` is the [fingerprint](crate::fingerprint::Fingerprint) of the key.
//! `retry_after_ms` is `null` if waiting does not help.
//!
//! ```json
//! {"at_ms": 1764547200123, "key": "55bbf4838f29aabc", "result": "limited", "retry_after_ms": 100}
//! ```
//!
//! `top` lists up to 50 keys of a rule, the most denied first. `denied` is the number of denials
//! since the key entered the list, including reported ones. A new key replaces the least denied
//! one. A key that the router has blocked stays listed, and `blocked_ms` is the remaining time of
//! that block, or `null`. `clear` is the key in clear text, only with [`Admin::show_keys`].
//!
//! ```json
//! {"key": "55bbf4838f29aabc", "denied": 12, "blocked_ms": null}
//! ```
//!
//! `peek`, `reset`, `block` and `unblock` accept `"fingerprint": "55bbf4838f29aabc"` instead of
//! `key`, for a listed key. During an incident, an operator can thus block a key that is not shown.
//!
//! `peek` returns an account without charging it. `blocked_ms` is the remaining time of a block, or
//! `null`. `would` [explains](crate::explain) the decision that the next request would get. `held`
//! is the number of slots of the running requests, or `null` if the quota is not
//! [concurrent](crate::Quota::concurrent).
//!
//! ```json
//! {
//!   "layer": "api", "rule": "ip", "key": "55bbf4838f29aabc", "prefix": null, "by": "local",
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
//! fingerprint in the response with those in `denials`, or use `fingerprint` instead of `key`.
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
//! An IPv6 address stands for its /64, as in the extractors, and the response contains `"prefix": 64`.
//! `prefix` is `null` if the key is no network.
//! If a rule counts by other prefixes, give the prefix: `{"address": "2001:db8::7/48"}`.
//!
//! # Quotas
//!
//! Omit `quotas` for a rule with fixed or [live](crate::LivePlan) quotas. If the rule [chooses
//! quotas per request](crate::Plan::from_fn), `peek` and `reset` need the quotas of the key, in the
//! order of the rule and with the same algorithms:
//! `"quotas": ["5/s burst 20", {"units": 1000, "period": "day", "algorithm": "sliding_window"}]`.
//!
//! # Errors
//!
//! Errors are problem+json ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). Their `detail` has
//! the field, its value and the fix. An unknown field is an error.
//!
//! | status | reason |
//! |---|---|
//! | 400 | invalid body |
//! | 404, 405 | unknown layer, rule or route; wrong method |
//! | 409 | the rule has no account or no switch, or its store does not support report-only |
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
//! - `denials` lists only denials by rules. Rejections for a missing key or by a deny list are
//!   absent.
//! - Limits of the managed layers do not apply to the router itself. See [password
//!   guessing](#password-guessing).

mod account;
mod body;
mod denials;
mod key;
mod managed;
mod routes;
mod show;

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse,
    routing::Route,
};
use tower::{Layer, Service};

use self::managed::ManagedLayer;
use crate::{
    fingerprint::FingerprintKey, key::RequestHead, middleware::RateLimitLayer, rule::Rules,
    store::Store,
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
    /// Creates a builder without layers. Fingerprints use a random secret.
    pub fn new() -> Self {
        Self { secret: FingerprintKey::random(), shows_keys: false, layers: Vec::new() }
    }

    /// Sets the secret for fingerprints.
    ///
    /// The secret applies to layers that are added after this call. A layer with a [secret of its
    /// own](RateLimitLayer::fingerprint) keeps that secret.
    ///
    /// Processes with the same secret show the same fingerprint for a key.
    pub fn fingerprint(self, secret: impl Into<FingerprintKey>) -> Self {
        Self { secret: secret.into(), ..self }
    }

    /// Shows the most denied keys in clear text, beside their fingerprints.
    ///
    /// Defaults to fingerprints only, because a key may be personal or secret: an address, or the
    /// value of a header. The setting applies to layers that are added after this call.
    pub fn show_keys(self) -> Self {
        Self { shows_keys: true, ..self }
    }

    /// Adds a layer under a name, and returns a layer that records its denials.
    ///
    /// Build your services with the returned layer or its clones. Clones made before this call do
    /// not record denials. The returned layer has a [secret](RateLimitLayer::fingerprint), so its
    /// spans and debug lines contain fingerprints.
    ///
    /// A layer may be added under several names. All its entries then show the same denials. Layers
    /// may share a store.
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
    /// Panics if another layer has this name, or if the name is invalid. A valid name has 1 to 64
    /// of the characters `A-Z a-z 0-9 - . _ ~`.
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
        let taken = self.layers.iter().any(|layer| *layer.name == *name);
        assert!(!taken, "another layer has the name {name:?}; give another name");
        let safe = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        assert!(
            (1..=64).contains(&name.len()) && name.chars().all(safe),
            "invalid name {name:?} of a layer; give 1 to 64 of A-Z, a-z, 0-9, -, ., _ and ~"
        );
        self.layers.push(ManagedLayer::new(name, &mut layer, self.secret, self.shows_keys));
        layer
    }

    /// Creates the router. Mount it under a path with `Router::nest("/admin", …)`.
    ///
    /// The guard checks every request, even for unknown paths.
    ///
    /// Layers that are added later are not part of the router.
    pub fn router(&self, guard: Guard) -> Router {
        routes::router(Arc::from(self.layers.clone()), guard)
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
        f.debug_struct("Admin").field("layers", &names.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

/// Guard that authenticates requests to an [`Admin`].
///
/// There is deliberately no guard that allows every request.
pub struct Guard(Box<dyn FnOnce(Router) -> Router + Send>);

impl Guard {
    /// Creates a guard from a function that checks the head of each request.
    ///
    /// If the function returns an error, the error is the response, for example 401 or 403.
    ///
    /// Compare secrets in constant time, as `examples/admin.rs` does.
    ///
    /// ```
    /// use axum::http::{StatusCode, header};
    /// use tower_sluice::admin::Guard;
    ///
    /// # let knows = |_: &axum::http::HeaderValue| false;
    /// let guard = Guard::from_fn(move |head| match head.headers.get(header::AUTHORIZATION) {
    ///     Some(credentials) if knows(credentials) => Ok(()),
    ///     _ => Err((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic")])),
    /// });
    /// ```
    pub fn from_fn<F, E>(admits: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Result<(), E> + Send + Sync + 'static,
        E: IntoResponse + 'static,
    {
        let admits = Arc::new(admits);
        Self::layer(middleware::from_fn(move |request: Request, next: Next| {
            let rejection =
                admits(&RequestHead::from(&request)).err().map(IntoResponse::into_response);
            async move {
                match rejection {
                    Some(response) => response,
                    None => next.run(request).await,
                }
            }
        }))
    }

    /// Creates a guard from a Tower layer, or from several layers in a `ServiceBuilder`.
    ///
    /// The layer wraps all routes. A request that the layer does not forward never reaches the
    /// router.
    ///
    /// ```
    /// use axum::{extract::Request, http::StatusCode, middleware::{self, Next}};
    /// use tower_sluice::admin::Guard;
    ///
    /// Guard::layer(middleware::from_fn(async |request: Request, next: Next| {
    ///     // replace this with a lookup in a table of sessions
    ///     match request.headers().contains_key("cookie") {
    ///         true => Ok(next.run(request).await),
    ///         false => Err(StatusCode::UNAUTHORIZED),
    ///     }
    /// }));
    /// ```
    pub fn layer<L>(layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        Self(Box::new(move |router| router.layer(layer)))
    }

    fn wrap(self, router: Router) -> Router {
        (self.0)(router)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}
