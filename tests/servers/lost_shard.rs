//! A shard of a cluster has neither a master nor a replica any more: requests for the other shards
//! are decided as before, and the servers and the log stay quiet.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::time::{MissedTickBehavior, interval};
use tower_sluice::{
    Key, LocalStore, Quota, RedisStore, Store, StoreExt,
    decision::Source,
    store::{Charge, ClusterLink, RedisErrorKind},
};
use tracing::Level;

use crate::{
    accounts::{Account, address, cluster_store, on_cluster, rule},
    log::Log,
    servers::{Cluster, Flavour, eventually},
};

const HASH_SLOTS: u32 = 16_384;
const KEYS: usize = 60;
const RULES: [&str; 3] = ["user", "site", "client"];
const QUOTAS: [Quota; 1] = [Quota::per_second(1_000_000)];
/// The time between two requests.
const PAUSE: Duration = Duration::from_millis(4);
/// Several times the default, because a busy machine delays each decision, and less than the second for
/// which a call waits for a server.
const BUDGET: Duration = Duration::from_millis(800);
const SECOND: Duration = Duration::from_secs(1);

fn name(number: usize) -> String {
    format!("key{number}")
}

fn key(number: usize) -> Key {
    Key::from(name(number))
}

/// Returns keys, and whether the accounts of all rules are on the second and third server.
async fn keys(cluster: &Cluster) -> Vec<(Key, bool)> {
    let mut keys = Vec::new();
    for number in 0..KEYS {
        let hash_slots = RULES.map(|rule| address(rule, &name(number)));
        let hash_slots = join_all(hash_slots.iter().map(|key| cluster.hash_slot_of(key))).await;
        keys.push((
            key(number),
            hash_slots.into_iter().all(|hash_slot| u32::from(hash_slot) >= HASH_SLOTS / 3),
        ));
    }
    keys
}

/// Kills or freezes the master of the first third of the hash slots, and kills its replica.
fn lose_first(cluster: &mut Cluster, frozen: bool) {
    cluster.node_mut(3).kill();
    match frozen {
        true => cluster.nodes()[0].stop(),
        false => cluster.node_mut(0).kill(),
    }
}

/// Returns a store that has not connected yet.
fn lazy(cluster: &Cluster) -> RedisStore<ClusterLink> {
    on_cluster(cluster).readable_keys().lazy().expect("addresses")
}

/// Returns the store of a process in production.
fn guarded(store: RedisStore<ClusterLink>) -> Arc<impl Store<Error = Infallible> + Send + Sync> {
    Arc::new(store.timeout(BUDGET).breaker().fallback(LocalStore::new(), 1))
}

/// The decisions of one load.
#[derive(Debug, Default)]
struct Seen {
    /// Requests whose accounts are all on servers that run, and those of them that Redis decided.
    reachable: u32,
    decided: u32,
    longest: Duration,
}

/// Sends requests under three rules for `time`, answered or not, with a `pause` after each.
async fn load<S>(store: &Arc<S>, keys: &[(Key, bool)], time: Duration, pause: Duration) -> Seen
where
    S: Store<Error = Infallible> + Send + Sync + 'static,
    S::Future: 'static,
{
    let (start, mut tasks) = (Instant::now(), Vec::new());
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for (key, reachable) in keys.iter().cycle() {
        if start.elapsed() >= time {
            break;
        }
        ticks.tick().await;
        let (store, key, reachable) = (store.clone(), key.clone(), *reachable);
        tasks.push(tokio::spawn(async move {
            let charges = RULES.map(|name| Charge::new(rule(name), &key, &QUOTAS));
            let asked = Instant::now();
            let Ok(decision) = store.take(&charges).into_future().await;
            (reachable, decision.source() == Source::Redis, asked.elapsed())
        }));
    }
    let mut seen = Seen::default();
    for task in tasks {
        let (reachable, decided, took) = task.await.expect("no panic");
        seen.reachable += u32::from(reachable);
        seen.decided += u32::from(reachable && decided);
        seen.longest = seen.longest.max(took);
    }
    seen
}

/// Checks that nine of ten reachable requests were decided: a server or this process may be late.
fn check(seen: &Seen, what: &str) {
    println!("{what}: {seen:?}");
    assert!(seen.reachable > 40 && seen.decided * 10 >= seen.reachable * 9, "{what}: {seen:?}");
    assert!(seen.longest < BUDGET * 10, "{what}: {seen:?}");
}

/// Returns how often each running server was asked for the hash slots so far.
async fn refreshes(cluster: &Cluster) -> u64 {
    let running = cluster.nodes()[1..].iter().filter(|node| node.runs());
    let counts = running.map(async |node| {
        let stats: String = node.command("INFO commandstats").await;
        let line = stats.lines().find(|line| line.starts_with("cmdstat_cluster|slots:"));
        let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    });
    join_all(counts).await.into_iter().sum()
}

const TIME: Duration = Duration::from_secs(4);
/// The most requests for the hash slots by one process in this time: four per second, and some at the
/// start.
const MOST_REFRESHES: u64 = 4 * 4 + 10;

#[tokio::test]
async fn the_other_shards_decide_as_before_and_the_servers_are_not_flooded() {
    for (flavour, frozen) in
        [(Flavour::Redis, false), (Flavour::Valkey, false), (Flavour::Redis, true)]
    {
        let what = format!("{flavour:?}, {}", if frozen { "frozen" } else { "dead" });
        let mut cluster = Cluster::start(flavour).await;
        let keys = keys(&cluster).await;
        let store = guarded(cluster_store(&cluster).await);
        check(&load(&store, &keys, SECOND, PAUSE).await, "before");

        let (before, (log, guard)) = (refreshes(&cluster).await, Log::start(Level::INFO));
        lose_first(&mut cluster, frozen);
        check(&load(&store, &keys, TIME, PAUSE).await, &what);
        let (refreshes, lines) = (refreshes(&cluster).await - before, log.read());
        println!(
            "{what}: {refreshes} requests for the hash slots, {} lines: {lines:?}",
            lines.len()
        );
        assert!(refreshes <= MOST_REFRESHES, "{what}: {refreshes}");
        assert!((1..=3).contains(&lines.len()), "{what}: {lines:?}");
        let health = store.health().await;
        assert!(!health.is_healthy(), "{health:?}");
        drop(guard);

        let late = guarded(lazy(&cluster));
        check(
            &load(&late, &keys, TIME / 2, PAUSE).await,
            &format!("{what}, a process that starts now"),
        );
    }
}

#[tokio::test]
async fn a_lost_shard_is_a_warning_at_the_start_and_recovers() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    let whole = cluster_store(&cluster).await.probe().await.expect("a probe");
    assert_eq!(whole, [""; 0]);
    lose_first(&mut cluster, false);
    let (log, _guard) = Log::start(Level::INFO);
    let store = cluster_store(&cluster).await;
    let lost = format!("127.0.0.1:{}", cluster.nodes()[0].port());
    let warned = log.read().into_iter().filter(|line| line.contains(&format!("redis: {lost}: ")));
    assert_eq!(warned.count(), 1);
    let probe = store.probe().await.expect("a probe");
    assert!(matches!(&probe[..], [one] if one.starts_with(&lost)), "{probe:?}");

    let account = async |at| {
        let mut keys = (0..).map(|key| format!("key{key}"));
        loop {
            let key = keys.next().expect("a key");
            let hash_slot = cluster.hash_slot_of(&address("default", &key)).await;
            if u32::from(hash_slot) * 3 / HASH_SLOTS == at {
                return Account::new(key, Quota::per_day(9));
            }
        }
    };
    let (here, gone) = (account(2).await, account(0).await);
    assert_eq!(here.passed(&store, 3).await, 3);
    let error = gone.take(&store, 1).await.expect_err("no server");
    assert_eq!(error.kind(), RedisErrorKind::Disconnected, "{error}");

    cluster.node_mut(0).restart().await;
    cluster.healthy().await;
    let back = async || gone.take(&store, 1).await.ok();
    drop(eventually("the lost shard", back).await);
    let probed = async || store.probe().await.ok()?.is_empty().then_some(());
    eventually("a probe without warnings", probed).await;
}

#[tokio::test]
async fn a_frozen_master_delays_the_start_by_one_timeout() {
    for flavour in Flavour::ALL {
        let mut cluster = Cluster::start(flavour).await;
        lose_first(&mut cluster, true);
        let frozen = format!("127.0.0.1:{}", cluster.nodes()[0].port());
        let (log, _guard) = Log::start(Level::INFO);
        let store = cluster_store(&cluster).await;
        let warned =
            log.read().into_iter().filter(|line| line.contains(&format!("redis: {frozen}: ")));
        assert_eq!(warned.count(), 1);
        let probe = store.probe().await.expect("a probe");
        assert!(matches!(&probe[..], [one] if one.starts_with(&frozen)), "{probe:?}");
        // A busy machine prolongs some of them.
        let one_timeout = SECOND..2 * SECOND;
        eventually("a start after one timeout", async || {
            let start = Instant::now();
            drop(cluster_store(&cluster).await);
            one_timeout.contains(&start.elapsed()).then_some(())
        })
        .await;
        eventually("a probe of one timeout", async || {
            let start = Instant::now();
            drop(store.probe().await);
            one_timeout.contains(&start.elapsed()).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_process_without_a_cluster_starts_and_connects_later() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    for node in 0..6 {
        cluster.node_mut(node).kill();
    }
    let error = on_cluster(&cluster).await.expect_err("no server");
    assert_eq!(error.kind(), RedisErrorKind::Disconnected, "{error}");
    assert!(error.to_string().contains("`.lazy()` starts without it"), "{error}");

    let (log, _guard) = Log::start(Level::INFO);
    let (store, account) = (lazy(&cluster), Account::new("a", Quota::per_day(9)));
    for _ in 0..50 {
        let start = Instant::now();
        let error = account.take(&store, 1).await.expect_err("no server");
        assert_eq!(error.kind(), RedisErrorKind::Disconnected, "{error}");
        assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    }
    let lines = log.read();
    assert!(lines.len() == 1 && lines[0].contains("no server of the cluster"), "{lines:?}");
    for node in 0..6 {
        cluster.node_mut(node).restart().await;
    }
    drop(eventually("a decision", async || account.take(&store, 1).await.ok()).await);
}
