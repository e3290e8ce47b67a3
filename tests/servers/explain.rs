//! Explanations by Redis and a cluster, which equal those of the embedded store.

use std::time::Duration;

use tower::BoxError;
use tower_sluice::{
    Algorithm, Key, Quota, RedisStore, StoreExt,
    explain::Explanation,
    rule::RuleName,
    store::Charge,
    testing::{FakeClock, Subject},
};

use crate::{
    accounts::on_cluster,
    servers::{Cluster, Flavour, Server},
};

/// Returns the explanations of a sequence of looks and charges.
async fn said<S: Subject<Store: Sync>>(mut subject: S) -> Vec<String> {
    let store = subject.open();
    subject.set(Duration::from_secs(1_000_000));
    let by = |algorithm| Quota::per_minute(6).with_algorithm(algorithm);
    let quotas = [
        Quota::per_second(5).with_burst(20).with_initial(10),
        by(Algorithm::TokenBucket).with_soft(1),
        by(Algorithm::FixedWindow { carry_over: 2, paced: true }),
        by(Algorithm::SlidingWindow { buckets: 6 }),
        by(Algorithm::SlidingLog),
    ];
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    let name = |name| RuleName::new(name).expect("a name");
    let mut said = Vec::new();
    for cost in [1, 3, 9, 2, 4, 0] {
        let charges = [
            Charge::new(name("user"), &alice, &quotas).with_cost(cost),
            Charge::new(name("other"), &bob, &quotas[..1]).with_cost(cost).with_headroom(2),
            Charge::new(name("trial"), &bob, &quotas[1..2]).with_cost(cost).with_report_only(true),
        ];
        let mut allowed = false;
        for _ in 0..3 {
            let would = Explanation::look(&store, &charges).await.map_err(Into::<BoxError>::into);
            let would = would.expect("a look");
            allowed = would.is_allowed();
            said.push(would.to_string());
        }
        // A cluster undoes denied charges a moment later, and the next look would still see them.
        if allowed {
            let is = store.take(&charges).await.map_err(Into::<BoxError>::into);
            said.push(is.expect("a decision").explain().charges(&charges).to_string());
        }
    }
    said
}

fn same(said: &[String], expected: &[String]) {
    assert_eq!(said.len(), expected.len());
    said.iter().zip(expected).for_each(|(said, expected)| assert_eq!(said, expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_and_a_cluster_explain_like_the_embedded_store() {
    let expected = said(FakeClock::new()).await;
    assert!(expected.windows(3).any(|same| same[0] == same[1] && same[1] == same[2]));
    let server = Server::redis().await;
    same(&said(RedisStore::connect(server.url()).await.expect("a store")).await, &expected);

    let cluster = Cluster::start(Flavour::Redis).await;
    let sharded = on_cluster(&cluster).await.expect("a store");
    same(&said(sharded).await, &expected);
}
