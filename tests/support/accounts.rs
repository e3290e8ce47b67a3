//! Accounts in Redis for tests: quotas of every algorithm, and the keys and values of a server.
#![allow(dead_code, reason = "each test uses a part")]

use std::{sync::Arc, time::Duration};

use redis::{Client, aio::MultiplexedConnection};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, Store, StoreExt,
    rule::RuleName,
    store::{Charge, ClusterLink, RedisBuilder, RedisError},
};

use crate::servers::{Cluster, Sentinels};
pub(crate) use crate::support::dice::Dice;

/// A period whose windows and buckets end once in weeks, and so do not end while a test runs.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const LONG: Duration = Duration::from_secs(100 * 86_400);

/// Returns `units` per `period` for each algorithm.
pub(crate) fn quotas(units: u32, period: Duration) -> [(&'static str, Quota); 6] {
    let quota = |algorithm| Quota::new(units, period).expect("a quota").with_algorithm(algorithm);
    [
        ("gcra", quota(Algorithm::Gcra)),
        ("token-bucket", quota(Algorithm::TokenBucket)),
        ("fixed-window", quota(Algorithm::fixed_window())),
        ("anchored-window", quota(Algorithm::AnchoredWindow)),
        ("sliding-window", quota(Algorithm::SlidingWindow { buckets: 5 })),
        ("sliding-log", quota(Algorithm::SlidingLog)),
    ]
}

pub(crate) fn rule(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

/// Returns the Redis key of an account in a store with readable keys and the default prefix.
pub(crate) fn address(rule: &str, key: &str) -> String {
    format!("sluice:4:{{{rule}:%02{key}}}")
}

/// Returns the address of what is counted: FNV-1a of a letter and of the period, if it has one.
pub(crate) fn quota_address(letter: u8, period: Option<Duration>) -> u32 {
    let nanos = period.map(|period| u64::try_from(period.as_nanos()).expect("short").to_le_bytes());
    let bytes = [letter].into_iter().chain(nanos.into_iter().flatten());
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    bytes.fold(2_166_136_261, hash)
}

fn part(letter: u8, period: Option<Duration>) -> String {
    format!("{:08x}", quota_address(letter, period))
}

/// Returns the stored form of an account of one GCRA quota, which is full at this instant: microseconds
/// (7 bytes) and the remaining nanoseconds.
pub(crate) fn gcra_account(period: Duration, full_at: [u8; 7], nanos: u16) -> Vec<u8> {
    let address = quota_address(b'g', Some(period)).to_le_bytes();
    [&[0; 7], &b"g\x0d\0"[..], &address, &full_at, &nanos.to_le_bytes()].concat()
}

/// Returns the seven bytes of a stored instant.
pub(crate) fn stored_micros(micros: u64) -> [u8; 7] {
    let bytes = micros.to_le_bytes();
    std::array::from_fn(|at| bytes[at])
}

/// Returns the Redis key of the list of a sliding log.
pub(crate) fn list_key(account: &str, period: Duration) -> String {
    format!("{account}:{}", part(b'l', Some(period)))
}

/// Returns the Redis key of the set of held slots.
pub(crate) fn slots_key(account: &str) -> String {
    format!("{account}:s{}", part(b'c', None))
}

/// A rule, its quota, and the key whose account is charged.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) rule: RuleName,
    pub(crate) key: Key,
    pub(crate) quotas: Arc<[Quota]>,
}

impl Account {
    /// Returns the account of `key` under the rule `default`.
    pub(crate) fn new(key: impl Into<Key>, quota: Quota) -> Self {
        Self { rule: RuleName::default(), key: key.into(), quotas: Arc::new([quota]) }
    }

    pub(crate) fn charge(&self, cost: u32) -> Charge<'_> {
        Charge::new(self.rule, &self.key, &self.quotas).with_cost(cost)
    }

    pub(crate) async fn take<S>(&self, store: &S, cost: u32) -> Result<Decision, RedisError>
    where
        S: Store<Error = RedisError>,
    {
        store.take(&[self.charge(cost)]).await
    }

    /// Returns `true` if a unit passes.
    pub(crate) async fn passes<S: Store<Error = RedisError>>(&self, store: &S) -> bool {
        self.take(store, 1).await.unwrap_or_else(|error| panic!("{error}")).is_allowed()
    }

    /// Returns the number of units that pass, of `of`, taken one by one.
    pub(crate) async fn passed<S: Store<Error = RedisError>>(&self, store: &S, of: u32) -> u32 {
        let mut passed = 0;
        for _ in 0..of {
            passed += u32::from(self.passes(store).await);
        }
        passed
    }

    /// Returns the units left.
    pub(crate) async fn left<S: Store<Error = RedisError>>(&self, store: &S) -> u32 {
        let look = self.take(store, 0).await.unwrap_or_else(|error| panic!("{error}"));
        look.outcomes()[0].remaining()
    }
}

/// Returns a store that has not connected yet.
pub(crate) fn lazy(url: &str) -> RedisStore {
    RedisStore::connect(url).lazy().expect("an address")
}

pub(crate) async fn connect(url: &str) -> RedisStore {
    RedisStore::connect(url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a separate connection for the test.
pub(crate) async fn raw(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("an address");
    client.get_multiplexed_async_connection().await.expect("connects")
}

/// Returns all keys of a server, and the milliseconds until they expire (below zero: no expiry).
pub(crate) async fn keys(connection: &mut MultiplexedConnection) -> Vec<(Vec<u8>, i64)> {
    let (mut cursor, mut found) = (0_u64, Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("COUNT").arg(1_000);
        let names: Vec<Vec<u8>>;
        (cursor, names) = scan.query_async(connection).await.expect("keys");
        for name in names {
            let left = redis::cmd("PTTL").arg(&name).query_async(connection).await;
            found.push((name, left.expect("a time")));
        }
        if cursor == 0 {
            // Drops keys that expired in between.
            found.retain(|(_, left)| *left != -2);
            return found;
        }
    }
}

/// Returns a store on a cluster that is not connected yet.
pub(crate) fn on_cluster(cluster: &Cluster) -> RedisBuilder<ClusterLink> {
    let urls = cluster.urls();
    RedisStore::cluster(&urls.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Connects a store with readable keys to a cluster.
pub(crate) async fn cluster_store(cluster: &Cluster) -> RedisStore<ClusterLink> {
    let store = on_cluster(cluster).readable_keys().await;
    store.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a store on the master of sentinels that is not connected yet.
pub(crate) fn on_sentinels(sentinels: &Sentinels) -> RedisBuilder {
    let urls = sentinels.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    RedisStore::sentinel(&urls, Sentinels::NAME)
}
