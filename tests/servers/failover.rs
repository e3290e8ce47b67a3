//! A shard of a cluster that fails over, dies or is slow.
//!
//! It recovers soon, and the other shards are hardly affected.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use tokio::time::{Duration, sleep};
use tower_sluice::{
    Quota, RedisStore, Store,
    store::{ClusterLink, RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, address, cluster_store},
    servers::{Cluster, Flavour, eventually},
};

/// The time between two requests of a client.
const PAUSE: Duration = Duration::from_millis(2);
/// The most answers of a server to another client between two decisions of its shard, which are usually
/// two.
const MOST: u32 = 20;
/// The answers of another server between the promotion of a replica and the last error: five seconds.
const SOON: u32 = 2_500;

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

/// The progress of the clients of a cluster.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    /// The decisions of the store on each key since the last error.
    decisions: [AtomicU32; 3],
    /// The answers of each server to a client beside the store. They are the clocks of this test, which
    /// stand still while the machine delays a server: it writes a file at each change of its cluster.
    answers: [AtomicU32; 3],
}

/// The results of the requests for one key, by the clock of its server, or of the second one.
#[derive(Debug, Default)]
struct Seen {
    errors: Vec<Kind>,
    last_error: u32,
    /// The longest time without a decision.
    gap: u32,
}

impl Load {
    fn now(&self, at: usize) -> u32 {
        self.answers[at.max(1)].load(Relaxed)
    }

    /// Sends requests for a key.
    async fn ask<S: Store<Error = RedisError>>(&self, store: &S, key: &str, at: usize) -> Seen {
        let account = Account::new(key, Quota::per_second(1_000_000));
        let (mut seen, mut last) = (Seen::default(), self.now(at));
        while !self.is_over.load(Relaxed) {
            match account.take(store, 1).await {
                Ok(_) => {
                    self.decisions[at].fetch_add(1, Relaxed);
                    seen.gap = seen.gap.max(self.now(at) - last);
                    last = self.now(at);
                }
                Err(error) => {
                    seen.errors.push(error.kind());
                    self.decisions[at].store(0, Relaxed);
                    seen.last_error = self.now(at);
                }
            }
            sleep(PAUSE).await;
        }
        seen
    }

    async fn ping(&self, mut connection: MultiplexedConnection, at: usize) {
        while !self.is_over.load(Relaxed) {
            let () = redis::cmd("PING").exec_async(&mut connection).await.expect("an answer");
            self.answers[at].fetch_add(1, Relaxed);
            sleep(PAUSE).await;
        }
    }

    /// Waits for more decisions in a row, without an error, than fit into the tenth of a second after
    /// which a lost connection is retried.
    async fn all_decide(&self) {
        self.decisions.iter().for_each(|decisions| decisions.store(0, Relaxed));
        let many = || self.decisions.iter().all(|decisions| decisions.load(Relaxed) >= 100);
        eventually("decisions in a row of each server", async || many().then_some(())).await;
    }
}

/// The clients of a cluster: the store with a key on each server, and one of each server but the first.
struct Clients {
    store: RedisStore<ClusterLink>,
    keys: [String; 3],
    others: [MultiplexedConnection; 2],
}

impl Clients {
    async fn connect(cluster: &Cluster) -> Self {
        let [_, second, third, ..] = cluster.nodes() else { panic!("six nodes") };
        let (second, third) = tokio::join!(second.connection(), third.connection());
        let others = [second, third].map(|connection| connection.expect("connects"));
        Self { store: cluster_store(cluster).await, keys: one_each(cluster).await, others }
    }

    /// Runs `work` under load. Returns its end, and the results of each key.
    async fn watch(self, work: impl Future<Output = ()>) -> (u32, Vec<Seen>) {
        let load = Load::default();
        let keys = self.keys.iter().enumerate();
        let asks = keys.map(|(at, key)| load.ask(&self.store, key, at));
        let pings = (1..).zip(self.others).map(|(at, connection)| load.ping(connection, at));
        let work = async {
            load.all_decide().await;
            work.await;
            let end = load.now(0);
            load.all_decide().await;
            load.is_over.store(true, Relaxed);
            end
        };
        let (seen, _, end) = tokio::join!(join_all(asks), join_all(pings), work);
        for Seen { errors, gap, last_error } in &seen {
            println!("a gap of {gap} answers, {} errors, the last at {last_error}", errors.len());
        }
        (end, seen)
    }
}

/// Checks that the other shards have no errors, and are not delayed.
fn check_others(seen: &[Seen]) {
    assert!(seen[1..].iter().all(|seen| seen.errors.is_empty() && seen.gap < MOST), "{seen:?}");
}

#[tokio::test]
async fn a_shard_recovers_at_once_from_a_requested_failover() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let clients = Clients::connect(&cluster).await;
        let place = address("default", &clients.keys[0]);
        let failover = async { _ = cluster.failover(&place).await };
        let (_, seen) = clients.watch(failover).await;
        // The server answers nobody while the replica catches up.
        assert!(seen[0].errors.iter().all(|kind| *kind == Kind::Timeout), "{flavour:?}: {seen:?}");
        assert!(seen[0].gap < SOON, "{flavour:?}: {seen:?}");
        check_others(&seen);
    }
}

#[tokio::test]
async fn a_shard_whose_master_dies_recovers_once_a_replica_is_promoted() {
    for flavour in Flavour::ALL {
        let mut cluster = Cluster::start(flavour).await;
        let clients = Clients::connect(&cluster).await;
        let place = address("default", &clients.keys[0]);
        let replica = cluster.replica_of(&place).await;
        let killed = async {
            cluster.kill_master_of(&place).await;
            assert_eq!(cluster.master_of(&place).await, replica);
        };
        let (promoted, seen) = clients.watch(killed).await;
        assert!(seen[0].last_error < promoted + SOON, "{flavour:?}: {promoted}, {seen:?}");
        check_others(&seen);
    }
}

#[tokio::test]
async fn a_slow_shard_delays_no_other_shard() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let clients = Clients::connect(&cluster).await;
    let asleep = cluster.nodes()[0].command("DEBUG SLEEP 0.6");
    let (_, seen) = clients.watch(asleep).await;
    assert!(seen[0].errors.is_empty() && seen[0].gap > MOST, "{seen:?}");
    check_others(&seen);
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
