//! Accounts on several servers of a cluster, charged all or none.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use futures::future::join_all;
use tower_sluice::{
    Algorithm, Key, Quota, RedisStore, StoreExt,
    rule::RuleName,
    store::{Charge, RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, Dice, LONG, address, cluster_store, quotas, rule},
    servers::{Cluster, Flavour, eventually},
};

/// Returns the names of three rules whose accounts of `key` are on three servers.
async fn apart(cluster: &Cluster, key: &str) -> [RuleName; 3] {
    let mut found = [None; 3];
    for number in 0..60 {
        let name = format!("rule{number}");
        let at = cluster.master_of(&address(&name, key)).await;
        found[at].get_or_insert(rule(&name));
        if let [Some(one), Some(two), Some(three)] = found {
            return [one, two, three];
        }
    }
    panic!("all are on the same servers");
}

#[tokio::test]
async fn rules_on_three_servers_are_charged_all_or_none_and_nothing_leaks() {
    const LIMITS: [u32; 3] = [120, 80, 100];
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = cluster_store(&cluster).await;
    for (at, (name, _)) in quotas(1, LONG).into_iter().enumerate() {
        let key = Key::from(name);
        let rules = apart(&cluster, name).await;
        let quotas = LIMITS.map(|limit| [quotas(limit, LONG)[at].1]);
        let charges = [0, 1, 2].map(|rule: usize| Charge::new(rules[rule], &key, &quotas[rule]));
        let tasks = (0..48).map(async |task| {
            let (mut dice, mut passed) = (Dice(task), 0);
            for _ in 0..4 {
                let cost = 1 + u32::from(dice.below(3) == 0);
                let charges = charges.map(|charge| charge.with_cost(cost));
                let decision = store.take(&charges).await.unwrap_or_else(|e| panic!("{e}"));
                passed += if decision.is_allowed() { cost } else { 0 };
            }
            passed
        });
        let passed: u32 = join_all(tasks).await.into_iter().sum();
        let charged = async || {
            let looks = charges.map(|charge| charge.with_cost(0));
            let look = store.take(&looks).await.expect("a look");
            let left = look.outcomes().iter().map(|outcome| outcome.remaining());
            left.zip(LIMITS).map(|(left, limit)| limit - left).collect::<Vec<_>>()
        };
        let most = LIMITS[1];
        println!("{name}: {passed} of {most} passed");
        assert!(passed <= most && passed >= most * 3 / 4, "{name}: {passed}");
        let exact = async || (charged().await == [passed; 3]).then_some(());
        eventually("each account shows the allowed units", exact).await;
        // The remaining units pass at once, and no more.
        let rest = charges.map(|charge| charge.with_cost(most - passed));
        assert!(store.take(&rest).await.expect("a decision").is_allowed(), "{name}");
        assert!(!store.take(&charges).await.expect("a decision").is_allowed(), "{name}");
        let exact = async || (charged().await == [most; 3]).then_some(());
        eventually("a denial charged no account", exact).await;
    }
}

#[tokio::test]
async fn a_function_opens_one_connection_to_each_server() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let opened = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = opened.clone();
    let urls = cluster.urls();
    let seed = urls[0].rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let store = RedisStore::cluster_from_connector(&[("127.0.0.1", seed)], move |host, port| {
        let is_new = seen.lock().expect("no panic").insert((host.clone(), port));
        async move {
            assert!(is_new, "{host}:{port} has a connection");
            let client = redis::Client::open(format!("redis://{host}:{port}"))?;
            client.get_multiplexed_async_connection().await
        }
    });
    let store = store.lazy().expect("a seed");
    for key in 0..60_u32 {
        assert!(Account::new(Key::from(key), Quota::per_day(1)).passes(&store).await);
    }
    let opened: Vec<_> = opened.lock().expect("no panic").iter().map(|(_, port)| *port).collect();
    assert_eq!(opened.len(), 3, "{opened:?}");
    let error = RedisStore::cluster_from_connector(&[], |_, _| async { unreachable!() });
    assert_eq!(error.lazy().expect_err("no seed").kind(), Kind::Config);
}

#[tokio::test]
async fn a_denial_is_undone_even_if_its_caller_leaves() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = cluster_store(&cluster).await;
    let rules = apart(&cluster, "a").await;
    let (key, few, many) = (Key::from("a"), [Quota::per_day(1)], [Quota::per_day(1_000)]);
    let [one, two, three] = rules;
    let charges =
        [(one, &many), (two, &few), (three, &many)].map(|(rule, q)| Charge::new(rule, &key, q));
    assert!(store.take(&charges).await.expect("a decision").is_allowed());
    let mut dice = Dice(5);
    for _ in 0..200 {
        let leaves = async {
            for _ in 0..dice.below(8) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = leaves => {}
            decision = store.take(&charges).into_future() => {
                assert!(!decision.expect("a decision").is_allowed());
            }
        }
    }
    let exact = async || {
        let look = store.take(&charges.map(|charge| charge.with_cost(0))).await.expect("a look");
        let left: Vec<_> = look.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        (left == [999, 0, 999]).then_some(())
    };
    eventually("only the first request is charged", exact).await;
}

#[tokio::test]
async fn accounts_keep_their_units_while_their_hash_slots_move() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let store = cluster_store(&cluster).await;
        for (name, quota) in quotas(9, LONG) {
            let account = Account::new(name, quota);
            let place = address("default", name);
            assert_eq!(account.passed(&store, 2).await, 2);
            let (from, hash_slot) =
                (cluster.master_of(&place).await, cluster.hash_slot_of(&place).await);
            cluster.migrate_hash_slot(hash_slot, (from + 1) % 3).await;
            assert_eq!(account.left(&store).await, 7, "{name}");
            assert_eq!(account.passed(&store, 2).await, 2);
            // During the migration, before and after its keys have moved.
            let migration = cluster.begin_migration(hash_slot, from).await;
            assert_eq!(account.passed(&store, 2).await, 2, "{name}");
            assert!(migration.move_keys().await > 0);
            assert_eq!(account.passed(&store, 2).await, 2, "{name}");
            assert_eq!(account.left(&store).await, 1, "{name}");
            migration.finish().await;
            assert_eq!(account.passed(&store, 2).await, 1, "{name}");
        }
    }
}

#[tokio::test]
async fn a_new_account_in_a_moving_hash_slot_opens_at_the_destination() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = cluster_store(&cluster).await;
    for (name, quota) in quotas(9, LONG) {
        let key = format!("{name}-new");
        let (account, place) = (Account::new(&key, quota), address("default", &key));
        let (from, hash_slot) =
            (cluster.master_of(&place).await, cluster.hash_slot_of(&place).await);
        let migration = cluster.begin_migration(hash_slot, (from + 1) % 3).await;
        if quota.algorithm() == Algorithm::SlidingLog {
            // A log has two keys, and Redis cannot create two keys in one command in a migrating
            // hash slot.
            let error: RedisError = account.take(&store, 1).await.expect_err("not yet");
            assert_eq!(error.kind(), Kind::Cluster, "{error}");
        } else {
            assert_eq!(account.passed(&store, 2).await, 2, "{name}");
        }
        migration.move_keys().await;
        migration.finish().await;
        let before = account.left(&store).await;
        assert_eq!(account.passed(&store, 10).await, before, "{name}");
    }
}
