//! Bursts of one key on a healthy Redis: a busy key is not an outage.

use std::{
    cell::Cell,
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    runtime::{self, Runtime},
    time::{Instant, sleep},
};
use tower_sluice::{
    Algorithm, Decision, Limiter, LocalStore, Quota, RedisStore, Store, StoreExt, decision::Source,
    store::DynStore,
};

use crate::servers::{Mode, Proxy, Server};

/// The runtime of the proxies: a network is not busy when a process is.
static NETWORK: LazyLock<Runtime> = LazyLock::new(|| {
    let threads = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    threads.expect("a runtime")
});

/// The delay of every reply.
const DELAY: Duration = Duration::from_millis(3);
const TIMEOUT: Duration = Duration::from_millis(200);
/// The slots of the key, or its units.
const LIMIT: u32 = 5;
/// The processes of a fallback, or their stand-ins, which share the callers.
const INSTANCES: u32 = 4;
/// The callers that one call to Redis decides.
const MERGED: u32 = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    FailOpen,
    FailClosed,
    Fallback,
}

pub(crate) const POLICIES: [Policy; 3] = [Policy::FailOpen, Policy::FailClosed, Policy::Fallback];

/// The wrappers between Redis and the policy, from the inside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wrappers {
    Timeout,
    TimeoutBreaker,
    BreakerTimeout,
    /// The timeout, the breaker, the deny cache and the leases.
    Leases,
}

pub(crate) const WRAPPERS: [Wrappers; 4] =
    [Wrappers::Timeout, Wrappers::TimeoutBreaker, Wrappers::BreakerTimeout, Wrappers::Leases];

/// Returns the quotas of a key for each case.
pub(crate) fn cases() -> Vec<(&'static str, Vec<Quota>)> {
    // Ten years: no unit returns, and no window ends.
    let rate = |units, algorithm| {
        let quota = Quota::new(units, Duration::from_secs(3_650 * 86_400)).expect("a quota");
        quota.with_algorithm(algorithm)
    };
    let slots = Quota::concurrent(LIMIT);
    let algorithms = [
        ("gcra", Algorithm::Gcra),
        ("token bucket", Algorithm::TokenBucket),
        ("fixed window", Algorithm::fixed_window()),
        ("fixed window that carries over", Algorithm::FixedWindow { carry_over: 2, paced: false }),
        ("anchored window", Algorithm::AnchoredWindow),
        ("sliding window", Algorithm::SlidingWindow { buckets: 4 }),
        ("sliding log", Algorithm::SlidingLog),
    ];
    let mut cases = vec![
        ("slots", vec![slots]),
        ("slots and a rate", vec![slots, rate(1_000_000, Algorithm::Gcra)]),
    ];
    cases.extend(algorithms.map(|(name, algorithm)| (name, vec![rate(LIMIT, algorithm)])));
    cases.push(("gcra with enough units for leases", vec![rate(20 * LIMIT, Algorithm::Gcra)]));
    cases
}

/// Bursts of one size, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    pub(crate) policy: Policy,
    pub(crate) wrappers: Wrappers,
    /// The simultaneous callers of the key, in all processes.
    pub(crate) callers: u32,
    pub(crate) bursts: u32,
    /// The time for which a caller holds its slot.
    pub(crate) hold: Duration,
}

/// The decisions about one case.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// The most requests of the key that ran at the same time, of slots, or in a burst, of a rate.
    pub(crate) most: u32,
    pub(crate) limit: u32,
    /// The units that a lease may hold after a burst.
    pub(crate) unused: u32,
    pub(crate) allowed: u32,
    pub(crate) sources: BTreeMap<&'static str, u64>,
    /// The requests for other keys, and those that Redis did not allow.
    pub(crate) others: u32,
    pub(crate) failed: u32,
    pub(crate) opened: bool,
    /// The calls to Redis of the first burst, and their bound.
    pub(crate) calls: u32,
    pub(crate) bound: u32,
    /// The slowest decision.
    pub(crate) slowest: Duration,
}

impl Figures {
    /// Returns the broken requirements.
    pub(crate) fn broken(&self) -> Vec<String> {
        let Self { most, limit, unused, allowed, others, failed, calls, bound, .. } = self;
        let of = |source| self.sources.get(source).copied().unwrap_or_default();
        let redis = of("redis") + of("leased") + of("deny_cache");
        let elsewhere = self.sources.values().sum::<u64>() - redis;
        let mut broken = Vec::new();
        let mut demand = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        let is_exact = most <= limit && most + unused >= *limit;
        demand(is_exact, format!("{most} of {limit} ({allowed} allowed)"));
        demand(elsewhere == 0, format!("{elsewhere} not decided by Redis: {:?}", self.sources));
        demand(!self.opened, "a breaker opened".into());
        demand(*failed == 0, format!("{failed} of {others} requests for other keys failed"));
        demand(calls <= bound, format!("{calls} calls instead of {bound}"));
        broken
    }
}

/// A process, or its stand-in.
#[derive(Clone)]
struct App {
    limiter: Limiter<Arc<DynStore<Infallible>>>,
    is_open: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl App {
    fn new<S>(policy: Policy, store: S, is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self
    where
        S: Store + Send + Sync + 'static,
    {
        let store = match policy {
            Policy::FailOpen => store.fail_open().boxed(),
            Policy::FailClosed => store.fail_closed().boxed(),
            Policy::Fallback => store.fallback(LocalStore::new()).instances(INSTANCES).boxed(),
        };
        Self { limiter: Limiter::new(store), is_open: Arc::new(is_open) }
    }

    async fn take(&self, key: String, quotas: &[Quota]) -> (Decision, Duration) {
        let start = Instant::now();
        let decision = self.limiter.take(key, quotas, 1).await;
        (decision, start.elapsed())
    }
}

impl Bursts {
    /// Plays the bursts against a server that answers.
    pub(crate) async fn play(&self, server: &Server, quotas: &[Quota]) -> Figures {
        let address = server.address();
        let proxy = async move {
            let mut proxy = Proxy::start(address).await;
            proxy.set(Mode::Delay(DELAY)).await;
            proxy
        };
        let proxy = NETWORK.spawn(proxy).await.expect("no panic");
        let url = server.url_at(proxy.addr());
        let mut apps = Vec::new();
        for _ in 0..if self.policy == Policy::Fallback { INSTANCES } else { 1 } {
            apps.push(self.app(&url).await);
        }
        let () = server.command("FLUSHALL").await;
        // Afterwards, the server knows the scripts, and the stores have all that a burst needs.
        let warm = join_all((0..40).map(|_| apps[0].take("warm".into(), quotas))).await;
        drop(warm);
        // Time for the server to learn of freed slots.
        let slots = u32::from(quotas[0].algorithm() == Algorithm::Concurrent);
        let freeing = slots * self.hold / 3;
        sleep(freeing).await;

        let mut figures = Figures { limit: quotas[0].burst(), ..Figures::default() };
        let processes = u32::try_from(apps.len()).expect("few");
        let merged = (self.callers / processes).div_ceil(MERGED);
        figures.bound = processes * (2 + merged + slots);
        if matches!(self.wrappers, Wrappers::Leases) && figures.limit > LIMIT {
            figures.unused = figures.limit / 4;
            figures.bound += 20 * processes;
        }
        for burst in 0..self.bursts {
            let before = server.script_calls().await;
            // A rate has a fresh account in each burst.
            let key = if slots == 1 { "busy".into() } else { format!("busy {burst}") };
            let done = Arc::new(AtomicBool::new(burst == 0));
            let others = tokio::spawn(others(apps.clone(), burst, quotas.into(), done.clone()));
            self.burst(&apps, &key, quotas, &mut figures).await;
            done.store(true, Relaxed);
            let (asked, failed, slowest) = others.await.expect("no panic");
            figures.others += asked;
            figures.failed += failed;
            figures.slowest = figures.slowest.max(slowest);
            sleep(freeing).await;
            if burst == 0 {
                figures.calls = server.script_calls().await - before;
            }
        }
        figures
    }

    async fn app(&self, url: &str) -> App {
        let redis = RedisStore::connect(url).await.expect("connects");
        match self.wrappers {
            Wrappers::Timeout => App::new(self.policy, redis.timeout(TIMEOUT), || false),
            Wrappers::TimeoutBreaker => {
                let breaker = redis.timeout(TIMEOUT).breaker();
                App::new(self.policy, breaker.clone(), move || breaker.is_open())
            }
            Wrappers::BreakerTimeout => {
                let breaker = redis.breaker();
                App::new(self.policy, breaker.clone().timeout(TIMEOUT), move || breaker.is_open())
            }
            Wrappers::Leases => {
                let breaker = redis.timeout(TIMEOUT).breaker();
                let store = breaker.clone().deny_cache().leases(25).instances(INSTANCES);
                App::new(self.policy, store, move || breaker.is_open())
            }
        }
    }

    /// All callers of the key at the same time: in one task, so that none of them waits for a turn of
    /// the runtime.
    async fn burst(&self, apps: &[App], key: &str, quotas: &[Quota], figures: &mut Figures) {
        let (running, together) = (Cell::new(0), Cell::new(0));
        let callers = apps.iter().cycle().take(self.callers as usize).map(async |app| {
            let (decision, took) = app.take(key.to_owned(), quotas).await;
            let allowed = decision.is_allowed();
            if allowed && (quotas[0].algorithm() == Algorithm::Concurrent) {
                running.set(running.get() + 1);
                together.set(together.get().max(running.get()));
                sleep(self.hold).await;
                running.set(running.get() - 1);
            }
            (allowed, decision.source(), took, (app.is_open)())
        });
        let mut passed = 0;
        for (allowed, source, took, open) in join_all(callers).await {
            passed += u32::from(allowed);
            *figures.sources.entry(source.as_str()).or_default() += 1;
            figures.slowest = figures.slowest.max(took);
            figures.opened |= open;
        }
        figures.allowed += passed;
        let most =
            if quotas[0].algorithm() == Algorithm::Concurrent { together.get() } else { passed };
        figures.most = figures.most.max(most);
    }
}

/// Requests for other keys, one after the other. Returns their number, the number of those that
/// Redis did not allow, and the slowest.
async fn others(
    apps: Vec<App>,
    burst: u32,
    quotas: Vec<Quota>,
    done: Arc<AtomicBool>,
) -> (u32, u32, Duration) {
    let (mut asked, mut failed, mut slowest) = (0, 0, Duration::ZERO);
    while !done.load(Relaxed) {
        let app = &apps[asked as usize % apps.len()];
        let (decision, took) = app.take(format!("other {burst} {asked}"), &quotas).await;
        asked += 1;
        failed += u32::from(!(decision.is_allowed() && decision.source() == Source::Redis));
        slowest = slowest.max(took);
        sleep(Duration::from_millis(2)).await;
    }
    (asked, failed, slowest)
}
