//! A router for operators: rules and limits, accounts, refusals, switches, the health of stores.
//!
//! What a limiter does is asked at bad moments: who is refused, why, and how to let one in now. The
//! routes here answer that, and change what must not wait for a deployment. You name the layers that
//! are watched, and mount the router under a path of your own; it needs a [`Guard`], since whoever
//! reaches it turns limits off.
//!
//! ```
//! use axum::{Router, http::{HeaderMap, StatusCode}, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer, admin::{Admin, Guard}};
//!
//! let mut admin = Admin::new();
//! let layer = admin.watch("api", RateLimitLayer::per_ip(Quota::per_second(10)));
//!
//! // stands in for your own authentication
//! let guard = Guard::from_fn(|parts| match parts.headers.get("x-operator") {
//!     Some(_) => Ok(()),
//!     None => Err(StatusCode::FORBIDDEN),
//! });
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(layer) // the watched one
//!     .nest("/admin", admin.router(guard));
//! ```
//!
//! A configured case: two layers, fingerprints that are the same in every process, and a guard that
//! is a layer of tower.
//!
//! ```
//! use axum::{Router, extract::Request, http::StatusCode, middleware, response::Response};
//! use tower_sluice::{
//!     LocalStore, Quota, RateLimitLayer, Rule, Secret,
//!     admin::{Admin, Guard}, key::{Header, PeerIp},
//! };
//!
//! async fn operators_only(request: Request, next: middleware::Next) -> Result<Response, StatusCode> {
//! #   let knows = |_: &Request| true;
//!     if knows(&request) { Ok(next.run(request).await) } else { Err(StatusCode::UNAUTHORIZED) }
//! }
//!
//! let secret = Secret::new("correct horse battery staple")?; // from configuration
//! let mut admin = Admin::new().fingerprint(secret);
//! let store = LocalStore::new();
//! let login = Rule::new("login", PeerIp::new(), Quota::per_minute(5));
//! let login = admin.watch("login", RateLimitLayer::rules(login, store.clone()));
//! let user = Rule::new("user", Header::new("x-api-key"), Quota::per_second(50));
//! let user = admin.watch("user", RateLimitLayer::rules(user, store));
//! let router = admin.router(Guard::layer(middleware::from_fn(operators_only)));
//! # let _: (Router, _, _) = (router, login, user);
//! # Ok::<(), tower_sluice::SecretError>(())
//! ```
//!
//! # Guesses at a password
//!
//! A guard that asks for a password can be guessed at as fast as it answers. Limit the guard by a
//! layer of this crate: by client address, and wrong guesses only.
//!
//! ```
//! use axum::{extract::Request, http::{HeaderMap, StatusCode, header}, middleware::{self, Next}};
//! use tower::ServiceBuilder;
//! use tower_sluice::{
//!     LocalStore, Mode, PeerIp, Quota, RateLimitLayer, Reservation, Rule, admin::Guard,
//! };
//!
//! # fn is_right(headers: &HeaderMap) -> bool { headers.is_empty() }
//! async fn check(request: Request, next: Next) -> Result<axum::response::Response, StatusCode> {
//!     if !is_right(request.headers()) {
//!         return Err(StatusCode::UNAUTHORIZED); // the charge stays
//!     }
//!     if let Some(guess) = request.extensions().get::<Reservation>() {
//!         guess.refund(); // before the routes run, which may take their time
//!     }
//!     Ok(next.run(request).await)
//! }
//!
//! // behind a proxy: ClientIp::behind
//! let guesses = Rule::new("password", PeerIp::new(), Quota::per_minute(5)).mode(|parts| {
//!     // browsers ask without a password first, and that is no guess
//!     if parts.headers.contains_key(header::AUTHORIZATION) { Mode::Charge } else { Mode::Skip }
//! });
//! let limit = RateLimitLayer::rules(guesses, LocalStore::new())
//!     .headers_only_when_denied()
//!     .reserve();
//! let guard = Guard::layer(ServiceBuilder::new().layer(limit).layer(middleware::from_fn(check)));
//! ```
//!
//! Guesses are charged before they are checked, so that parallel ones are counted, too. Once an
//! address has spent its guesses, a right password from there is denied as well: otherwise a denial
//! would not end the guessing. Addresses do not share, so nobody can lock an operator out from another
//! one. An operator behind the same NAT as a guesser waits until the guesser stops, or comes from
//! another address, such as loopback through SSH.
//! No rule bounds all addresses together, since such a rule would let anybody lock operators out: an
//! attacker with a thousand addresses has 5000 guesses a minute, so use a random password of 64 bits or
//! more.
//!
//! # Routes
//!
//! All are below the path where the router is mounted. `examples/admin.rs` serves them behind a
//! password. By `Router::nest("/admin", …)` axum serves `/admin` and what is below, but `/admin/` not;
//! by `nest_service` that too.
//!
//! | route | request | answer |
//! |---|---|---|
//! | `GET /` | | redirects to the page |
//! | `GET /page` | | a page that shows and does what is below |
//! | `GET /api/layers` | | `{"layers": [{"layer": "api", "on": true, "report_only": false, "rules": [..]}]}` |
//! | `GET /api/refusals` | | `{"layers": [{"layer": "api", "rules": [{"rule": "ip", "recent": [..]}]}]}` |
//! | `GET /api/health` | | `{"layers": [{"layer": "api", "health": {"store": "local", "state": "well", ..}}]}` |
//! | `POST /api/peek` | `{"layer": "api", "rule": "ip", "key": {"address": "203.0.113.9"}}` | what its account has, as below |
//! | `POST /api/reset` | the same | `{"layer": "api", "rule": "ip", "key": "55bb…", "done": "reset", "by": "local"}` |
//! | `POST /api/block` | the same, and `"for": "10min"` | the same, `"done": "block"` |
//! | `POST /api/unblock` | as peek | the same, `"done": "unblock"` |
//! | `POST /api/switch` | `{"layer": "api", "on": false}` | `{"layer": "api", "on": false}` |
//! | `POST /api/report-only` | `{"layer": "api", "rule": "ip", "on": true}` | the same |
//!
//! `switch` is the kill switch: with `"on": false` every request passes and no store is asked.
//! `report-only` without a rule is that of the whole layer. Both hold in this process until it ends.
//!
//! A rule among `layers`: `refused` and `reported` count in this process, since it is watched, what
//! was refused and what would have been; `quotas` are `null` where they are chosen per request, `cost` and
//! `headroom` where they are read from it, and `quotas_are` says `fixed`, `live` or `per request`.
//!
//! ```json
//! {
//!   "rule": "ip", "key_kind": {"address": {"ipv4_prefix": 32, "ipv6_prefix": 64}},
//!   "quotas_are": "fixed", "cost": 1, "headroom": 0, "queues": false,
//!   "quotas": [{"text": "10/s", "algorithm": "gcra", "limit": 10, "units": 10, "period_ms": 1000, "max_debt": 10}],
//!   "report_only": false, "refused": 7, "reported": 0
//! }
//! ```
//!
//! One of the `recent` refusals of a rule, newest first and at most 50 of each rule; `at_ms` is Unix
//! time, `key` the [fingerprint](crate::Fingerprint) of the key, and `retry_after_ms` is `null` where
//! waiting did not help.
//!
//! ```json
//! {"at_ms": 1764547200123, "key": "55bbf4838f29aabc", "result": "limited", "retry_after_ms": 100}
//! ```
//!
//! What an account has: `blocked_ms` is how long the key is blocked yet, or `null`; `would` says in
//! [words](crate::explain) what a request of the usual cost would be answered. Nothing is charged.
//!
//! ```json
//! {
//!   "layer": "api", "rule": "ip", "key": "55bbf4838f29aabc", "by": "local", "blocked_ms": null,
//!   "quotas": [
//!     {"text": "10/s", "limit": 10, "remaining": 3, "reset_after_ms": 700, "next_after_ms": 100}
//!   ],
//!   "would": "would be allowed by rule …"
//! }
//! ```
//!
//! # Keys
//!
//! A key is written as its extractor makes it, so that it names the account that requests charge. The
//! [kind](crate::key::KeyKind) of a rule's keys is `key_kind` among `layers`: `"text"`, `"number"`,
//! `"everyone"`, `"unidentified"`, `{"address": {..}}`, `{"one_of": [..]}`, a list for a tuple, and
//! `null` for an extractor that does not say, as one made by [`key_fn`](crate::key_fn). A key of another
//! kind is an error, since no request has it.
//!
//! | key | is what |
//! |---|---|
//! | `"alice"` or `{"text": "alice"}` | [`Header`](crate::key::Header), `Method`, `Route` and extractors of text find |
//! | `{"address": "203.0.113.9"}` | [`PeerIp`](crate::PeerIp) and [`ClientIp`](crate::ClientIp) find; `ip` is the same |
//! | `{"number": 7}` | an extractor of numbers finds; above 2⁶⁴ as text |
//! | `{"bytes": "/w=="}` | an extractor of bytes that are no text finds, in base64 |
//! | `{"everyone": true}` | [`Everyone`](crate::key::Everyone) finds |
//! | `{"unidentified": true}` | requests without an identity share ([`Missing::Share`](crate::Missing)) |
//! | `["GET", {"address": "203.0.113.9"}]` | a tuple of extractors finds |
//!
//! Text alone is read as an address or a number where the rule counts those. Where it may be either, as
//! `"127.0.0.1"` by a header or else by address, it is an error that shows both forms.
//!
//! An address is cut to its prefix as the extractor cuts it: to block one IPv6 address by a rule that
//! counts by /64 blocks the whole /64, and the answer says so (`"prefix": 64`). Where the kind is not
//! known, IPv6 is cut to 64 bits, or to as many as follow: `{"address": "2001:db8::7/48"}`.
//!
//! # Quotas
//!
//! The account of a rule with fixed or [live](crate::LivePlan) quotas is found by itself. Where they
//! are [chosen per request](crate::Plan::from_fn), `peek` and `reset` need those that the key has, as a
//! file would give them: `"quotas": ["5/s burst 20", {"units": 1000, "period": "day", "algorithm":
//! "sliding_window"}]`. In the same order and by the same algorithms: no algorithm reads the account
//! of another.
//!
//! # Errors
//!
//! Answers are problem+json ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)), whose `detail` names
//! the field, its value and the fix. A field that there is not is an error.
//!
//! | status | why |
//! |---|---|
//! | 400 | the body is not what the route reads |
//! | 404, 405 | no such layer, rule or route; the route takes another method |
//! | 409 | the rule has no account, no switch, or a store that cannot only report |
//! | 413, 415 | a body above 16 KiB, or one that is not `application/json` |
//! | 501 | the store says that it does not do this: a governor limiter neither looks nor resets |
//! | 503 | the store failed; what stands in for it did the change in this process only |
//! | 507 | the store has no room for another block |
//!
//! # What it does not protect against
//!
//! - The guard is yours. What it lets in may read every limit and turn all of them off; the keys
//!   that are typed reach the server in clear, so serve it over TLS.
//! - A page of another site, in the browser of an operator who is logged in, can send forms and plain
//!   text, but no JSON unless your CORS policy allows it: so every change is a `POST` of
//!   `application/json`, and nothing else is read. Lay no permissive CORS layer around this router.
//! - A guard that admits by address alone, as loopback, admits pages of other sites in a browser on
//!   that address: such a page can point a name of its own at it (DNS rebinding). Ask for a secret.
//! - It speaks of one process. Accounts and blocks in Redis are of all; switches, counts and refusals
//!   are of this one.
//! - Refusals of requests without a usable key are no rule's, and are not listed; nor is what a deny
//!   list refuses.
//! - It does not limit guesses at a password by itself: the guard does, as above. It does not lie behind
//!   the layers that it watches, so that they cannot shut its operators out.

mod account;
mod body;
mod guard;
mod key;
mod kind;
mod problem;
mod routes;
mod show;
mod watched;

use std::{convert::Infallible, fmt, sync::Arc};

use axum::Router;

use self::watched::Watched;
pub use self::{guard::Guard, watched::WatchError};
use crate::{fingerprint::Secret, layer::RateLimitLayer, rule::Rules, store::Store};

/// The layers that operators watch, and the router they do it by. See the [module](self) for
/// examples.
#[must_use]
pub struct Admin {
    secret: Secret,
    layers: Vec<Watched>,
}

impl Admin {
    /// Nothing is watched yet, and fingerprints are by a random secret of this process.
    pub fn new() -> Self {
        Self { secret: Secret::random(), layers: Vec::new() }
    }

    /// Tells keys by fingerprints of this secret, so that they are the same in every process. It is
    /// that of the layers watched from now on; a layer that has a
    /// [secret of its own](RateLimitLayer::fingerprint) keeps it.
    pub fn fingerprint(self, secret: impl Into<Secret>) -> Self {
        Self { secret: secret.into(), ..self }
    }

    /// Watches a layer under a name, and gives it back: lay this one, or its clones, around your
    /// services. Refusals by what was cloned earlier are not seen. A watched layer has a
    /// [secret](RateLimitLayer::fingerprint), so that its spans and debug lines tell fingerprints too.
    ///
    /// A layer may be watched twice, by two routers or two names; refusals are then the same in
    /// both. Layers may share a store.
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
    /// Where [`try_watch`](Admin::try_watch) gives an error.
    #[track_caller]
    pub fn watch<K, S, R>(
        &mut self,
        name: &str,
        layer: RateLimitLayer<K, S, R>,
    ) -> RateLimitLayer<K, S, R>
    where
        K: Rules + Send + Sync + 'static,
        S: Store<Error = Infallible> + Send + Sync + 'static,
    {
        match self.try_watch(name, layer) {
            Ok(layer) => layer,
            Err(wrong) => panic!("{wrong}"),
        }
    }

    /// [`watch`](Admin::watch) under a name from outside.
    ///
    /// # Errors
    ///
    /// When another layer has the name, or it is not 1 to 64 of the characters `A-Z a-z 0-9 - . _ ~`.
    pub fn try_watch<K, S, R>(
        &mut self,
        name: &str,
        mut layer: RateLimitLayer<K, S, R>,
    ) -> Result<RateLimitLayer<K, S, R>, WatchError>
    where
        K: Rules + Send + Sync + 'static,
        S: Store<Error = Infallible> + Send + Sync + 'static,
    {
        let taken = self.layers.iter().any(|watched| *watched.name == *name);
        watched::check(name, taken)?;
        self.layers.push(Watched::new(name, &mut layer, self.secret));
        Ok(layer)
    }

    /// The router, for a path of your own: `Router::nest("/admin", …)`. The guard is asked for
    /// everything that reaches it, files of the page and unknown paths included.
    ///
    /// Layers that are watched later are not in it.
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
        let names = self.layers.iter().map(|watched| &watched.name);
        f.debug_struct("Admin").field("layers", &names.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
