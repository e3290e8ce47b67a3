//! Rate limiting for any HTTP [Tower](tower) service: limits that hold exactly, refusals that a
//! client can obey, and memory that a flood cannot grow.
//!
//! A sluice is the gate that decides how much water passes. Three lines set one:
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip(Quota::per_second(10)));
//! # }
//! ```
//!
//! A request over the quota is answered with 429 (gRPC: status 8), an honest `Retry-After` and the
//! `RateLimit` header fields; the service behind is not called. The peer's address is known only
//! to an app served with `into_make_service_with_connect_info::<SocketAddr>()`.
//!
//! # How it fits together
//!
//! ```text
//! who pays?   Rule: KeyExtractor ─┐
//! how much?   Rule: Quotas ───────┼─► charges ─► Store::take ─► Decision ─┬─ allowed ─► service ─► + headers
//! what price? Rule: Cost ─────────┘                                       └─ denied ──► Reject ──► 429, status 8
//! ```
//!
//! - A [`Quota`] is so many units per period, with a burst.
//! - A [`Key`] names an account; a [`KeyExtractor`](key) finds it in the head of a request.
//! - A [`Rule`] has a name, an extractor, quotas and a cost. Several rules are **one** decision:
//!   all are charged, or none.
//! - A [`Store`](store) holds the accounts and makes the [`Decision`]. [`LocalStore`] is embedded.
//! - A [`Reject`](reject) says a refusal; [`Headers`] tell what is left.
//!
//! A configured case: an address and an API key are limited together, under two quotas for the key,
//! and a report costs twenty units.
//!
//! ```
//! use tower_sluice::{
//!     Headers, LocalStore, Missing, Quota, RateLimitLayer, Rule, Units,
//!     key::{Header, PeerIp},
//! };
//!
//! let price = Units::from_fn(|parts| if parts.uri.path() == "/report" { 20 } else { 1 });
//! let by_key = [Quota::per_second(5).burst(20), Quota::per_day(10_000)];
//!
//! let layer = RateLimitLayer::rules(
//!     (
//!         Rule::new("ip", PeerIp::new(), Quota::per_second(20)),
//!         Rule::new("user", Header::new("x-api-key"), by_key).cost(price).missing(Missing::Skip),
//!     ),
//!     LocalStore::with_capacity(500_000),
//! )
//! .headers(Headers::Draft11)
//! .expose_decision()
//! .retry_jitter(10);
//! ```
//!
//! Outside HTTP the same decisions are made by a [`Limiter`].
//!
//! # Guide
//!
//! The [`guide`] answers questions: [which algorithm, which numbers and where](guide::choosing),
//! [what each algorithm does](guide::algorithms), [who pays](guide::keys), [by which plan](guide::plans), [with Redis](guide::redis),
//! [while it is down](guide::outages), [tested how](guide::testing),
//! [instead of what is published for Redis](guide::patterns), and
//! [coming from another limiter](guide::migrating).
//!
//! # Beyond refusing
//!
//! | to | see |
//! |---|---|
//! | count by windows, logs or a token bucket | [`Algorithm`] |
//! | choose or change quotas while the server runs | [`Plan`], [`LivePlan`], [`by_route`] |
//! | read limits from a file, and again when it changes | [`RuleSettings`](Rule) (feature `serde`) |
//! | charge what a request really cost | [`RateLimitLayer::settle`], [`Reservation`] |
//! | let requests wait for their place | [`Rule::max_wait`], [`Limiter::until_ready`] |
//! | admit more, marked or while there is room | [`Quota::soft`], [`Elastic`] |
//! | leave units for what matters more | [`Rule::headroom`] |
//! | try a limit out, or turn it off | [`Rule::report_only`], [`Switch`] |
//! | try rules on a log, and have it tell the smallest burst | [`simulate`] |
//! | be told of quotas and knobs that are probably a mistake | [`RateLimitLayer::lints`] |
//! | let in or shut out | [`AccessList`], [`Rule::mode`], [`Limiter::block`] |
//!
//! # What it does not protect against
//!
//! - Each process counts for itself unless accounts are shared: behind a balancer with *n* processes,
//!   *n* limits. [`RedisStore`](store) shares them.
//! - A key that a client may choose is no key; see [`key`] for what each extractor trusts.
//! - A limit bounds requests, not connections or bytes, and a refused request has already been
//!   read up to its head.
//!
//! # What operators see
//!
//! With the feature `metrics`, through the [`metrics`](https://docs.rs/metrics) facade; install a
//! recorder before the first request. Labels come from closed sets.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `ratelimit.decisions` | counter, each rule of a request once | `policy` (the rule), `result`: `allowed`, `limited`, `shadow_limited`, `failed_open`, `failed_closed`, `fallback_allowed`, `fallback_limited` |
//! | `ratelimit.near_limit` | counter, of requests that pass from 80 % of a limit on | `policy` |
//! | `ratelimit.unidentified` | counter, of requests refused before a store was asked | |
//! | `ratelimit.decision.duration` | histogram, seconds until the store has answered | `store`: a [`Source`], `deny_cache` for a refusal that was told without asking, `leased` for what was admitted so |
//! | `ratelimit.store.errors` | counter | `kind`: `timeout`, or of Redis one of [`RedisErrorKind`](store) |
//! | `ratelimit.store.circuit` | gauge: 0 closed, 1 probing, 2 open | |
//! | `ratelimit.overflows` | counter, of decisions over accounts that newcomers share for want of room | |
//! | `ratelimit.blocks.denied` | counter, of keys that were not blocked because the table of blocks was full | |
//! | `ratelimit.keys`, `ratelimit.slots` | gauges, as of the last [`LocalStore::stats`] | |
//!
//! Of a refused request the rules that refused it are counted. A decision that names no rule, as by
//! a store that failed open, counts for every rule of the layer.
//!
//! Descriptions and units are registered with a layer's first decision.
//!
//! With the feature `tracing`: of the current span the fields `ratelimit.result`, `.policy`,
//! `.store`, `.remaining` and `.retry_after_ms`, where it declares `ratelimit.result`; a line at
//! debug for each refusal; at warn what a store or a breaker turned to, once, and what is probably a
//! mistake in a layer ([`lint`]). The key is nowhere; a [`Fingerprint`] of it is in the field
//! `ratelimit.key` of both where a layer is [asked to](RateLimitLayer::fingerprint).
//!
//! Why a request was refused, or would be, with the arithmetic of every quota: [`explain`].
//!
//! # Features
//!
//! Features only add.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `axum` | yes | `ConnectInfo` as peer, [`Route`](key), axum extractors as identities, text in axum bodies |
//! | `governor` | yes | [`GovernorStore`](store): any keyed governor limiter as a store |
//! | `tracing` | yes | log lines |
//! | `redis` | no | [`RedisStore`](store): accounts in Redis, Valkey, Redis Cluster or behind Sentinel |
//! | `redis-tls` | no | `rediss://` addresses |
//! | `tonic` | no | tonic's `TcpConnectInfo` as peer |
//! | `metrics` | no | counters, histograms and gauges |
//! | `serde` | no | quotas, plans, routes and [`RuleSettings`](Rule) from TOML, JSON and other files |
//! | `admin` | no | [`admin`]: a router for operators: rules, accounts, refusals, switches, health; behind a guard of your own |
//! | `simulate` | no | [`simulate`]: rules played over a trace, and the smallest burst that limits nobody in it; `testing::FakeClock` |
//! | `testing` | no | a clock that is driven by hand, a store without limits, a conformance kit for stores |

#![cfg_attr(not(feature = "axum"), doc = "", doc = "[`by_route`]: crate::RateLimitLayer")]
#![cfg_attr(not(feature = "admin"), doc = "", doc = "[`admin`]: crate")]
#![cfg_attr(not(feature = "simulate"), doc = "", doc = "[`simulate`]: crate")]
#![cfg_attr(docsrs, feature(doc_cfg))]

// From the ground up; imports point down (`tests/floors.rs`).
#[cfg(feature = "serde")]
mod fields;
mod fingerprint;
mod name;

mod decision;
mod quota;

mod observe;

mod algorithm;
pub mod key;
pub mod store;

mod deadline;
mod rule;

mod access;
pub mod explain;
mod headers;
pub mod identify;
mod limiter;
mod load;
pub mod reject;
mod settle;
mod waiters;

pub mod lint;
mod settings;

mod pass;

mod gate;

mod future;

mod service;

mod layer;
#[cfg(feature = "simulate")]
pub mod simulate;
#[cfg(any(feature = "simulate", feature = "testing"))]
pub mod testing;

#[cfg(feature = "admin")]
pub mod admin;

// Documentation alone; its examples run where all is there that one of them needs.
#[cfg(any(
    all(doc, not(doctest)),
    all(doctest, feature = "axum", feature = "governor", feature = "redis", feature = "testing")
))]
pub mod guide;

pub use crate::{
    access::AccessList,
    deadline::Deadline,
    decision::{Decision, Outcome, Source},
    explain::Explanation,
    fingerprint::{Fingerprint, Secret, SecretError},
    future::ResponseFuture,
    headers::{EXPOSED_HEADERS, Headers},
    identify::IdentifyLayer,
    key::{ClientIp, Key, KeyError, KeyExtractor, NetworkError, PeerIp, key_fn},
    layer::RateLimitLayer,
    limiter::{Limiter, NotReady},
    lint::{Finding, Lint},
    load::{Counters, Counts, Elastic, Switch},
    name::{NameError, RuleName},
    quota::{Algorithm, Quota, QuotaError},
    reject::{Reject, Rejection, TooManyRequests, reject_fn},
    rule::{Aside, LivePlan, Missing, Mode, Plan, Quotas, Rule, RuleError, Rules, Shape, Units},
    service::RateLimit,
    settle::{Reservation, Settle, UnknownRule},
    store::{Answer, Charge, LocalStore, Store},
};

#[cfg(all(feature = "axum", feature = "serde"))]
pub use crate::rule::RouteSettings;
#[cfg(feature = "serde")]
pub use crate::rule::RuleSettings;
#[cfg(feature = "redis")]
pub use crate::store::RedisStore;
#[cfg(feature = "axum")]
pub use crate::{
    rule::{ByRoute, RouteError, by_route, try_by_route},
    settle::NoReservation,
};

/// The README's examples run with the documentation tests.
#[cfg(all(doctest, feature = "axum", feature = "governor", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// And those of the guide to safe limits.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../SECURITY.md")]
struct Security;
