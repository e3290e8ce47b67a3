//! The number of calls on a cluster: one for each hash slot of a request, and less if many callers wait.

use futures::future::join_all;
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt,
    rule::RuleName,
    store::{Charge, RedisError},
};

use crate::{
    accounts::{Account, Dice, LONG, address, keys, list_key, on_cluster, quotas, raw, rule},
    servers::{Cluster, Flavour, Server, eventually},
};

/// Returns the script calls of all servers so far.
async fn calls(cluster: &Cluster) -> u32 {
    join_all(cluster.nodes().iter().map(Server::script_calls)).await.into_iter().sum()
}

/// Returns the number of times that a server has read from its connections.
async fn reads(server: &Server) -> u32 {
    let count = server.info("stats", "total_reads_processed").await;
    count.and_then(|count| count.parse().ok()).expect("a number")
}

fn rules() -> [RuleName; 3] {
    ["second", "minute", "day"].map(rule)
}

fn charges<'a>(key: &'a Key, quotas: &'a [[Quota; 1]; 3]) -> [Charge<'a>; 3] {
    let rules = rules();
    [0, 1, 2].map(|at| Charge::new(rules[at], key, &quotas[at]))
}

/// Returns the units left in each account.
async fn left<S: Store<Error = RedisError>>(store: &S, charges: &[Charge<'_>]) -> Vec<u32> {
    let looks: Vec<_> = charges.iter().map(|charge| charge.with_cost(0)).collect();
    let look = store.take(&looks).await.expect("a look");
    look.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

const LIMITS: [[Quota; 1]; 3] =
    [[Quota::per_day(900)], [Quota::per_day(30)], [Quota::per_day(600)]];

#[tokio::test]
async fn rules_of_one_key_with_a_hash_tag_are_one_call_and_nothing_is_undone() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let store = on_cluster(&cluster).hash_tag_by_key().await.expect("a store");
        for name in ["one", "two", "three"] {
            let key = Key::from(name);
            let charges = charges(&key, &LIMITS);
            let first = store.take(&charges).await.expect("a decision");
            let before = calls(&cluster).await;
            let mut passed = 1;
            for _ in 0..40 {
                passed += u32::from(store.take(&charges).await.expect("a decision").is_allowed());
            }
            assert_eq!((passed, calls(&cluster).await - before), (30, 40), "{flavour:?}");
            assert_eq!(left(&store, &charges).await, [870, 0, 570]);
            let before = calls(&cluster).await;
            store.undo(&charges, &first, None);
            let back = async || (left(&store, &charges).await == [871, 1, 571]).then_some(());
            eventually("the units are back", back).await;
            let looks = async || calls(&cluster).await;
            println!("{flavour:?}: {} calls for an undo and the looks", looks().await - before);
        }
    }
}

#[tokio::test]
async fn a_hash_tag_is_the_hash_of_the_key_alone() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).hash_tag_by_key().await.expect("a store");
    for readable in [false, true] {
        let builder = store.reopen();
        let builder = if readable { builder.readable_keys() } else { builder };
        let store = builder.lazy().expect("a store");
        for (name, quota) in quotas(9, LONG) {
            assert_eq!(Account::new(name, quota).passed(&store, 2).await, 2, "{name}");
        }
    }
    let mut found = Vec::new();
    for node in &cluster.nodes()[..3] {
        found.extend(keys(&mut raw(&node.url()).await).await);
    }
    // Each account has a key, and the log has a list as well.
    assert_eq!(found.len(), 2 * 7);
    for (name, left) in found {
        let name = String::from_utf8(name).expect("text");
        let (tag, rest) =
            name.strip_prefix("sluice:4:{").and_then(|it| it.split_once("}:")).expect("a tag");
        assert!(left >= 0 && !tag.is_empty() && !rest.is_empty(), "{name}");
        if let Some(key) = tag.strip_prefix("%02") {
            let list = key == "sliding-log" && rest == list_key("default", LONG);
            assert!(rest == "default" || list, "{name}");
        }
    }
}

#[tokio::test]
async fn rules_of_one_key_are_charged_all_or_none_while_their_hash_slot_moves() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).readable_keys().hash_tag_by_key();
    let store = store.await.expect("a store");
    let limits = [9, 12, 15].map(|units| [Quota::per_day(units)]);
    let key = Key::from("moving");
    let charges = charges(&key, &limits);
    let place = "sluice:4:{%02moving}:day";
    let (from, hash_slot) = (cluster.master_of(place).await, cluster.hash_slot_of(place).await);
    let passes = async |charges: &[Charge<'_>]| {
        let decision: Result<Decision, RedisError> = store.take(charges).await;
        decision.unwrap_or_else(|error| panic!("{error}")).is_allowed()
    };
    // One of the accounts is there before the migration, and the others are not.
    assert!(passes(&charges[..1]).await);
    let migration = cluster.begin_migration(hash_slot, (from + 1) % 3).await;
    assert!(passes(&charges).await && passes(&charges).await);
    let undone = store.take(&charges).await.expect("a decision");
    assert!(undone.is_allowed());
    store.undo(&charges, &undone, None);
    let looks = charges.map(|charge| charge.with_cost(0));
    let back = async || {
        let peek = store.peek(&looks).await.expect("a peek");
        let left: Vec<_> = peek.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        (left == [6, 10, 13]).then_some(())
    };
    eventually("the units are back", back).await;
    assert!(migration.move_keys().await > 0);
    assert!(passes(&charges).await);
    migration.finish().await;
    assert_eq!(left(&store, &charges).await, [5, 9, 12]);
    let many = charges.map(|charge| charge.with_cost(6));
    assert!(!passes(&many).await);
    assert_eq!(left(&store, &charges).await, [5, 9, 12]);
}

#[tokio::test]
async fn callers_of_a_hot_key_share_calls_and_get_the_limit_exactly() {
    const CALLERS: u32 = 400;
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        for (tagged, parts) in [(false, 3), (true, 1)] {
            let store = on_cluster(&cluster);
            let store = if tagged { store.hash_tag_by_key() } else { store };
            let store = store.await.expect("a store");
            let limits = [900, 300, 600].map(|units| [Quota::per_day(units)]);
            let key = Key::from("hot");
            let charges = charges(&key, &limits);
            // The first rule alone allows all callers.
            let before = calls(&cluster).await;
            let takes = (0..CALLERS).map(|_| store.take(&charges[..1]).into_future());
            let all = join_all(takes).await;
            assert!(all.iter().all(|one| one.as_ref().is_ok_and(Decision::is_allowed)));
            let made = calls(&cluster).await - before;
            println!("{flavour:?}, one rule: {made} calls of {CALLERS} decisions");
            // One caller has a call of its own.
            assert!(made <= 1 + 2 + CALLERS / 64, "{flavour:?}: {made} calls");

            let before = calls(&cluster).await;
            let takes = (0..CALLERS).map(|_| store.take(&charges).into_future());
            let passed = join_all(takes).await.into_iter();
            let passed = passed.filter(|one| one.as_ref().is_ok_and(Decision::is_allowed)).count();
            assert_eq!(passed, 300, "{flavour:?}: the limit of the second rule");
            let exact = async || (left(&store, &charges).await == [200, 0, 300]).then_some(());
            eventually("only allowed requests are charged", exact).await;
            let made = calls(&cluster).await - before;
            println!("{flavour:?}, three rules, tagged: {tagged}: {made} calls");
            if tagged {
                assert!(made <= 1 + 2 + CALLERS / 64 + 2, "{flavour:?}: {made} calls");
            }
            assert!(parts == 1 || made < 3 * CALLERS, "{flavour:?}: {made} calls");
        }
    }
}

#[tokio::test]
async fn the_calls_of_a_request_to_one_server_are_one_write() {
    const DECISIONS: u32 = 200;
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).readable_keys().await.expect("a store");
    let limits = [[Quota::per_day(900)]; 3];
    let mut dice = Dice(1);
    let key = loop {
        let name = format!("key{}", dice.roll());
        let places = rules().map(|rule| address(rule.as_str(), &name));
        let mut masters = Vec::new();
        for place in &places {
            masters.push(cluster.master_of(place).await);
        }
        if masters == [0; 3] {
            break Key::from(name);
        }
    };
    let charges = charges(&key, &limits);
    let node = &cluster.nodes()[0];
    // The server then has the script.
    assert!(store.take(&charges).await.expect("a decision").is_allowed());
    let (calls_before, before) = (node.script_calls().await, reads(node).await);
    for _ in 0..DECISIONS {
        assert!(store.take(&charges).await.expect("a decision").is_allowed());
    }
    let made = reads(node).await - before;
    println!("{made} reads of {DECISIONS} decisions");
    assert_eq!(node.script_calls().await - calls_before, 3 * DECISIONS);
    // Other nodes and the commands of the test are read as well.
    assert!(made < DECISIONS * 3 / 2, "{made} reads");
}
