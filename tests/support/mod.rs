//! What several tests share: requests, a service that watches how it is called, and stores that
//! make their callers wait or fail.
#![allow(dead_code, reason = "each test uses a part")]

#[cfg(feature = "testing")]
pub(crate) mod driven;
#[cfg(feature = "tonic")]
pub(crate) mod echo;
#[cfg(feature = "testing")]
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod regressions;
pub(crate) mod shaky;

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Request, Response};
use proptest::prelude::Strategy;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt};
use tower_sluice::{
    Answer, Charge, Decision, LocalStore, Quota, RateLimitLayer, Rule, Store,
    key::Everyone,
    store::{BoxFuture, OwnedCharges},
};

/// A GET without a body.
pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("a request")
}

/// A GET with these headers.
pub(crate) fn with(headers: &[(&str, &str)]) -> Request<()> {
    let request = headers.iter().fold(Request::get("/"), |request, (k, v)| request.header(*k, *v));
    request.body(()).expect("a request")
}

/// What `service` answers to `request`, once it is ready.
pub(crate) async fn ask<S, Q, P>(service: &mut S, request: Q) -> P
where
    S: Service<Q, Response = P, Error: fmt::Debug>,
{
    service.ready().await.expect("ready").call(request).await.expect("an answer")
}

/// The value of a header that stands there once, or "" where it is absent.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    assert!(headers.get_all(name).iter().count() <= 1, "{name} stands there more than once");
    headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

/// What a service of `layer` around [`Strict`] answers to `request`.
pub(crate) async fn answer<L>(layer: &L, request: Request<()>) -> Response<String>
where
    L: Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error: fmt::Debug>,
{
    ask(&mut layer.layer(Strict::default()), request).await
}

/// All header lines, sorted.
pub(crate) fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        .collect();
    lines.sort();
    lines
}

/// The quota of this text.
pub(crate) fn quota(text: &str) -> Quota {
    text.parse().expect("a quota")
}

/// Periods of every magnitude up to ten years, in nanoseconds.
pub(crate) fn periods() -> impl Strategy<Value = u64> {
    const TEN_YEARS: u64 = 10 * 365 * 86_400 * 1_000_000_000;
    (6_u32..64, 0_u64..).prop_map(|(shift, n)| (n >> shift).clamp(1, TEN_YEARS))
}

/// A layer whose clock stands still.
pub(crate) type Owing = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// A layer of rule `api` over `quotas`, whose accounts owe `owed` units.
#[cfg(feature = "testing")]
pub(crate) fn owing(quotas: &[Quota], owed: i64) -> Owing {
    use tower_sluice::{Key, Limiter, RuleName, testing::FakeClock};

    let store = FakeClock::new().store(64);
    let name = RuleName::new("api").expect("a name");
    Limiter::named(name, store.clone()).settle(Key::everyone(), quotas, -owed).now();
    RateLimitLayer::rules(Rule::named(name, Everyone, quotas), store)
}

/// Answers 200 and counts its calls; panics, as Tower's contract permits, when it is called
/// without having said that it is ready. A clone has to be asked anew.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Strict {
    /// The calls to it and all its clones, to be read later.
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

/// An embedded store behind a door: every answer comes later, when the test lets it through.
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

    /// Lets so many answers through.
    pub(crate) fn admit(&self, answers: usize) {
        self.door.add_permits(answers);
    }

    fn later(
        &self,
        charges: &[Charge<'_>],
        ask: impl FnOnce(&LocalStore, &[Charge<'_>]) -> Decision + Send + 'static,
    ) -> Answer<BoxFuture<Result<Decision, Infallible>>> {
        let (this, charges) = (self.clone(), OwnedCharges::from(charges));
        Answer::Later(Box::pin(async move {
            this.door.acquire().await.expect("never closed").forget();
            Ok(charges.with(|charges| ask(&this.store, charges)))
        }))
    }
}

impl Store for Gated {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.later(charges, |store, charges| store.take(charges).now())
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.later(&[*charge], move |store, charges| store.settle(&charges[0], units).now())
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.later(&[*charge], |store, charges| store.reset(&charges[0]).now())
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.later(&[*charge], move |store, charges| store.block(&charges[0], time).now())
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.later(&[*charge], |store, charges| store.unblock(&charges[0]).now())
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.store.undo(charges, taken, units);
    }
}

/// A store that fails whatever it is asked, at once or later.
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

    fn take(&self, _: &[Charge<'_>]) -> Answer<Self::Future> {
        self.fail()
    }

    fn settle(&self, _: &Charge<'_>, _: i64) -> Answer<Self::Future> {
        self.fail()
    }

    fn reset(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        self.fail()
    }

    fn block(&self, _: &Charge<'_>, _: Duration) -> Answer<Self::Future> {
        self.fail()
    }

    fn unblock(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        self.fail()
    }
}
