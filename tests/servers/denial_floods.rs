//! Clients that do nothing but be denied are no outage, for every kind of rule.
//!
//! The longer form is a part of `scripts/release-check`: `DENIED_CONNECTIONS` has its numbers of
//! clients.
#![allow(clippy::print_stdout)]

use std::{
    convert::Infallible,
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use tokio::{task::yield_now, time::sleep};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, RedisStore, Rule, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    store::{DynStore, Timeout},
};

use crate::{
    accounts::{LONG, connect, quotas},
    busy_key::{POLICIES, Policy},
    servers::Server,
};

const UNITS: u32 = 10;
const SLOTS: u32 = 5;

type Store = Arc<DynStore<Infallible>>;
type Site = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// The requests of the denied client that ran.
#[derive(Debug, Default)]
struct Ran {
    all: AtomicU32,
    now: AtomicU32,
    /// The most that ran at the same time.
    most: AtomicU32,
}

impl Ran {
    async fn run(&self, request: Request<()>) {
        if request.headers()["x-api-key"] != "mallory" {
            return;
        }
        self.all.fetch_add(1, Relaxed);
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, Relaxed);
    }
}

/// A kind of rules.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A quota of an algorithm, by its place in [`quotas`].
    Rate(usize),
    TwoQuotas,
    TwoRules,
    Or,
    FairBy,
    Slots,
    SlotsAndRate,
}

impl Kind {
    /// Returns every kind.
    fn all() -> Vec<Self> {
        let rates = (0..quotas(UNITS, LONG).len()).map(Self::Rate);
        let first = rates.chain([Self::TwoQuotas]);
        // A kind that has no place in this order does not compile.
        let mut all: Vec<_> = first.collect();
        while let Some(last) = all.last() {
            let next = match last {
                Self::Rate(_) => Self::TwoQuotas,
                Self::TwoQuotas => Self::TwoRules,
                Self::TwoRules => Self::Or,
                Self::Or => Self::FairBy,
                Self::FairBy => Self::Slots,
                Self::Slots => Self::SlotsAndRate,
                Self::SlotsAndRate => break,
            };
            all.push(next);
        }
        all
    }

    /// Returns the most requests that may run: at the same time for slots, or at all.
    fn limit(self) -> u32 {
        match self {
            Self::Rate(_) | Self::TwoQuotas | Self::TwoRules => UNITS,
            Self::Or => 2 * UNITS,
            Self::FairBy => 4 * UNITS,
            Self::Slots | Self::SlotsAndRate => SLOTS,
        }
    }

    fn ran(self, ran: &Ran) -> u32 {
        match self {
            Self::Slots | Self::SlotsAndRate => ran.most.load(Relaxed),
            _ => ran.all.load(Relaxed),
        }
    }

    fn site(self, store: Store, ran: Arc<Ran>) -> Site {
        let handler = service_fn(move |request| {
            let ran = ran.clone();
            async move {
                ran.run(request).await;
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        });
        let key = || HeaderKey::new("x-api-key");
        let plain = Quota::new(UNITS, LONG).expect("a quota");
        let many = Quota::new(100_000, LONG).expect("a quota");
        let pool = Quota::new(4 * UNITS, LONG).expect("a quota");
        let slots = Quota::concurrent(SLOTS);
        let rules = |quotas: Vec<Quota>| Rule::new("api", key(), quotas);
        match self {
            Self::Rate(at) => {
                let rule = rules(vec![quotas(UNITS, LONG)[at].1]);
                BoxCloneSyncService::new(RateLimitLayer::rules(rule, store).layer(handler))
            }
            Self::TwoQuotas => {
                let layer =
                    RateLimitLayer::rules(rules(vec![plain, many.with_name("many")]), store);
                BoxCloneSyncService::new(layer.layer(handler))
            }
            Self::TwoRules => {
                let both = (rules(vec![plain]), Rule::new("site", Everyone, many));
                BoxCloneSyncService::new(RateLimitLayer::rules(both, store).layer(handler))
            }
            Self::Or => {
                let either = rules(vec![plain]).or(Rule::new("credits", key(), plain));
                BoxCloneSyncService::new(RateLimitLayer::rules(either, store).layer(handler))
            }
            Self::FairBy => {
                let fair = Rule::new("site", Everyone, pool).fair_by(key(), 1);
                BoxCloneSyncService::new(RateLimitLayer::rules(fair, store).layer(handler))
            }
            Self::Slots => {
                let layer = RateLimitLayer::rules(rules(vec![slots]), store);
                let layer = layer.hold_until(HoldUntil::Head);
                BoxCloneSyncService::new(layer.layer(handler))
            }
            Self::SlotsAndRate => {
                let layer = RateLimitLayer::rules(rules(vec![slots, many]), store);
                let layer = layer.hold_until(HoldUntil::Head);
                BoxCloneSyncService::new(layer.layer(handler))
            }
        }
    }
}

async fn status(site: &Site, key: &str) -> StatusCode {
    let request = Request::get("/").header("x-api-key", key).body(()).expect("a request");
    site.clone().oneshot(request).await.expect("infallible").status()
}

/// A flood of one client, whose connections ask again as soon as they are denied.
#[derive(Clone, Copy, Debug)]
struct Flood {
    kind: Kind,
    policy: Policy,
    /// `true` with a deny cache and leases.
    is_cached: bool,
    connections: u32,
    time: Duration,
}

impl Flood {
    /// Returns the broken promises.
    async fn play(self, redis: &RedisStore) -> Vec<String> {
        let breaker = redis.clone().timeout(Timeout::DEFAULT).breaker();
        let store = match self.is_cached {
            true => self.guard(breaker.clone().deny_cache().leases(25)),
            false => self.guard(breaker.clone()),
        };
        let ran = Arc::new(Ran::default());
        let site = self.kind.site(store, ran.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..self.connections).map(|_| {
            let site = site.clone();
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut asked = 0_u64;
                while !stop.load(Relaxed) {
                    let denied = status(&site, "mallory").await;
                    asked += u64::from(denied != StatusCode::OK);
                    // As a connection does, which waits for the next request.
                    yield_now().await;
                }
                asked
            })
        });
        let clients: Vec<_> = clients.collect();
        let others = tokio::spawn({
            let site = site.clone();
            let stop = stop.clone();
            let breaker = breaker.clone();
            async move {
                let mut rejected = 0;
                let mut number = 0_u32;
                let mut opened = false;
                while !stop.load(Relaxed) {
                    let other = status(&site, &format!("other {number}")).await;
                    rejected += u32::from(other == StatusCode::SERVICE_UNAVAILABLE);
                    opened |= breaker.is_open();
                    number += 1;
                    sleep(Duration::from_millis(5)).await;
                }
                (rejected, opened)
            }
        });
        sleep(self.time).await;
        stop.store(true, Relaxed);
        let denied: u64 = join_all(clients).await.into_iter().map(|it| it.expect("no panic")).sum();
        let others = others.await.expect("no panic");
        let handlers = self.kind.ran(&ran);
        println!("{self:?}: {handlers} handlers, {denied} denials, {} other 503", others.0);
        let mut broken = Vec::new();
        if handlers > self.kind.limit() + 1 {
            broken.push(format!("{self:?}: {handlers} handlers of {}", self.kind.limit()));
        }
        if others.0 > 0 {
            broken.push(format!("{self:?}: {} other keys were answered with 503", others.0));
        }
        if others.1 || breaker.is_open() {
            broken.push(format!("{self:?}: the breaker opened"));
        }
        broken
    }

    fn guard<S>(self, store: S) -> Store
    where
        S: tower_sluice::Store + Send + Sync + 'static,
    {
        match self.policy {
            Policy::FailOpen => store.fail_open().boxed(),
            Policy::FailClosed => store.fail_closed().boxed(),
            Policy::Fallback => store.fallback(LocalStore::new()).boxed(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_only_denied_is_no_outage() {
    let server = Server::redis().await;
    let long = env::var("DENIED_CONNECTIONS").ok();
    let time = Duration::from_millis(if long.is_some() { 4_000 } else { 400 });
    let numbers = long.as_deref().unwrap_or("1000").split(' ');
    let numbers: Vec<u32> = numbers.map(|it| it.parse().expect("a number")).collect();
    let mut broken = Vec::new();
    for connections in numbers {
        for (at, kind) in Kind::all().into_iter().enumerate() {
            for (number, policy) in POLICIES.into_iter().enumerate() {
                // The short form meets each kind and each policy once, with and without caches.
                for is_cached in [false, true] {
                    let is_due = number == (at + usize::from(is_cached)) % POLICIES.len();
                    if long.is_some() || is_due {
                        let () = server.command("FLUSHALL").await;
                        let flood = Flood { kind, policy, is_cached, connections, time };
                        broken.extend(flood.play(&connect(&server.url()).await).await);
                    }
                }
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
