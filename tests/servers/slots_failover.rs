//! Slots on servers that are lost while requests hold them and wait for them: no limit is exceeded by
//! more than the lost takes, and slots that the replica has are renewed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{future::join_all, poll};
use redis::aio::ConnectionLike;
use tokio::time::{sleep, timeout};
use tower_sluice::{Limiter, Quota, RedisStore, StoreExt};

use crate::{
    accounts::{Account, address, on_cluster, on_sentinels},
    servers::{Cluster, Flavour, Sentinels, Server, eventually},
    slots::{held, until_held},
};

/// Longer than a promotion, or slots would end before they are renewed.
const TTL: Duration = Duration::from_secs(9);
const LIMIT: u32 = 8;
const TIMEOUT: Duration = Duration::from_millis(100);
/// The keys of which each holds one slot.
const KEYS: u32 = 60;

/// The requests that run.
#[derive(Default)]
struct Running {
    now: AtomicU32,
    most: AtomicU32,
    all: AtomicU32,
    is_over: AtomicBool,
}

impl Running {
    async fn until_more(&self) {
        let before = self.all.load(SeqCst);
        let more = async || (self.all.load(SeqCst) >= before + 50).then_some(());
        eventually("50 more requests run", more).await;
    }
}

/// Requests of two processes take slots of one key, or wait for them, while their server is lost.
async fn contend(stores: [RedisStore; 2], strike: impl AsyncFnOnce()) {
    let account = Account::new("hot", Quota::concurrent(LIMIT));
    let running = Arc::new(Running::default());
    let tasks = (0..32_u64).map(|n| {
        let store = stores[usize::from(n % 2 == 0)].clone().timeout(TIMEOUT);
        let limiter = Limiter::named("default", store);
        let (running, account) = (running.clone(), account.clone());
        tokio::spawn(async move {
            while !running.is_over.load(SeqCst) {
                let waits = limiter.try_until_ready("hot", &account.quotas, 1);
                let Ok(Ok(mut decision)) = timeout(TIMEOUT * 10, waits).await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let slot = decision.take_slot();
                let now = running.now.fetch_add(1, SeqCst) + 1;
                running.most.fetch_max(now, SeqCst);
                running.all.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(20 + n * 3)).await;
                running.now.fetch_sub(1, SeqCst);
                drop(slot);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    running.until_more().await;
    assert!(running.most.load(SeqCst) <= LIMIT, "before the fault");
    strike().await;
    running.until_more().await;
    running.is_over.store(true, SeqCst);
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    let most = running.most.load(SeqCst);
    assert!(most <= 2 * LIMIT, "{most} ran at once");
    until_held(&stores[0], &account, 0).await;
}

#[tokio::test]
async fn a_restarted_server_has_lost_at_most_one_limit() {
    for flavour in Flavour::ALL {
        let mut server = Server::start(flavour, &[]).await;
        let url = server.url();
        let connect = async || RedisStore::connect(&url).slot_ttl(TTL).await.expect("a store");
        contend([connect().await, connect().await], async || server.restart().await).await;
    }
}

#[tokio::test]
async fn a_killed_master_of_sentinels_has_lost_at_most_one_limit() {
    let mut sentinels = Sentinels::start(Flavour::Redis).await;
    let connect = async || {
        let store = on_sentinels(&sentinels).slot_ttl(TTL);
        store.await.expect("a store")
    };
    contend([connect().await, connect().await], async || {
        sentinels.kill_master().await;
        sentinels.master().await;
    })
    .await;
}

/// A process holds a slot of many keys for longer than the time to live, and another one looks.
async fn keep<C>(stores: [RedisStore<C>; 2], strike: impl AsyncFnOnce())
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let [one, two] = stores;
    let keys = (0..KEYS).map(|n| Account::new(format!("k{n}"), Quota::concurrent(1)));
    let (accounts, mut slots): (Vec<_>, _) = (keys.collect(), Vec::new());
    for account in &accounts {
        let mut taken = account.take(&one, 1).await.expect("a decision");
        slots.push(taken.take_slot().expect("a slot"));
    }
    // The replica has them.
    sleep(Duration::from_secs(1)).await;
    strike().await;
    sleep(TTL).await;
    for (account, slot) in accounts.iter().zip(&slots) {
        let look = async || account.take(&two, 0).await.ok();
        drop(eventually("an answer", look).await);
        assert_eq!(held(&two, account).await, 1, "{:?}", account.key);
        assert!(poll!(Box::pin(slot.lost())).is_pending(), "{:?}", account.key);
    }
}

#[tokio::test]
async fn a_promoted_replica_of_a_cluster_has_all_slots() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    let connect = async || {
        let store = on_cluster(&cluster).readable_keys().slot_ttl(TTL);
        store.await.expect("a store")
    };
    let first = address("default", "k0");
    keep([connect().await, connect().await], async || {
        cluster.kill_master_of(&first).await;
        cluster.master_of(&first).await;
    })
    .await;
}
