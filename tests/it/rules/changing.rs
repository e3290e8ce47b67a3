//! Rules whose quotas change, on the embedded store.

use tower_sluice::testing::FakeClock;

use crate::support::changing::{known_changes, pairs, play};

/// The seeds of each pair of kinds.
const SEEDS: u64 = 20;

#[tokio::test]
async fn each_quota_of_changing_plans_counts_as_if_it_were_alone() {
    for pair in pairs() {
        for seed in 0..SEEDS {
            play(FakeClock::new(), pair, seed, true).await;
        }
    }
}

#[tokio::test]
async fn a_change_of_a_rule_has_a_known_outcome() {
    known_changes(FakeClock::new()).await;
}
