//! Slots on the servers of a cluster, of which one does not reply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{future::join_all, poll};
use redis::{Arg, Cmd};
use tokio::time::sleep;
use tower_sluice::{
    Key, Quota, RedisStore, StoreExt,
    middleware::Slot,
    store::{Charge, ClusterLink},
};

use crate::{
    accounts::{Account, address, on_cluster, raw, rule},
    fated::{Fate, Fated},
    servers::{Cluster, Flavour, Server, eventually},
    slots::{held, until_held},
};

const TTL: Duration = Duration::from_secs(1);

async fn store(cluster: &Cluster) -> RedisStore<ClusterLink> {
    let store = on_cluster(cluster).readable_keys().slot_ttl(TTL).await;
    store.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns accounts of one slot: some on the first server, and some on the others.
async fn accounts(cluster: &Cluster, first: usize, others: usize) -> [Vec<Account>; 2] {
    let (mut all, mut names) = ([Vec::new(), Vec::new()], (0..).map(|n| format!("key{n}")));
    while all[0].len() < first || all[1].len() < others {
        let name = names.next().expect("a name");
        let is_other = cluster.hash_slot_of(&address("default", &name)).await >= 16_384 / 3;
        all[usize::from(is_other)].push(Account::new(name, Quota::concurrent(1)));
    }
    all[0].truncate(first);
    all[1].truncate(others);
    all
}

async fn hold(store: &RedisStore<ClusterLink>, accounts: &[Account]) -> Vec<Slot> {
    let taken = join_all(accounts.iter().map(|account| account.take(store, 1))).await;
    let slots = taken.into_iter().map(|it| it.expect("a decision").take_slot().expect("a slot"));
    slots.collect()
}

/// Freezes the first server, which has no replica any more.
fn freeze_first(cluster: &mut Cluster) {
    cluster.node_mut(3).kill();
    cluster.nodes()[0].stop();
}

#[tokio::test]
async fn a_frozen_server_ends_no_slots_on_the_others() {
    for frozen in [1, 100] {
        let mut cluster = Cluster::start(Flavour::Redis).await;
        let (store, other) = (store(&cluster).await, store(&cluster).await);
        let [first, others] = accounts(&cluster, frozen, 20).await;
        let _frozen = hold(&store, &first).await;
        let running = hold(&store, &others).await;
        freeze_first(&mut cluster);
        sleep(TTL * 5).await;
        let mut lost = 0;
        for slot in &running {
            lost += u32::from(poll!(Box::pin(slot.lost())).is_ready());
        }
        assert_eq!(lost, 0, "of 20, beside {frozen} on the frozen server");
        for account in &others {
            assert_eq!(held(&other, account).await, 1, "beside {frozen}");
        }
    }
}

#[tokio::test]
async fn a_frozen_server_delays_no_frees_on_the_others() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    let (store, other) = (store(&cluster).await, store(&cluster).await);
    let [first, others] = accounts(&cluster, 10, 5).await;
    let mut frozen = hold(&store, &first).await;
    let mut running = hold(&store, &others).await;
    freeze_first(&mut cluster);
    // A busy machine delays some of them.
    eventually("a free at once, after one for the frozen server", async || {
        let start = Instant::now();
        drop(frozen.pop().expect("ten attempts"));
        for (slot, account) in running.drain(..).zip(&others) {
            sleep(Duration::from_millis(50)).await;
            drop(slot);
            until_held(&other, account, 0).await;
        }
        let took = start.elapsed();
        running = hold(&store, &others).await;
        // A call waits for a second.
        (took < Duration::from_millis(800)).then_some(())
    })
    .await;
}

/// A command for an account of the rule `many`.
fn is_for_many(command: &Cmd) -> bool {
    command.args_iter().any(|arg| match arg {
        Arg::Simple(text) => String::from_utf8_lossy(text).contains("many"),
        _ => false,
    })
}

/// A slot, and rates of which the second denies, have a call each. The undo call of the first rate
/// is not answered.
#[tokio::test]
async fn a_denied_request_frees_its_slot_before_its_charges_are_undone() {
    let server = Server::redis().await;
    let (inner, answers) = (raw(&server.url()).await, Arc::new(AtomicU32::new(1_000)));
    let left = answers.clone();
    let less = |left: u32| left.checked_sub(1);
    let partial = Fated::new(inner, move |command| {
        let is_last = is_for_many(command) && left.fetch_update(SeqCst, SeqCst, less).is_err();
        if is_last { Fate::HasNoReply } else { Fate::Works }
    });
    let store = RedisStore::sharded(partial).readable_keys().lazy().expect("a store");
    let other = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
    let (key, slots, many, few) =
        (Key::from("a"), [Quota::concurrent(1)], [Quota::per_day(9)], [Quota::per_day(1)]);
    let charges = [("slots", &slots), ("many", &many), ("few", &few)];
    let charges = charges.map(|(name, quotas)| Charge::new(rule(name), &key, quotas));
    let account = Account { rule: rule("slots"), ..Account::new("a", slots[0]) };
    assert!(store.take(&charges).await.expect("a decision").is_allowed());
    until_held(&other, &account, 0).await;
    // The server then has the script that undoes charges.
    assert!(!store.take(&charges).await.expect("a decision").is_allowed());
    until_held(&other, &account, 0).await;
    answers.store(1, SeqCst);
    assert!(!store.take(&charges).await.expect("a decision").is_allowed());
    assert_eq!(answers.load(SeqCst), 0, "the rate was charged");
    until_held(&other, &account, 0).await;
}
