//! Alternatives on Redis, Valkey and a cluster: with slots, and with many callers at once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use futures::future::join_all;
use tower_sluice::{
    Decision, Key, Quota, RedisStore, Store, StoreExt,
    decision::Outcome,
    rule::RuleName,
    store::{Charge, RedisError},
    testing::FakeClock,
};

use crate::{
    accounts::{Dice, LONG, address, connect, quotas, raw, rule},
    servers::{Cluster, Flavour, Server, eventually},
};

/// Returns the rules of three alternatives and of a site.
fn rules() -> [RuleName; 4] {
    ["slots", "plan", "credits", "site"].map(rule)
}

fn charges<'a>(key: &'a Key, quotas: &'a [[Quota; 1]; 4], cost: u32) -> [Charge<'a>; 4] {
    [0, 1, 2, 3].map(|at| {
        let charge = Charge::new(rules()[at], key, &quotas[at]).with_cost(cost);
        charge.with_group(u8::from(at < 3))
    })
}

/// Returns the parts of a decision that two stores have in common.
fn parts(decision: &Decision) -> impl PartialEq + std::fmt::Debug + use<> {
    let row = |it: &Outcome| (it.remaining(), it.held(), it.is_denied(), it.is_passed_over());
    (decision.is_allowed(), decision.outcomes().iter().map(row).collect::<Vec<_>>())
}

/// Random requests that hold slots or not, on a server and in the embedded store.
#[tokio::test]
async fn random_requests_for_slots_or_rates_equal_the_embedded_store() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let redis = connect(&server.url()).await;
        for (name, plan) in quotas(3, LONG) {
            let (local, key, mut dice) = (FakeClock::new().store(64), Key::from(name), Dice(7));
            let quotas =
                [[Quota::concurrent(2)], [plan], [Quota::per_day(9)], [Quota::per_day(40)]];
            let mut held = Vec::new();
            for _ in 0..60 {
                if dice.below(4) == 0 && !held.is_empty() {
                    let held_count = u32::try_from(held.len()).expect("small");
                    drop(held.swap_remove(dice.below(held_count) as usize));
                }
                let cost = dice.below(4);
                let charges = charges(&key, &quotas, cost);
                let own = local.take(&charges).now();
                let decision = redis.take(&charges).await.expect("a decision");
                assert_eq!(parts(&own), parts(&decision), "{flavour:?}, {name}, cost {cost}");
                held.push((own, decision));
            }
        }
    }
}

/// Charges one unit from many tasks. Returns how many times each rule was charged.
async fn charged<S>(store: &S, key: &Key, quotas: &[[Quota; 1]; 4], tasks: u32) -> [u64; 4]
where
    S: Store<Error = RedisError>,
{
    let counts = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
    let takes = (0..tasks).map(|_| async {
        let decision = store.take(&charges(key, quotas, 1)).await.unwrap_or_else(|e| panic!("{e}"));
        let outcomes =
            decision.outcomes().iter().filter(|it| decision.is_allowed() && !it.is_passed_over());
        for outcome in outcomes {
            let at = rules().iter().position(|rule| *rule == outcome.rule()).expect("a rule");
            counts[at].fetch_add(1, SeqCst);
        }
        decision
    });
    let _held = join_all(takes).await;
    counts.each_ref().map(|count| count.load(SeqCst))
}

/// Returns the used units of each account.
async fn used<S>(store: &S, key: &Key, quotas: &[[Quota; 1]; 4]) -> [u64; 4]
where
    S: Store<Error = RedisError>,
{
    let look = store.take(&charges(key, quotas, 0)).await.unwrap_or_else(|e| panic!("{e}"));
    [0, 1, 2, 3].map(|at| u64::from(quotas[at][0].burst() - look.outcomes()[at].remaining()))
}

async fn are_exact<S>(store: &S)
where
    S: Store<Error = RedisError>,
{
    for (name, plan) in quotas(30, LONG) {
        let key = Key::from(name);
        let [slots, credits, site] = [Quota::concurrent(5), Quota::per_day(20), Quota::per_day(50)];
        let quotas = [[slots], [plan], [credits], [site]];
        let counts = charged(store, &key, &quotas, 200).await;
        assert_eq!(counts[0] + counts[1] + counts[2], counts[3], "{name}: one alternative pays");
        assert!(counts[3] <= 50 && counts[1] <= 30 && counts[2] <= 20, "{name}: {counts:?}");
        // On a cluster, charges that were undone may have denied others for one round trip.
        let mut all = counts;
        while all[3] < 50 {
            let more = charged(store, &key, &quotas, 1).await;
            assert!(more[3] == 1, "{name}: units leaked, {all:?}");
            (0..4).for_each(|at| all[at] += more[at]);
        }
        let rates = [0, all[1], all[2], 50];
        let is_exact = async || (used(store, &key, &quotas).await == rates).then_some(());
        eventually(&format!("{name}: {rates:?} are used"), is_exact).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_charge_one_alternative_each_and_no_limit_is_exceeded() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        are_exact(&connect(&server.url()).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alternatives_in_several_slots_of_a_cluster_are_exact() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let urls = cluster.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster(&urls).await.expect("a store");
    are_exact(&store).await;
    // With a hash tag, one call decides.
    let tagged = store.reopen().prefix("tagged").hash_tag_by_key().lazy().expect("a store");
    are_exact(&tagged).await;
}

/// A block of any alternative denies, wherever its account is, and nothing is charged.
#[tokio::test]
async fn a_block_of_any_alternative_denies_on_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let urls = cluster.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster(&urls).await.expect("a store");
    let quotas =
        [[Quota::per_day(9)], [Quota::per_day(9)], [Quota::per_day(9)], [Quota::per_day(9)]];
    let tagged = store.reopen().prefix("tagged").hash_tag_by_key().lazy().expect("a store");
    for store in [tagged, store] {
        for blocked in 0..4 {
            let key = Key::from(rules()[blocked].as_str());
            let all = charges(&key, &quotas, 1);
            drop(store.block(&all[blocked], LONG).await.expect("a block"));
            let answers = [store.peek(&all).await, store.take(&all).await, store.take(&all).await];
            for answer in answers {
                let denied = answer.expect("a decision");
                assert!(denied.is_blocked() && !denied.is_allowed(), "{blocked}: {denied:?}");
                assert_eq!(denied.outcomes()[0].rule(), rules()[blocked]);
            }
            let is_unused = async || (used(&store, &key, &quotas).await == [0; 4]).then_some(());
            eventually("nothing is charged", is_unused).await;
            drop(store.unblock(&all[blocked]).await.expect("no block"));
            assert!(store.take(&all).await.expect("a decision").is_allowed());
        }
    }
}

/// A call that two servers must answer, because the slot of the accounts moves.
#[tokio::test]
async fn a_block_of_any_alternative_denies_while_its_slot_moves() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let urls = cluster.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster(&urls).readable_keys().hash_tag_by_key();
    let store = store.await.expect("a store");
    let (key, place) = (Key::from("moving"), "sluice:3:{%02moving}:plan");
    let quotas = [[Quota::per_day(9)], [Quota::per_day(9)]];
    let charge = |at: usize| Charge::new(rule(["plan", "credits"][at]), &key, &quotas[at]);
    let all = [charge(0).with_group(1), charge(1).with_group(1)];
    let (from, slot) = (cluster.master_of(place).await, cluster.slot_of(place).await);
    drop(store.block(&all[0], LONG).await.expect("a block"));
    let migration = cluster.begin_migration(slot, (from + 1) % 3).await;
    for _ in 0..3 {
        let denied = store.take(&all).await.expect("a decision");
        assert!(denied.is_blocked(), "{denied:?}");
    }
    assert!(migration.move_keys().await > 0);
    migration.finish().await;
    assert!(store.take(&all).await.expect("a decision").is_blocked());
    let credits = store.take(&[charge(1).with_cost(0)]).await.expect("a look");
    assert_eq!(credits.remaining(), Some(9));
}

/// The account that does not answer may be blocked, so its failure is not a permission.
#[tokio::test]
async fn the_failure_of_an_alternative_that_is_not_needed_permits_no_blocked_key() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    let urls = cluster.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let store = RedisStore::cluster(&urls).readable_keys().await.expect("a store");
    let names = rules();
    let quotas = [[Quota::per_day(9)], [Quota::per_day(9)]];
    let mut keys = (0..60).map(|number| format!("key{number}"));
    let name = loop {
        let name = keys.next().expect("a key with accounts on two servers");
        let of = async |rule: usize| cluster.master_of(&address(names[rule].as_str(), &name)).await;
        if of(1).await != of(2).await {
            break name;
        }
    };
    let key = Key::from(name.as_str());
    let charge = |at: usize| Charge::new(names[at + 1], &key, &quotas[at]);
    let all = [charge(0).with_group(1), charge(1).with_group(1)];
    assert!(store.take(&all).await.expect("a decision").is_allowed());
    drop(store.block(&all[1], LONG).await.expect("a block"));
    cluster.kill_master_of(&address(names[2].as_str(), &name)).await;
    store.take(&all).await.expect_err("a server is lost");
    for _ in 0..10 {
        assert!(!store.take(&all).await.is_ok_and(|answer| answer.is_allowed()));
    }
    let is_undone = async || {
        let look = store.take(&[charge(0).with_cost(0)]).await.ok()?;
        (look.remaining() == Some(8)).then_some(())
    };
    eventually("the charges are undone", is_undone).await;
}

#[tokio::test]
async fn several_keys_of_one_alternative_are_unsupported() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (keys, quotas) = (["a", "b"].map(Key::from), [Quota::per_day(1)]);
    let all = keys.each_ref().map(|key| Charge::new(rule("plan"), key, &quotas).with_group(1));
    let error = store.take(&all).await.expect_err("unsupported").to_string();
    assert!(error.contains("an alternative with several keys of one rule"), "{error}");
}

#[tokio::test]
async fn a_report_only_charge_beside_one_that_limits_the_same_account_is_unsupported() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (keys, quotas) = (["a", "b"].map(Key::from), [Quota::per_day(1), Quota::per_day(2)]);
    let charges = keys.each_ref().map(|key| Charge::new(rule("user"), key, &quotas));
    let reported = charges[0].with_quota_index(1).with_report_only(true);
    for other in [charges[0].with_quota_index(0), charges[0]] {
        for all in [[other, reported], [reported, other]] {
            let error = store.take(&all).await.expect_err("unsupported").to_string();
            assert!(error.contains("a report-only charge beside another charge"), "{error}");
        }
    }
    assert!(store.take(&[reported, charges[1]]).await.expect("a decision").is_allowed());
}

/// A foreign, broken or blocked value leads to the general path, whichever of the two has it.
#[tokio::test]
async fn a_value_that_is_no_account_of_either_alternative_is_replaced() {
    let server = Server::redis().await;
    let store = RedisStore::connect(&server.url()).readable_keys().await.expect("a store");
    let mut connection = raw(&server.url()).await;
    let quotas = [[Quota::per_day(1)], [Quota::per_day(2)]];
    for (at, name) in ["plan", "credits"].into_iter().enumerate() {
        let key = Key::from(name);
        let all = [0, 1]
            .map(|at| Charge::new(rule(["plan", "credits"][at]), &key, &quotas[at]).with_group(1));
        // An instant beyond all numbers, nanoseconds above 999, and a text of the length of an account.
        let account = |us: &[u8; 7], ns: u8| [&[0; 7][..], b"g\x09\0", us, &[ns, 4]].concat();
        for broken in [account(&[255; 7], 0), account(&[1; 7], 255), vec![b'x'; 19], b"x".to_vec()]
        {
            let put = redis::cmd("SET").arg(address(name, name)).arg(&broken).to_owned();
            put.query_async::<()>(&mut connection).await.expect("it is set");
            let healed = store.healed();
            let decision = store.take(&all).await.expect("a decision");
            assert!(decision.is_allowed() && !decision.outcomes()[0].is_passed_over(), "{at}");
            assert_eq!(store.healed(), healed + 1, "{at}: {broken:?}");
            for charge in &all {
                drop(store.reset(charge).await.expect("it is reset"));
            }
        }
        drop(store.block(&all[at], LONG).await.expect("it is blocked"));
        assert!(store.take(&all).await.expect("a decision").is_blocked(), "{at}");
    }
}
