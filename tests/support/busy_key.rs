//! Bursts of one key on a healthy Redis: a busy key is not an outage.

use std::{
    collections::BTreeMap,
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
use tower_sluice::{Decision, LocalStore, RedisStore, Store, StoreExt, decision::Source};

use crate::{
    rule_kinds::{Kind, Runs, Site, respond},
    servers::{Mode, Proxy, Server},
};

/// The runtime of the proxies: a network is not busy when a process is.
static NETWORK: LazyLock<Runtime> = LazyLock::new(|| {
    let threads = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    threads.expect("a runtime")
});

/// The delay of every reply.
const DELAY: Duration = Duration::from_millis(3);
const TIMEOUT: Duration = Duration::from_millis(200);
/// The requests that warm a process.
const WARM: u32 = 40;
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
    site: Site,
    is_open: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A decision, and the time that it took.
struct Answer {
    decision: Decision,
    took: Duration,
}

impl App {
    async fn take(&self, key: &str) -> Answer {
        let start = Instant::now();
        let response = respond(&self.site, key).await;
        let decision = response.extensions().get::<Decision>().expect("a decision").clone();
        Answer { decision, took: start.elapsed() }
    }
}

/// Bursts of one kind of rules.
struct Play {
    bursts: Bursts,
    kind: Kind,
    runs: Arc<Runs>,
    apps: Vec<App>,
}

impl Bursts {
    /// Plays the bursts against a server that answers.
    pub(crate) async fn play(self, server: &Server, kind: Kind) -> Figures {
        let address = server.address();
        let proxy = async move {
            let mut proxy = Proxy::start(address).await;
            proxy.set(Mode::Delay(DELAY)).await;
            proxy
        };
        let proxy = NETWORK.spawn(proxy).await.expect("no panic");
        let url = server.url_at(proxy.addr());
        let mut play = Play { bursts: self, kind, runs: Runs::new(self.hold), apps: Vec::new() };
        for _ in 0..if self.policy == Policy::Fallback { INSTANCES } else { 1 } {
            let app = play.app(&url).await;
            play.apps.push(app);
        }
        let () = server.command("FLUSHALL").await;
        play.run(server).await
    }
}

impl Play {
    async fn run(&self, server: &Server) -> Figures {
        let Bursts { bursts, callers, hold, wrappers, .. } = self.bursts;
        // Afterwards, the server knows the scripts, and the stores have all that a burst needs.
        drop(join_all((0..WARM).map(|_| self.apps[0].take("warm"))).await);
        // Time for the server to learn of freed slots.
        let slots = u32::from(self.kind.has_slots());
        let freeing = slots * hold / 3;
        sleep(freeing).await;

        let mut figures = Figures { limit: self.kind.limit(), ..Figures::default() };
        let processes = u32::try_from(self.apps.len()).expect("few");
        let merged = (callers / processes).div_ceil(MERGED);
        figures.bound = processes * self.kind.attempts() * (2 + merged + slots);
        // The callers of a second attempt arrive one by one, as the process polls them.
        figures.bound += (self.kind.attempts() - 1) * callers / 16;
        if matches!(wrappers, Wrappers::Leases) && self.kind.is_leased() {
            figures.unused += figures.limit / 4;
            figures.bound += 20 * processes;
        }
        if self.kind.has_pool() {
            // The client before has used `WARM` units, and half of the rest is for others.
            figures.unused += WARM + (figures.limit - WARM) / 2;
        }
        for burst in 0..bursts {
            let calls = server.script_calls().await;
            let before = self.runs.limited(self.kind);
            // A rate has a fresh account in each burst.
            let key = if slots == 1 { "busy".into() } else { format!("busy {burst}") };
            let done = Arc::new(AtomicBool::new(burst == 0));
            let others = tokio::spawn(self.others(burst, done.clone()));
            self.burst(&key, &mut figures).await;
            done.store(true, Relaxed);
            let others = others.await.expect("no panic");
            figures.others += others.asked;
            figures.failed += others.failed;
            figures.slowest = figures.slowest.max(others.slowest);
            let ran = self.runs.limited(self.kind);
            figures.most = figures.most.max(if slots == 1 { ran } else { ran - before });
            sleep(freeing).await;
            if burst == 0 {
                figures.calls = server.script_calls().await - calls;
            }
        }
        figures.allowed = self.runs.all();
        figures
    }

    async fn app(&self, url: &str) -> App {
        let redis = RedisStore::connect(url).await.expect("connects");
        match self.bursts.wrappers {
            Wrappers::Timeout => self.with(redis.timeout(TIMEOUT), || false),
            Wrappers::TimeoutBreaker => {
                let breaker = redis.timeout(TIMEOUT).breaker();
                self.with(breaker.clone(), move || breaker.is_open())
            }
            Wrappers::BreakerTimeout => {
                let breaker = redis.breaker();
                self.with(breaker.clone().timeout(TIMEOUT), move || breaker.is_open())
            }
            Wrappers::Leases => {
                let breaker = redis.timeout(TIMEOUT).breaker();
                let store = breaker.clone().deny_cache().leases(25).instances(INSTANCES);
                self.with(store, move || breaker.is_open())
            }
        }
    }

    fn with<S>(&self, store: S, is_open: impl Fn() -> bool + Send + Sync + 'static) -> App
    where
        S: Store + Send + Sync + 'static,
    {
        let store = match self.bursts.policy {
            Policy::FailOpen => store.fail_open().boxed(),
            Policy::FailClosed => store.fail_closed().boxed(),
            Policy::Fallback => store.fallback(LocalStore::new(), INSTANCES).boxed(),
        };
        let site = self.kind.site(store, self.runs.clone());
        App { site, is_open: Arc::new(is_open) }
    }

    /// All callers of the key at the same time: in one task, so that none of them waits for a turn of
    /// the runtime.
    async fn burst(&self, key: &str, figures: &mut Figures) {
        let callers = self.apps.iter().cycle().take(self.bursts.callers as usize);
        let answers = join_all(callers.map(async |app| {
            let answer = app.take(key).await;
            (answer, (app.is_open)())
        }));
        for (answer, is_open) in answers.await {
            *figures.sources.entry(answer.decision.source().as_str()).or_default() += 1;
            // A response that is allowed arrives with the end of its slot.
            if !answer.decision.is_allowed() {
                figures.slowest = figures.slowest.max(answer.took);
            }
            figures.opened |= is_open;
        }
    }

    /// Sends requests for other keys, one after the other.
    fn others(&self, burst: u32, done: Arc<AtomicBool>) -> impl Future<Output = Others> + use<> {
        let apps = self.apps.clone();
        let has_pool = self.kind.has_pool();
        async move {
            let mut others = Others { asked: 0, failed: 0, slowest: Duration::ZERO };
            while !done.load(Relaxed) {
                let app = &apps[others.asked as usize % apps.len()];
                let key = format!("other {burst} {}", others.asked);
                let Answer { decision, took } = app.take(&key).await;
                // The pool is used up, which a deny cache knows.
                let is_well = match has_pool {
                    true => matches!(decision.source(), Source::Redis | Source::DenyCache),
                    false => decision.is_allowed() && decision.source() == Source::Redis,
                };
                others.asked += 1;
                others.failed += u32::from(!is_well);
                others.slowest = others.slowest.max(took);
                sleep(Duration::from_millis(2)).await;
            }
            others
        }
    }
}

/// Requests for other keys, and those that Redis did not allow.
struct Others {
    asked: u32,
    failed: u32,
    slowest: Duration,
}
