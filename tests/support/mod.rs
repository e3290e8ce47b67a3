//! Helpers of several tests.
#![allow(dead_code, reason = "each test uses a part")]

#[cfg(feature = "admin")]
pub(crate) mod admin;
pub(crate) mod always;
pub(crate) mod any_error;
pub(crate) mod changing;
pub(crate) mod choices;
pub(crate) mod dice;
pub(crate) mod driven;
#[cfg(feature = "tonic")]
pub(crate) mod echo;
pub(crate) mod live;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod random;
pub(crate) mod regressions;
pub(crate) mod several_slots;
pub(crate) mod shaky;
pub(crate) mod slot_tables;
pub(crate) mod slow;
pub(crate) mod tables;

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Body;
use proptest::prelude::Strategy;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt};
use tower_sluice::{
    Algorithm, Decision, LocalStore, Quota, RateLimitLayer, Rule, Store,
    key::Everyone,
    store::{self, Answer, BoxFuture, Charge, Op, OwnedOp, Unsupported},
};

/// An instance of each algorithm that gives all units of a quota at once.
pub(crate) const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::fixed_window(),
    Algorithm::FixedWindow { carry_over: 2, paced: false },
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow { buckets: 4 },
    Algorithm::SlidingLog,
];

/// Returns an instance of each algorithm.
pub(crate) fn all_algorithms() -> impl Iterator<Item = Algorithm> {
    ALGORITHMS.into_iter().chain([Algorithm::FixedWindow { carry_over: 0, paced: true }])
}

/// Creates a GET without a body.
pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("a request")
}

/// Creates a GET with these headers.
pub(crate) fn with(headers: &[(&str, &str)]) -> Request<()> {
    let request = headers.iter().fold(Request::get("/"), |request, (k, v)| request.header(*k, *v));
    request.body(()).expect("a request")
}

/// Returns a name for each frame of the body, with the value of `state` once it has arrived.
pub(crate) async fn frames<B: Body + Unpin, T>(
    body: &mut B,
    state: impl Fn() -> T,
) -> Vec<(&'static str, T)> {
    let mut seen = Vec::new();
    loop {
        let name = match body.frame().await {
            Some(Ok(frame)) if frame.is_data() => "data",
            Some(Ok(_)) => "trailers",
            Some(Err(_)) => "error",
            None => "end",
        };
        seen.push((name, state()));
        if ["error", "end"].contains(&name) {
            return seen;
        }
    }
}

/// Returns the answer of `service` to `request`, once it is ready.
pub(crate) async fn ask<S, Q, P>(service: &mut S, request: Q) -> P
where
    S: Service<Q, Response = P, Error: fmt::Debug>,
{
    service.ready().await.expect("ready").call(request).await.expect("an answer")
}

/// Returns the value of a header that occurs at most once, or "" if it is absent.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    assert!(headers.get_all(name).iter().count() <= 1, "{name} occurs more than once");
    headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

/// Returns the answer of `layer` around [`Strict`] to `request`.
pub(crate) async fn answer<L>(layer: &L, request: Request<()>) -> Response<String>
where
    L: Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error: fmt::Debug>,
{
    ask(&mut layer.layer(Strict::default()), request).await
}

/// Returns the status of the answer of `layer` around [`Strict`] to `request`.
pub(crate) async fn status<L>(layer: &L, request: Request<()>) -> u16
where
    L: Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error: fmt::Debug>,
{
    answer(layer, request).await.status().as_u16()
}

/// Returns all header lines, sorted.
pub(crate) fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        .collect();
    lines.sort();
    lines
}

/// Creates a store whose clock stands still.
pub(crate) fn store() -> LocalStore {
    tower_sluice::testing::FakeClock::new().store(64)
}

/// Parses a quota.
pub(crate) fn quota(text: &str) -> Quota {
    text.parse().expect("a quota")
}

/// Periods of every magnitude up to ten years, in nanoseconds.
pub(crate) fn periods() -> impl Strategy<Value = u64> {
    const TEN_YEARS: u64 = 10 * 365 * 86_400 * 1_000_000_000;
    (6_u32..64, 0_u64..).prop_map(|(shift, n)| (n >> shift).clamp(1, TEN_YEARS))
}

/// A layer whose clock does not move.
pub(crate) type Owing = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// Creates a layer of rule `api` over `quotas`, whose accounts are `owed` units in debt.
pub(crate) fn owing(quotas: &[Quota], owed: u32) -> Owing {
    use tower_sluice::{Key, Limiter, rule::RuleName, testing::FakeClock};

    let store = FakeClock::new().store(64);
    let name = RuleName::new("api").expect("a name");
    drop(Limiter::named(name.as_str(), store.clone()).charge(Key::everyone(), quotas, owed).now());
    RateLimitLayer::rules(Rule::new(name.as_str(), Everyone, quotas), store)
}

/// A service that answers 200 and counts its calls. As Tower's contract permits, it panics if it is
/// called before it is ready. Each clone must become ready separately.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Strict {
    /// Returns a function that reads the calls to this service and all its clones.
    pub(crate) fn calls(&self) -> impl Fn() -> usize + use<> {
        let calls = self.calls.clone();
        move || calls.load(Relaxed)
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: self.calls.clone() }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        self.calls.fetch_add(1, Relaxed);
        ready(Ok(Response::new("served".into())))
    }
}

/// An embedded store whose answers wait until the test lets them through.
#[derive(Clone, Debug)]
pub(crate) struct Gated {
    store: LocalStore,
    door: Arc<Semaphore>,
}

impl Gated {
    pub(crate) fn shut(store: LocalStore) -> Self {
        Self { store, door: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn open(store: LocalStore) -> Self {
        let gated = Self::shut(store);
        gated.admit(1_000);
        gated
    }

    /// Lets a number of answers through.
    pub(crate) fn admit(&self, answers: usize) {
        self.door.add_permits(answers);
    }
}

impl Store for Gated {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &store::Context<'_>) -> Answer<Self::Future> {
        let (this, op) = (self.clone(), OwnedOp::from(op));
        let waiter = context.waiter.cloned();
        Answer::Later(Box::pin(async move {
            this.door.acquire().await.expect("never closed").forget();
            let context = store::Context::default().with_waiter(waiter.as_ref());
            Ok(op.with(|op| this.store.call(op, &context).now()))
        }))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }
}

/// A store that fails every call, at once or later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Broken {
    Now,
    Later,
}

impl Broken {
    fn fail(self) -> Answer<Ready<Result<Decision, std::io::Error>>> {
        let outage = Err(std::io::Error::other("redis://10.0.0.7 is down"));
        match self {
            Self::Now => Answer::Now(outage),
            Self::Later => Answer::Later(ready(outage)),
        }
    }
}

impl Store for Broken {
    type Error = std::io::Error;
    type Future = Ready<Result<Decision, std::io::Error>>;

    fn call(&self, _: Op<'_>, _: &store::Context<'_>) -> Answer<Self::Future> {
        self.fail()
    }
}
