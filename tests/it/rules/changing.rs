//! Rules whose quotas change, on the embedded store.

use http::Request;
use tower_sluice::{
    Algorithm, Plan, Quota, RateLimitLayer, Rule, key::Everyone, testing::FakeClock,
};

use crate::support::{
    answer,
    changing::{known_changes, pairs, play},
};

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

#[tokio::test]
async fn a_plan_that_chooses_the_algorithm_by_path_allows_one_burst_of_each() {
    let hourly = Quota::per_hour(5);
    let plan = Plan::from_fn(move |head, _| match head.path() {
        "/windows" => hourly.with_algorithm(Algorithm::fixed_window()).into(),
        _ => hourly.into(),
    });
    let store = FakeClock::new().store(64);
    let layer = RateLimitLayer::rules(Rule::new("path", Everyone, plan), store);
    let mut passed = 0;
    for path in ["/", "/windows"].repeat(20) {
        let request = Request::get(path).body(()).expect("a request");
        passed += usize::from(answer(&layer, request).await.status() == 200);
    }
    assert_eq!(passed, 10);
}
