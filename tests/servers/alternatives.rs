//! Alternatives in several hash slots of a cluster, of which a server is lost, and beside report-only charges.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use futures::future::join_all;
use tower_sluice::{
    Key, Quota, Store, StoreExt,
    rule::{Choice, RuleName},
    store::{Charge, RedisError},
    testing,
};

use crate::{
    accounts::{LONG, address, connect, on_cluster, quotas, rule},
    servers::{Cluster, Flavour, Server, eventually},
    support::choices::Choosing,
};

/// Returns the rules of three alternatives and of a site.
fn rules() -> [RuleName; 4] {
    ["slots", "plan", "credits", "site"].map(rule)
}

fn charges<'a>(key: &'a Key, quotas: &'a [[Quota; 1]; 4], cost: u32) -> [Charge<'a>; 4] {
    [0, 1, 2, 3].map(|at| Charge::new(rules()[at], key, &quotas[at]).with_cost(cost))
}

/// Returns a choice between the first three charges, beside the last one.
fn choosing<'a>(charges: [Charge<'a>; 4]) -> Choosing<'a> {
    Choosing { charges: charges.to_vec(), choices: vec![Choice::new(0, [1, 1, 1])] }
}

/// Charges one unit from many tasks. Returns how many times each rule was charged.
async fn charged<S>(store: &S, key: &Key, quotas: &[[Quota; 1]; 4], tasks: u32) -> [u64; 4]
where
    S: Store<Error = RedisError>,
{
    let counts = Arc::new([(); 4].map(|()| AtomicU64::new(0)));
    let takes = (0..tasks).map(|_| async {
        let all = choosing(charges(key, quotas, 1));
        let taken = testing::take(store, all.all()).await;
        let decision = taken.unwrap_or_else(|e| panic!("{e}")).decision;
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
    [0, 1, 2, 3].map(|at| u64::from(quotas[at][0].limit() - look.outcomes()[at].remaining()))
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
async fn alternatives_in_several_hash_slots_of_a_cluster_are_exact() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).await.expect("a store");
    are_exact(&store).await;
    // With a hash tag, one call decides.
    let tagged = store.reopen().prefix("tagged").hash_tag_by_key().lazy().expect("a store");
    are_exact(&tagged).await;
}

/// A server is needed only by the requests that reach its alternative, and its failure permits none.
#[tokio::test]
async fn a_lost_server_fails_only_the_requests_that_reach_its_alternative() {
    let mut cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).readable_keys().await.expect("a store");
    let names = rules();
    let quotas = [[Quota::per_day(3)], [Quota::per_day(9)]];
    let mut keys = (0..60).map(|number| format!("key{number}"));
    let name = loop {
        let name = keys.next().expect("a key with accounts on two servers");
        let of = async |rule: usize| cluster.master_of(&address(names[rule].as_str(), &name)).await;
        if of(1).await != of(2).await {
            break name;
        }
    };
    let key = Key::from(name.as_str());
    let either = [0, 1].map(|at| Charge::new(names[at + 1], &key, &quotas[at]));
    let either = Choosing::one_of(&either);
    assert!(testing::take(&store, either.all()).await.expect("a decision").decision.is_allowed());
    cluster.kill_master_of(&address(names[2].as_str(), &name)).await;
    for _ in 0..2 {
        let taken = testing::take(&store, either.all()).await.expect("the plan's server is well");
        assert!(taken.decision.is_allowed(), "{taken:?}");
    }
    for _ in 0..10 {
        let taken = testing::take(&store, either.all()).await;
        assert!(!taken.is_ok_and(|taken| taken.decision.is_allowed()), "the credits are lost");
    }
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
