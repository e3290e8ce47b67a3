//! Attempts to open the breaker of a shared store.

use http::Request;
use tower_sluice::{Cost, PeerIp, RateLimitLayer, Rule, StoreExt, testing::FakeClock};

use super::{THREE, from, statuses, support::shaky::Shaky, v4};

const COST: &str = "x-cost";

fn requests(peer: u32, cost: &'static str) -> impl Iterator<Item = Request<()>> {
    (0..1_000).map(move |_| from(v4(peer), &[(COST, cost)]))
}

/// A denial is an answer; only calls without an answer count as failures.
#[tokio::test(start_paused = true)]
async fn no_cost_and_no_hot_key_opens_the_breaker() {
    let cost = Cost::from_fn(|head| {
        let cost = head.headers.get(COST).and_then(|cost| cost.to_str().ok());
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
    });
    let breaker = Shaky::new(FakeClock::new().store(64)).breaker();
    let rule = Rule::new("ip", PeerIp::new(), THREE).cost(cost);
    let layer = RateLimitLayer::rules(rule, breaker.clone().fail_open());
    for cost in ["4", "1000000", "4294967295", "-1"] {
        let held = if cost == "-1" { vec![(200, 3), (429, 997)] } else { vec![(429, 1_000)] };
        assert_eq!(statuses(&layer, requests(0, cost)).await, held, "{cost}");
        assert!(!breaker.is_open(), "{cost}");
    }
    assert_eq!(statuses(&layer, requests(1, "1")).await, [(200, 3), (429, 997)]);
}
