//! Rules whose quotas change, in two processes on one server.

use std::time::Duration;

use tower_sluice::{Quota, RedisStore};

use crate::{
    accounts::{Account, connect},
    servers::{Flavour, Server},
    support::changing::{known_changes, pairs, play},
};

#[tokio::test]
async fn each_quota_of_changing_plans_counts_as_if_it_were_alone() {
    for (flavour, seeds) in [(Flavour::Redis, 3), (Flavour::Valkey, 1)] {
        let server = Server::start(flavour, &[]).await;
        for pair in pairs() {
            for seed in 0..seeds {
                play(connect(&server.url()).await, pair, seed, false).await;
            }
        }
    }
}

#[tokio::test]
async fn a_change_of_a_rule_has_a_known_outcome() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        known_changes(connect(&server.url()).await).await;
    }
}

/// Uses up each quota in turn, and returns how many had units left.
async fn use_up(store: &RedisStore, quotas: &[Quota]) -> usize {
    let mut allowed = 0;
    for quota in quotas {
        let decision = Account::new("a", *quota).take(store, 5).await.expect("a decision");
        allowed += usize::from(decision.is_allowed());
    }
    allowed
}

#[tokio::test]
async fn states_of_sixteen_other_quotas_are_kept_and_those_that_end_first_are_dropped() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let quota = |hours: u64| Quota::per(5, Duration::from_secs(3_600 * hours));
    let quotas: Vec<_> = (1..=20).map(quota).collect();
    let few = &quotas[..17];
    assert_eq!((use_up(&store, few).await, use_up(&store, few).await), (17, 0));
    assert_eq!(store.dropped_states(), 0);
    assert_eq!(use_up(&store, &quotas[17..]).await, 3);
    assert_eq!(store.dropped_states(), 3);
    assert_eq!(use_up(&store, &quotas).await, 4, "one burst for each dropped state");
    assert_eq!(store.dropped_states(), 7);
}
