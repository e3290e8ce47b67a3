//! Rate limiting for any HTTP [Tower](tower) service.
//!
//! Limits are exact, denied clients learn when to retry, and a flood of requests does not increase
//! memory.
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::get}; // axum 0.8
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip(Quota::per_second(10)));
//! # }
//! ```
//!
//! A request over the quota receives a 429 (gRPC: status 8) with `Retry-After` and the `RateLimit`
//! header fields. The inner service is not called. To provide the peer address, use axum 0.8, and serve
//! the app with `into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # Overview
//!
//! ```text
//! Rule: KeyExtractor ┐
//! Rule: Quotas ──────┼─► charges ─► Store ─► Decision ┬─ allowed ─► service
//! Rule: Cost ────────┘                                └─ denied ──► Reject
//! ```
//!
//! - A [`Quota`] is a number of units per period, with a burst, or a number of requests that run at
//!   the same time.
//! - A [`Key`] names an account. A [`KeyExtractor`](key) reads the key from the head of a request.
//! - A [`Rule`] has a name, an extractor, quotas and a cost. A request is charged to all rules of a
//!   layer, or to none.
//! - A [`Store`](store) holds the accounts and makes the [`Decision`]. [`LocalStore`] is embedded.
//! - A [`Reject`](reject) creates the response to a denied request.
//! - [`Headers`] report the units left to clients.
//!
//! The [glossary](guide::glossary) defines all terms.
//!
//! The next example limits requests by address and by API key. Each API key has two quotas, and a
//! report costs twenty units:
//!
//! ```
//! use tower_sluice::{
//!     Cost, Headers, LocalStore, Quota, RateLimitLayer, Rule,
//!     key::{HeaderKey, PeerIp},
//!     middleware::RetryAfter,
//!     rule::OnMissingKey,
//! };
//!
//! let cost = Cost::from_fn(|head| if head.path() == "/report" { 20 } else { 1 });
//! let by_key = [Quota::per_second(5).with_burst(20), Quota::per_day(10_000)];
//!
//! let layer = RateLimitLayer::rules(
//!     (
//!         Rule::new("ip", PeerIp::new(), Quota::per_second(20)),
//!         Rule::new("user", HeaderKey::new("x-api-key"), by_key)
//!             .cost(cost)
//!             .on_missing_key(OnMissingKey::Skip),
//!     ),
//!     LocalStore::with_capacity(500_000),
//! )
//! .headers(Headers::RateLimit)
//! .expose_decision()
//! .retry_after(RetryAfter::Jitter(10));
//! ```
//!
//! A [`Limiter`] makes the same decisions outside HTTP.
//!
//! # Guide
//!
//! | chapter | topic |
//! |---|---|
//! | [choosing](guide::choosing) | algorithm, place of the layer, exemptions, other tools |
//! | [numbers](guide::numbers) | rates, bursts and costs by kind of route |
//! | [algorithms](guide::algorithms) | pictures of each algorithm |
//! | [keys](guide::keys) | choosing keys, and attacks on each |
//! | [proxies](guide::proxies) | client addresses behind nginx, Kubernetes, AWS, Cloudflare and others |
//! | [slots](guide::slots) | requests that run at the same time |
//! | [plans](guide::plans) | quotas per user, changes at run time, costs |
//! | [redis](guide::redis) | accounts shared by processes |
//! | [beyond](guide::beyond) | regions, PostgreSQL, Envoy, servers that look like Redis |
//! | [outages](guide::outages) | decisions while the store is down |
//! | [production](guide::production) | a server to copy, metrics, alerts, a dashboard |
//! | [login](guide::login) | failures only, by address and by account |
//! | [recipes](guide::recipes) | LLM tokens, sockets, gRPC, outgoing calls, plans from a database |
//! | [troubleshooting](guide::troubleshooting) | symptoms, and every warning and error |
//! | [testing](guide::testing) | tests without sleeping |
//! | [migrating](guide::migrating) | migration from other limiters |
//! | [security](guide::security) | attacks, and limits by kind of route |
//! | [features](guide::features) | other limiters, measured figures |
//! | [glossary](guide::glossary) | terms of this crate and of other libraries |
//!
//! # Beyond allow and deny
//!
//! | purpose | see |
//! |---|---|
//! | count by windows, logs or a token bucket | [`Algorithm`] |
//! | choose or change quotas at run time | [`Plan`], [`LivePlan`], [`by_route`] |
//! | load limits from a file | [`RuleSettings`] (feature `serde`) |
//! | charge the actual cost of a request | [`RateLimitLayer::adjust`], [`ChargeHandle`](middleware::ChargeHandle) |
//! | limit clients without a key by their address | [`Rule::if_no_key`] |
//! | limit the requests that run at the same time | [`Quota::concurrent`] |
//! | queue requests | [`Rule::max_wait`], [`Limiter::until_ready`] |
//! | allow requests beyond a quota | [`Quota::with_soft`], [`Overcommit`](middleware::Overcommit) |
//! | leave units for requests with priority | [`Rule::headroom`] |
//! | try a limit, or turn it off | [`Rule::report_only`], [`Toggle`](middleware::Toggle) |
//! | allow or deny requests without a quota | [`AccessList`], [`Rule::applies`], [`Limiter::block`] |
//!
//! # Limitations
//!
//! - Each process counts separately, unless processes share a store such as [`RedisStore`].
//!   Without a shared store, *n* processes allow *n* times the limit.
//! - A key that clients choose freely does not limit them. See [`key`] for the trust of each
//!   extractor.
//! - Limits apply to requests, not to connections or bytes. The server reads the head of each
//!   request first.
//!
//! # What operators see
//!
//! The feature `metrics` uses the [`metrics`](https://docs.rs/metrics) facade. Install a recorder
//! before the first request.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `ratelimit.decisions` | counter | `policy` (the rule), `result` |
//! | `ratelimit.near_limit` | counter: requests allowed from 80 % of a limit on | `policy` |
//! | `ratelimit.unidentified` | counter: requests rejected without a usable key, or by a deny list | |
//! | `ratelimit.decision.duration` | histogram: seconds until the store answered | `store` |
//! | `ratelimit.attempts` | histogram: store calls of a request that may be charged in one of several ways, as with [alternatives](Rule::or) | |
//! | `ratelimit.store.errors` | counter | `kind` |
//! | `ratelimit.store.circuit` | gauge: 0 closed, 1 probing, 2 open | on a cluster `server` |
//! | `ratelimit.overflows` | counter: decisions on keys without room, because the store is full | |
//! | `ratelimit.blocks.denied` | counter: keys not blocked because the block table was full | |
//! | `ratelimit.keys`, `ratelimit.capacity` | gauges, as of the last [`LocalStore::stats`] | |
//! | `ratelimit.limit` | gauge: units that a key can use at once, or slots that it can hold | `policy`, `quota` |
//! | `ratelimit.utilization` | histogram: share of its quota that the key has used | `policy` |
//! | `ratelimit.active_slots` | gauge: slots that requests of this process hold | `policy` |
//! | `ratelimit.slot.duration` | histogram: seconds for which a request held its slots | `policy` |
//! | `ratelimit.queued_requests` | gauge: requests that wait for a rate or a slot | `policy` |
//! | `ratelimit.time_in_queue` | histogram: seconds until a wait ended, with or without success | `policy` |
//!
//! - `result` is one of `allowed`, `limited`, `shadow_limited`, `failed_open`, `failed_closed`,
//!   `fallback_allowed`, `fallback_limited` and `busy`.
//! - `store` is the [`Source`](decision::Source) of the decision, such as `redis` or `deny_cache`.
//! - `kind` is `timeout`, or for Redis a [`RedisErrorKind`].
//! - `quota` is the name of the quota in header fields. The limit is that of the latest decision, so
//!   it follows a [`LivePlan`] and an [adaptive](rule::Adaptive) limit. It is absent
//!   for plans that are chosen for each request, and 0 after a quota was removed. Rules of several layers need different names.
//! - `ratelimit.utilization` has one sample per rule and decision: the part of the limit that the
//!   request's key has used afterwards, from 0 to 1, under the rule's fullest quota. For slots, it is
//!   held / limit. It describes the keys of the requests, not all keys of the store.
//! - `server` is the address of a cluster server. A server appears after its first failure.
//!
//! `ratelimit.decisions` counts an allowed request under each rule that charged it, and a denied
//! request under the rules that denied it. With `failed_open`, it counts a request under every rule
//! of the layer, and with `failed_closed` under one.
//!
//! The feature `tracing` provides the following:
//!
//! - The fields `ratelimit.result`, `.policy`, `.store`, `.remaining` and `.retry_after_ms` in the
//!   current span, if that span declares `ratelimit.result`.
//! - A log line at level debug for each denial.
//! - A log line at level warn when a store begins to fail, when a breaker opens, and for a probable
//!   mistake, with the field `lint`: see [the list](guide::troubleshooting#warnings-in-the-log).
//!
//! Keys are never logged, with one exception: if nearly all of the first 1 000 requests have one client
//! address, a warning names it, because it is probably that of a proxy. A layer with [`fingerprint`](RateLimitLayer::fingerprint) adds a
//! [`Fingerprint`](fingerprint::Fingerprint) of the key as the field `ratelimit.key` to spans and
//! debug lines.
//!
//! [`explain`] explains a decision in words, with the arithmetic of every quota.
//!
//! # Features
//!
//! Features are additive.
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `axum` | yes | `ConnectInfo` as peer, [`RouteKey`](key::RouteKey), axum extractors as identities, text in axum bodies |
//! | `governor` | yes | [`GovernorStore`](store::GovernorStore): any keyed governor limiter as a store |
//! | `tracing` | yes | log lines and span fields |
//! | `redis` | no | [`RedisStore`]: accounts in Redis, Valkey, Redis Cluster or behind Sentinel |
//! | `redis-tls` | no | `rediss://` addresses |
//! | `tonic` | no | tonic's `TcpConnectInfo` as peer |
//! | `metrics` | no | counters, histograms and gauges |
//! | `serde` | no | quotas, plans, routes, penalties and [`RuleSettings`] from TOML, JSON and other formats |
//! | `calendar` | no | quotas per calendar month, from the day of a customer |
//! | `admin` | no | [`admin`]: a router for operators, behind a guard of your own |
//! | `testing` | no | a manual clock, a conformance kit for stores |

#![cfg_attr(
    not(feature = "axum"),
    doc = "",
    doc = "[`by_route`]: crate::RateLimitLayer"
)]
#![cfg_attr(not(feature = "admin"), doc = "", doc = "[`admin`]: crate")]
#![cfg_attr(
    feature = "redis",
    doc = "",
    doc = "[`RedisErrorKind`]: store::RedisErrorKind"
)]
#![cfg_attr(not(feature = "redis"), doc = "", doc = "[`RedisErrorKind`]: store")]
#![cfg_attr(feature = "redis", doc = "", doc = "[`RedisStore`]: store::RedisStore")]
#![cfg_attr(not(feature = "redis"), doc = "", doc = "[`RedisStore`]: store")]
#![cfg_attr(
    feature = "serde",
    doc = "",
    doc = "[`RuleSettings`]: rule::RuleSettings"
)]
#![cfg_attr(not(feature = "serde"), doc = "", doc = "[`RuleSettings`]: rule")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Ordered from the lowest to the highest. A module imports only lower ones
// (`tests/repository/floors.rs`).
mod advice;
#[cfg(feature = "serde")]
mod config;
pub mod fingerprint;
mod head;
mod log;
mod name;
mod toggle;

pub mod decision;
pub mod quota;

mod observe;

mod algorithm;
pub mod key;
pub mod store;

pub mod rule;

pub mod explain;
pub mod headers;

pub mod limiter;
pub mod reject;

pub mod middleware;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "admin")]
pub mod admin;

// Only documentation. Its examples need many dependencies: `tests/guide.rs` runs them.
#[cfg(all(doc, not(doctest)))]
pub mod guide;

#[cfg(feature = "axum")]
pub use crate::rule::by_route;
#[cfg(feature = "redis")]
pub use crate::store::RedisStore;
pub use crate::{
    decision::Decision,
    head::RequestHead,
    headers::Headers,
    key::{ClientIp, Key, KeyExtractor, PeerIp, key_fn},
    limiter::Limiter,
    middleware::{AccessList, RateLimit, RateLimitLayer},
    quota::{Algorithm, Quota},
    reject::{Reject, TooManyRequests},
    rule::{Cost, LivePlan, Plan, Rule},
    store::{LocalStore, Store, StoreExt},
};

/// Returns a configuration that keeps failing cases in `tests/regressions`. Kept cases run first from
/// then on: commit them with the fix.
#[cfg(test)]
fn keeping_regressions() -> proptest::test_runner::Config {
    use proptest::test_runner::{Config, FileFailurePersistence};
    let mut config = Config::default();
    // The variable `PROPTEST_DISABLE_FAILURE_PERSISTENCE` leaves no place.
    if config.failure_persistence.is_some() {
        let place = FileFailurePersistence::SourceParallel("tests/regressions");
        config.failure_persistence = Some(Box::new(place));
    }
    config
}
