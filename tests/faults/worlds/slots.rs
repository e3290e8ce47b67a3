//! Slots on servers whose replica is promoted: held ones are renewed, and no limit is exceeded by more
//! than the lost takes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{future::join_all, poll};
use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep, timeout};
use tower_sluice::{
    Decision, Key, Limiter, Quota, RedisStore, Store, StoreExt, middleware::Slot, rule::RuleName,
    store::Charge,
};

use crate::{
    fault::Fault,
    options::Options,
    row::Row,
    servers::{Cluster, Mode, Proxy, Sentinels},
    stack::BUDGET,
    turnstile::Turnstile,
};

const TTL: Duration = Duration::from_secs(9);
/// The time in which slots are taken again.
const SOON: Duration = Duration::from_secs(2);
const LIMIT: u32 = 8;
/// The keys of which each holds one slot.
const KEYS: u32 = 60;

pub(crate) fn faults() -> Vec<Fault> {
    const LOST: &str = "at most one more limit runs at once, by lost takes; every slot is free one \
                        time to live after the last request; no wait is longer than the outage";
    const BEHIND: &str = "at most one more limit runs at once, by lost takes; lost frees count for \
                          one time to live; every slot is free one time to live after the last request";
    const KEPT: &str = "held slots are renewed on the new master; none is lost";
    vec![
        Fault::other("slots, sentinels: master killed", LOST, async |options: &Options, row| {
            let mut sentinels = Sentinels::start(options.flavour()).await;
            let urls = sentinels.urls();
            let connect = || RedisStore::sentinel(&words(&urls), Sentinels::NAME).slot_ttl(TTL);
            let stores = [connect().await, connect().await].map(|it| it.expect("a store"));
            let strike = async || {
                sentinels.kill_master().await;
                sentinels.master().await;
            };
            contend(row, stores, SOON, strike).await
        }),
        Fault::other("slots, replication lost", BEHIND, async |options: &Options, row| {
            let (mut primary, replica) = (options.server().await, options.server().await);
            let mut link = Proxy::start(primary.address()).await;
            replica.replica_of(link.addr()).await;
            let turnstile = Turnstile::to(primary.address()).await;
            let stores = connected(&turnstile.url()).await;
            let strike = async || {
                link.set(Mode::BlackHole).await;
                sleep(Duration::from_secs(1)).await;
                primary.kill();
                replica.promote().await;
                turnstile.turn(replica.address());
            };
            contend(row, stores, TTL, strike).await
        }),
        Fault::other("slots, restart without persistence", LOST, async |options: &Options, row| {
            let mut server = options.server().await;
            let stores = connected(&server.url()).await;
            let strike = async || {
                server.kill();
                server.restart().await;
            };
            contend(row, stores, SOON, strike).await
        }),
        Fault::other("slots, cluster: master killed", KEPT, async |options: &Options, row| {
            let mut cluster = Cluster::start(options.flavour()).await;
            let stores = of(&cluster).await;
            let first = address(0);
            keep(row, stores, async || {
                cluster.kill_master_of(&first).await;
                cluster.master_of(&first).await;
            })
            .await
        }),
        Fault::other("slots, cluster: failover", KEPT, async |options: &Options, row| {
            let cluster = Cluster::start(options.flavour()).await;
            let stores = of(&cluster).await;
            keep(row, stores, async || {
                cluster.failover(&address(0)).await;
            })
            .await
        }),
    ]
}

fn words(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}

async fn connected(url: &str) -> [RedisStore; 2] {
    let connect = || RedisStore::connect(url).slot_ttl(TTL);
    [connect().await, connect().await].map(|store| store.expect("a store"))
}

async fn of(cluster: &Cluster) -> [RedisStore<tower_sluice::store::ClusterLink>; 2] {
    let urls = cluster.urls();
    let connect = || RedisStore::cluster(&words(&urls)).readable_keys().slot_ttl(TTL);
    [connect().await, connect().await].map(|store| store.expect("a store"))
}

fn address(key: u32) -> String {
    format!("sluice:4:{{default:%02k{key}}}")
}

/// Requests of two processes take slots of one key, or wait for them, while the master is lost. After
/// that, they have slots again `within` this time.
async fn contend<C>(
    mut row: Row,
    stores: [RedisStore<C>; 2],
    within: Duration,
    strike: impl AsyncFnOnce(),
) -> Row
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (running, peak) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (ran, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let quota = Quota::concurrent(LIMIT);
    let tasks = (0..32_u64).map(|n| {
        let limiter =
            Limiter::named("default", stores[usize::from(n % 2 == 0)].clone().timeout(BUDGET));
        let (running, peak, ran, over) = (running.clone(), peak.clone(), ran.clone(), over.clone());
        tokio::spawn(async move {
            while !over.load(SeqCst) {
                let waits = limiter.try_until_ready("hot", &quota, 1);
                let Ok(Ok(mut decision)) = timeout(BUDGET * 10, waits).await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let slot = decision.take_slot();
                let now = running.fetch_add(1, SeqCst) + 1;
                peak.fetch_max(now, SeqCst);
                ran.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(20 + n * 3)).await;
                running.fetch_sub(1, SeqCst);
                drop(slot);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    sleep(Duration::from_secs(2)).await;
    let (before, at_most) = (ran.load(SeqCst), peak.load(SeqCst));
    row.demand(at_most <= LIMIT.into(), || format!("{at_most} ran before the fault"));
    let struck = Instant::now();
    strike().await;
    let promoted = struck.elapsed();
    let during = ran.load(SeqCst);
    while ran.load(SeqCst) < during + 50 && struck.elapsed() < promoted + TTL * 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let back = struck.elapsed() - promoted;
    row.demand(back < within, || format!("slots only after {back:.1?}"));
    sleep(Duration::from_secs(2)).await;
    over.store(true, SeqCst);
    drop(join_all(tasks).await);
    let (ended, most) = (Instant::now(), peak.load(SeqCst));
    row.demand(most <= (2 * LIMIT).into(), || format!("{most} ran at once"));
    let freed = until_free(&stores[0]).await;
    row.demand(freed.is_some(), || format!("slots are held {:.1?} later", ended.elapsed()));
    row.notes.push(format!(
        "promoted after {promoted:.1?}, 50 slots {back:.1?} later; {before} ran before and {} after \
         it, at most {most} of {LIMIT} at once; all free after {:.1?}",
        ran.load(SeqCst) - before,
        freed.unwrap_or_default(),
    ));
    row
}

/// Returns the time until no slot is held, if it is at most one time to live.
async fn until_free<S: Store>(store: &S) -> Option<Duration> {
    let (start, limiter, quota) =
        (Instant::now(), Limiter::named("default", store), Quota::concurrent(LIMIT));
    while start.elapsed() < TTL + Duration::from_secs(1) {
        let look = limiter.try_peek("hot", &quota).await;
        let held = look.ok().and_then(|decision| decision.outcomes()[0].held());
        if held == Some(0) {
            return Some(start.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
    None
}

/// A process holds a slot of many keys for longer than the time to live, and the other one looks.
async fn keep<C>(mut row: Row, stores: [RedisStore<C>; 2], strike: impl AsyncFnOnce()) -> Row
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let [one, two] = stores;
    let quota = [Quota::concurrent(1)];
    let keys: Vec<_> = (0..KEYS).map(|n| Key::from(format!("k{n}"))).collect();
    let charge = |key| Charge::new(RuleName::default(), key, &quota);
    let mut slots = Vec::new();
    for key in &keys {
        let taken: Option<Decision> = one.take(&[charge(key)]).await.ok();
        slots.extend(taken.and_then(|mut it| it.take_slot()));
    }
    row.demand(slots.len() == keys.len(), || format!("{} slots", slots.len()));
    // The replica has them.
    sleep(Duration::from_secs(1)).await;
    let struck = Instant::now();
    strike().await;
    let promoted = struck.elapsed();
    sleep((TTL * 3 / 2).saturating_sub(promoted)).await;
    let lost = async |slot: &Slot| poll!(Box::pin(slot.lost())).is_ready();
    let lost = join_all(slots.iter().map(lost)).await.into_iter().filter(|lost| *lost).count();
    let mut counted = 0;
    for key in &keys {
        let look = loop {
            match two.take(&[charge(key).with_cost(0)]).await {
                Err(_) if struck.elapsed() < TTL * 4 => sleep(BUDGET / 4).await,
                look => break look.ok(),
            }
        };
        counted += look.and_then(|it| it.outcomes()[0].held()).unwrap_or(0);
    }
    row.demand(lost == 0 && counted == u64::from(KEYS), || {
        format!("{lost} lost, {counted} counted")
    });
    row.notes.push(format!(
        "done after {promoted:.1?}; {counted} of {KEYS} slots count {:.0?} later, {lost} are lost",
        struck.elapsed(),
    ));
    row
}
