//! A shard of a cluster that fails over, dies or is slow.
//!
//! It recovers soon, and the other shards are hardly affected.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::time::sleep;
use tower_sluice::{
    Quota, RedisStore, Store,
    store::{ClusterLink, RedisError, RedisErrorKind},
};

use crate::{
    accounts::{Account, address, cluster_store, connect},
    servers::{Cluster, Flavour, Server, eventually},
};

const SECOND: Duration = Duration::from_secs(1);
/// The delay that a machine with other work may add. It is small enough to detect a missing bound.
const SLACK: Duration = Duration::from_secs(4);

/// Returns keys of accounts on three servers, starting with the first server.
async fn one_each(cluster: &Cluster) -> [String; 3] {
    let mut found = [None, None, None];
    for number in 0..60 {
        let key = format!("key{number}");
        let at = cluster.master_of(&address("default", &key)).await;
        found[at].get_or_insert(key);
    }
    found.map(|key| key.expect("a key on each server"))
}

/// The decisions in a row, without an error, that show a healthy server: more than fit into the
/// tenth of a second after which a lost connection is retried.
const IN_A_ROW: u32 = 100;

/// The results of the requests for one key.
#[derive(Debug)]
struct Seen {
    decisions: u32,
    errors: Vec<RedisErrorKind>,
    last_error: Option<Instant>,
    /// The longest time without a decision.
    gap: Duration,
}

/// Sends requests for a key until `done`. `answers` counts the decisions since the last error.
async fn ask<S>(store: &S, key: &str, done: &AtomicBool, answers: &AtomicU32) -> Seen
where
    S: Store<Error = RedisError>,
{
    let account = Account::new(key, Quota::per_second(1_000_000));
    let mut seen = Seen { decisions: 0, errors: Vec::new(), last_error: None, gap: Duration::ZERO };
    let mut last = Instant::now();
    while !done.load(Relaxed) {
        match account.take(store, 1).await {
            Ok(_) => {
                seen.decisions += 1;
                answers.fetch_add(1, Relaxed);
                seen.gap = seen.gap.max(last.elapsed());
                last = Instant::now();
            }
            Err(error) => {
                seen.errors.push(error.kind());
                answers.store(0, Relaxed);
                seen.last_error = Some(Instant::now());
            }
        }
        sleep(Duration::from_millis(2)).await;
    }
    seen
}

/// Runs `work` under load. Returns the results on three servers, starting with the first, and the
/// longest permitted gap: the longest one elsewhere on this machine, and a tenth of a second.
async fn watched<T>(
    store: &RedisStore<ClusterLink>,
    keys: &[String; 3],
    work: impl Future<Output = T>,
) -> (T, Vec<Seen>, Duration) {
    let (done, answers) = (AtomicBool::new(false), [const { AtomicU32::new(0) }; 4]);
    let server = Server::redis().await;
    let other = connect(&server.url()).await;
    let callers = keys.iter().zip(&answers).map(|(key, answers)| ask(store, key, &done, answers));
    let all_decide = async || {
        answers.iter().for_each(|answers| answers.store(0, Relaxed));
        let many = || answers.iter().all(|answers| answers.load(Relaxed) >= IN_A_ROW);
        eventually("decisions in a row of each server", async || many().then_some(())).await;
    };
    let work = async {
        all_decide().await;
        let result = work.await;
        all_decide().await;
        done.store(true, Relaxed);
        result
    };
    let elsewhere = ask(&other, "a", &done, &answers[3]);
    let (seen, elsewhere, result) = tokio::join!(join_all(callers), elsewhere, work);
    for seen in &seen {
        let Seen { decisions, errors, gap, .. } = seen;
        println!("{decisions} decisions, the longest gap {gap:?}, {} errors", errors.len());
    }
    (result, seen, elsewhere.gap + SECOND / 10)
}

#[tokio::test]
async fn a_shard_recovers_at_once_from_a_requested_failover() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let (store, keys) = (cluster_store(&cluster).await, one_each(&cluster).await);
        let place = address("default", &keys[0]);
        let (_, seen, most) = watched(&store, &keys, cluster.failover(&place)).await;
        assert!(seen.iter().all(|seen| seen.errors.is_empty()), "{flavour:?}: {seen:?}");
        assert!(seen[0].gap < SECOND + SLACK, "{:?}", seen[0].gap);
        assert!(seen[1..].iter().all(|seen| seen.gap < most), "{flavour:?}: {seen:?}, {most:?}");
    }
}

#[tokio::test]
async fn a_shard_whose_master_dies_recovers_once_a_replica_is_promoted() {
    for flavour in Flavour::ALL {
        let mut cluster = Cluster::start(flavour).await;
        let (store, keys) = (cluster_store(&cluster).await, one_each(&cluster).await);
        let place = address("default", &keys[0]);
        let replica = cluster.replica_of(&place).await;
        let killed = async {
            cluster.kill_master_of(&place).await;
            let killed = Instant::now();
            assert_eq!(cluster.master_of(&place).await, replica);
            (killed, Instant::now())
        };
        let ((killed, promoted), seen, most) = watched(&store, &keys, killed).await;
        let last = seen[0].last_error.map_or(killed, |last| last.max(killed));
        println!(
            "{flavour:?}: another was promoted {:?} after the death; the last error was after {:?}",
            promoted - killed,
            last - killed
        );
        assert!(last < promoted + SECOND + SLACK, "{seen:?}");
        assert!(seen[1..].iter().all(|seen| seen.errors.is_empty() && seen.gap < most), "{seen:?}");
    }
}

#[tokio::test]
async fn a_slow_shard_delays_no_other_shard() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let (store, keys) = (cluster_store(&cluster).await, one_each(&cluster).await);
    let asleep = async {
        let () = cluster.nodes()[0].command("DEBUG SLEEP 0.6").await;
    };
    let ((), seen, most) = watched(&store, &keys, asleep).await;
    assert!(seen.iter().all(|seen| seen.errors.is_empty()), "{seen:?}");
    assert!(seen[0].gap > SECOND / 2, "{seen:?}");
    assert!(seen[1..].iter().all(|seen| seen.gap < most), "{seen:?}, {most:?}");
}

#[tokio::test]
async fn a_promoted_replica_without_the_script_receives_it() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let (store, keys) = (cluster_store(&cluster).await, one_each(&cluster).await);
    let account = Account::new(&keys[0], Quota::per_day(9));
    assert_eq!(account.passed(&store, 3).await, 3);
    let promoted = cluster.failover(&address("default", &keys[0])).await;
    let () = cluster.nodes()[promoted].command("SCRIPT FLUSH").await;
    assert_eq!(account.passed(&store, 3).await, 3);
    assert_eq!(account.left(&store).await, 3, "the replica has the account");
}
