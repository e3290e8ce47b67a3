//! An application process: the real layer around the real client, with random wrappers.

use std::{
    convert::Infallible,
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Poll, Waker},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, aio::MultiplexedConnection};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    Cost, Decision, LocalStore, Quota, RateLimitLayer, RedisStore, Rule, Store, StoreExt,
    key::HeaderKey,
    store::{Answer, Charge, DynStore, Op, Unsupported},
    testing::FakeClock,
};

use super::{network::Wire, server::Server};
use crate::random::Random;

/// The policy of a process for failures of the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnFailure {
    Open,
    Closed,
    Fallback,
}

/// The wrappers of a process.
#[derive(Clone, Copy, Debug)]
pub struct Wrappers {
    pub budget: Duration,
    pub breaker: bool,
    pub deny_cache: bool,
    /// The percentage of a limit that the process may lease.
    pub leases: Option<u32>,
    pub coalesce: bool,
    pub resp3: bool,
    pub on_failure: OnFailure,
}

impl Wrappers {
    pub fn random(random: &mut Random, leases: bool) -> Self {
        Self {
            budget: Duration::from_millis(*random.pick(&[50, 100, 100, 250])),
            breaker: random.percent(75),
            deny_cache: random.percent(40),
            leases: (leases && random.percent(70)).then(|| *random.pick(&[1, 5, 12])),
            coalesce: random.percent(75),
            resp3: random.percent(50),
            on_failure: *random.pick(&[
                OnFailure::Fallback,
                OnFailure::Fallback,
                OnFailure::Open,
                OnFailure::Closed,
            ]),
        }
    }
}

impl fmt::Display for Wrappers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeout {:?}", self.budget)?;
        for (is_on, name) in [
            (self.breaker, "breaker"),
            (self.deny_cache, "deny cache"),
            (!self.coalesce, "no batches"),
            (self.resp3, "RESP3"),
        ] {
            if is_on {
                write!(f, ", {name}")?;
            }
        }
        if let Some(percent) = self.leases {
            write!(f, ", leases {percent} %")?;
        }
        write!(f, ", on failure {:?}", self.on_failure)
    }
}

/// The embedded store on the virtual clock.
pub struct VirtualLocal {
    store: LocalStore,
    clock: FakeClock,
    start: tokio::time::Instant,
}

impl VirtualLocal {
    pub fn new() -> Self {
        let clock = FakeClock::new();
        // Enough room that no key shares an account.
        Self { store: clock.store(4_096), clock, start: tokio::time::Instant::now() }
    }

    fn set_clock(&self) {
        self.clock.advance(self.start.elapsed().saturating_sub(self.clock.now()));
    }
}

impl Store for VirtualLocal {
    type Error = Infallible;
    type Future = <LocalStore as Store>::Future;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        self.set_clock();
        self.store.call(op)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.set_clock();
        self.store.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.supports(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.register(charges)
    }
}

type Service = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

/// A process that runs.
pub struct Process {
    service: Service,
    /// The store of the layer, for operations outside of requests.
    pub store: Wrapped,
    dead: Arc<AtomicBool>,
    paused: Mutex<(bool, Vec<Waker>)>,
}

impl Process {
    pub fn new(
        wrappers: &Wrappers,
        processes: u32,
        rules: &[Vec<Quota>; 2],
        wire: &Arc<Wire>,
        server: &Arc<Server>,
    ) -> Self {
        let dead = Arc::new(AtomicBool::new(false));
        let store = redis_store(wrappers.resp3, wire, server, &dead);
        let store = wrap(store.coalesce(wrappers.coalesce), wrappers, processes);
        let cost = || {
            Cost::from_fn(|head| {
                let cost = head.headers.get("x-cost").and_then(|cost| cost.to_str().ok());
                cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
            })
        };
        let [first, second] = ["one", "two"].map(|name| (name, HeaderKey::new(header(name))));
        let rules = (
            Rule::new(first.0, first.1, rules[0].clone()).cost(cost()),
            Rule::new(second.0, second.1, rules[1].clone()).cost(cost()),
        );
        let layer = RateLimitLayer::rules(rules, store.clone()).expose_decision();
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        let service = BoxCloneSyncService::new(layer.layer(inner));
        Self { service, store, dead, paused: Mutex::default() }
    }

    /// Sends a request. Returns its decision, or `None` if the process dies before.
    pub async fn call(&self, keys: [usize; 2], cost: u32) -> Option<Decision> {
        let request = Request::builder().uri("/").header("x-cost", cost);
        let request = request.header(header("one"), keys[0].to_string());
        let request = request.header(header("two"), keys[1].to_string());
        let request = request.body(()).expect("a request");
        let Ok(response) = self.run(self.service.clone().oneshot(request)).await?;
        let decision = response.extensions().get::<Decision>().expect("an exposed decision");
        let rejected = response.status() == StatusCode::TOO_MANY_REQUESTS
            || response.status() == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(rejected, !decision.is_allowed(), "{} {decision:?}", response.status());
        Some(decision.clone())
    }

    /// Runs a future of the process, which stops while the process is paused. Returns `None` if the
    /// process dies before.
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let running = poll_fn(|cx| {
            let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
            if self.dead.load(Relaxed) {
                return Poll::Ready(None);
            } else if paused.0 {
                paused.1.push(cx.waker().clone());
                return Poll::Pending;
            }
            drop(paused);
            future.as_mut().poll(cx).map(Some)
        });
        running.await
    }

    /// Stops or continues all requests of the process.
    pub fn pause(&self, is_paused: bool) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.0 = is_paused;
        paused.1.drain(..).for_each(Waker::wake);
    }

    pub fn kill(&self) {
        self.dead.store(true, Relaxed);
        self.pause(false);
    }
}

fn header(rule: &str) -> &'static str {
    if rule == "one" { "x-one" } else { "x-two" }
}

fn redis_store(
    resp3: bool,
    wire: &Arc<Wire>,
    server: &Arc<Server>,
    dead: &Arc<AtomicBool>,
) -> RedisStore {
    let (wire, server, dead) = (wire.clone(), server.clone(), dead.clone());
    RedisStore::from_connector(move || {
        let (wire, server, dead) = (wire.clone(), server.clone(), dead.clone());
        async move {
            if dead.load(Relaxed) {
                return Err(std::io::Error::other("the process is dead").into());
            }
            let stream = wire.connect(&server).await?;
            let info = RedisConnectionInfo::default();
            let protocol = redis::ProtocolVersion::RESP3;
            let info = if resp3 { info.set_protocol(protocol) } else { info };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(Duration::from_secs(1)))
                .set_response_timeout(Some(Duration::from_secs(1)));
            let opened = MultiplexedConnection::new_with_config(&info, stream, config).await?;
            tokio::spawn(opened.1);
            Ok(opened.0)
        }
    })
}

pub type Wrapped = Arc<DynStore<Infallible>>;

/// Applies the wrappers in the documented order.
fn wrap(store: RedisStore, wrappers: &Wrappers, processes: u32) -> Wrapped {
    let store = store.timeout(wrappers.budget);
    if wrappers.breaker {
        cache(store.breaker(), wrappers, processes)
    } else {
        cache(store, wrappers, processes)
    }
}

fn cache<S>(store: S, wrappers: &Wrappers, processes: u32) -> Wrapped
where
    S: Store<Error: Into<tower_sluice::store::BoxError>, Future: Send> + Send + Sync + 'static,
{
    if wrappers.deny_cache {
        lease(store.deny_cache(), wrappers, processes)
    } else {
        lease(store, wrappers, processes)
    }
}

fn lease<S>(store: S, wrappers: &Wrappers, processes: u32) -> Wrapped
where
    S: Store<Error: Into<tower_sluice::store::BoxError>, Future: Send> + Send + Sync + 'static,
{
    match wrappers.leases {
        Some(percent) => policy(store.leases(percent), wrappers, processes),
        None => policy(store, wrappers, processes),
    }
}

fn policy<S>(store: S, wrappers: &Wrappers, processes: u32) -> Wrapped
where
    S: Store<Error: Into<tower_sluice::store::BoxError>, Future: Send> + Send + Sync + 'static,
{
    match wrappers.on_failure {
        OnFailure::Open => store.fail_open().boxed(),
        OnFailure::Closed => store.fail_closed().boxed(),
        OnFailure::Fallback => store.fallback(VirtualLocal::new()).instances(processes).boxed(),
    }
}
