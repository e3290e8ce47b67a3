//! Clients that do nothing but be denied are no outage, for every kind of rule.
//!
//! The longer form is a part of `scripts/release-check`: `DENIED_CONNECTIONS` has its numbers of
//! clients.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use http::StatusCode;
use tokio::{task::yield_now, time::sleep};
use tower_sluice::{LocalStore, RedisStore, StoreExt, store::Timeout};

use crate::{
    accounts::connect,
    rule_kinds::{AnyStore, Kind, POLICIES, Policy, Runs, respond},
    servers::Server,
};

/// The time for which a request holds its slot.
const HOLD: Duration = Duration::from_millis(20);

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
        let runs = Runs::new(HOLD);
        let site = self.kind.site(store, runs.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..self.connections).map(|_| {
            let site = site.clone();
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut asked = 0_u64;
                while !stop.load(Relaxed) {
                    let denied = respond(&site, "busy").await;
                    asked += u64::from(denied.status() != StatusCode::OK);
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
                    let other = respond(&site, &format!("other {number}")).await;
                    rejected += u32::from(other.status() == StatusCode::SERVICE_UNAVAILABLE);
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
        let handlers = runs.limited(self.kind);
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

    fn guard<S>(self, store: S) -> AnyStore
    where
        S: tower_sluice::Store + Send + Sync + 'static,
    {
        match self.policy {
            Policy::FailOpen => store.fail_open().boxed(),
            Policy::FailClosed => store.fail_closed().boxed(),
            Policy::Fallback => store.fallback(LocalStore::new(), 1).boxed(),
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
