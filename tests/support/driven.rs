//! Driven time, and observation of a store's calls and of requests that are held open.

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio_test::{assert_ready_ok, task, task::Spawn};
use tower::{Service, ServiceExt, service_fn};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, Store,
    store::{Answer, BoxFuture, Charge, Context, Op, Unsupported},
    testing::FakeClock,
};

/// The clock of the store and the paused clock of the runtime, which move together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Time(pub(crate) FakeClock);

impl Time {
    pub(crate) fn store(&self) -> LocalStore {
        self.0.store(64)
    }

    pub(crate) async fn pass(&self, time: Duration) {
        self.0.advance(time);
        tokio::time::advance(time).await;
    }
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A limiter over the accounts of the rule `name`.
pub(crate) fn limiter<S: Store>(name: &str, store: S) -> Limiter<S> {
    Limiter::named(name, store)
}

/// Returns the units left for `key` under rule `name`.
pub(crate) fn left(store: &LocalStore, name: &str, key: impl Into<Key>, quota: &Quota) -> u32 {
    let look = limiter(name, store.clone()).peek(key, quota).now();
    look.remaining().expect("one quota")
}

/// The immediate decision of a wrapped store.
pub(crate) trait AtOnce {
    fn now(self) -> Decision;
}

impl<F: Future<Output: Decided>> AtOnce for Answer<F> {
    fn now(self) -> Decision {
        match self {
            Self::Now(output) => output.decision(),
            Self::Later(_) => panic!("it answers later"),
        }
    }
}

/// The output of a store that cannot fail, of a limiter on it or of its own.
pub(crate) trait Decided {
    fn decision(self) -> Decision;
}

impl Decided for Decision {
    fn decision(self) -> Decision {
        self
    }
}

impl Decided for Result<Decision, Infallible> {
    fn decision(self) -> Decision {
        self.expect("infallible")
    }
}

/// A call in flight that has not been polled yet.
pub(crate) async fn begin<S>(service: &mut S, request: Request<()>) -> Spawn<S::Future>
where
    S: Service<Request<()>, Error: fmt::Debug>,
{
    task::spawn(service.ready().await.expect("ready").call(request))
}

/// The status of a call that is ready.
pub(crate) fn status<F>(asking: &mut Spawn<F>) -> StatusCode
where
    F: Future<Output = Result<Response<String>, Infallible>>,
{
    assert_ready_ok!(asking.poll()).status()
}

/// A store that counts its calls. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Counting<S> {
    store: S,
    counts: Arc<[AtomicUsize; 3]>,
}

impl<S> Counting<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, counts: Arc::default() }
    }

    /// The inner store, for calls that do not count.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    pub(crate) fn takes(&self) -> usize {
        self.counts[0].load(SeqCst)
    }

    pub(crate) fn settles(&self) -> usize {
        self.counts[1].load(SeqCst)
    }

    pub(crate) fn given_back(&self) -> usize {
        self.counts[2].load(SeqCst)
    }

    fn count(&self, what: usize) -> &S {
        self.counts[what].fetch_add(1, SeqCst);
        &self.store
    }
}

impl<S: Store> Store for Counting<S> {
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<S::Future> {
        match op {
            Op::Take(_) => self.count(0).call(op, context),
            Op::Adjust(..) => self.count(1).call(op, context),
            _ => self.store.call(op, context),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.count(2).undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }
}

/// Answers with the status that `handle` returns for a request.
pub(crate) fn handler<F>(
    handle: F,
) -> impl Service<
    Request<()>,
    Response = Response<String>,
    Error = Infallible,
    Future = Ready<Result<Response<String>, Infallible>>,
> + Clone
where
    F: Fn(Request<()>) -> u16 + Clone,
{
    service_fn(move |request| {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::from_u16(handle(request)).expect("a status");
        ready(Ok(response))
    })
}

/// Answers each request once the test releases it.
pub(crate) fn held(
    door: &Arc<Semaphore>,
) -> impl Service<
    Request<()>,
    Response = Response<String>,
    Error = Infallible,
    Future = BoxFuture<Result<Response<String>, Infallible>>,
> + Clone
+ use<> {
    let door = door.clone();
    service_fn(move |_| {
        let door = door.clone();
        let answer = async move {
            door.acquire().await.expect("never closed").forget();
            Ok(Response::new(String::new()))
        };
        Box::pin(answer) as BoxFuture<_>
    })
}
