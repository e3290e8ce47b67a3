//! A rule whose limit is shared fairly, through the layer.

use std::time::Duration;

use http::StatusCode;
use tower::Layer;
use tower_sluice::{
    Cost, Decision, Key, LivePlan, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, ChargeHandle},
    rule::{FairRule, RuleError, RuleName, Rules},
    store::Charge,
    testing::FakeClock,
};

use crate::support::{always::Always, answer, ask, driven::handler, with};

const SECOND: Duration = Duration::from_secs(1);

fn key() -> HeaderKey {
    HeaderKey::new("x-api-key")
}

/// A hundred units per second for all, of which 30 stay for clients within their shares.
fn site() -> Rule<Everyone> {
    Rule::new("site", Everyone, Quota::per_second(100))
}

fn layer(
    clock: &FakeClock,
    rule: FairRule<HeaderKey>,
) -> RateLimitLayer<FairRule<HeaderKey>, LocalStore> {
    RateLimitLayer::rules(clock.fair(rule), clock.store(1_024)).expose_decision()
}

/// Sends requests of a client. Returns the number of admitted ones.
async fn send<R: Rules + Send + Sync + 'static>(
    layer: &RateLimitLayer<R, LocalStore>,
    client: &str,
    requests: u32,
) -> u32 {
    let mut admitted = 0;
    for _ in 0..requests {
        let answer = answer(layer, with(&[("x-api-key", client)])).await;
        admitted += u32::from(answer.status() == StatusCode::OK);
    }
    admitted
}

/// Returns the used units of the pool and of the share of a client.
fn used(store: &LocalStore, client: &Key, pool: Quota) -> (u32, Duration) {
    let rule = |name| RuleName::new(name).expect("a name");
    let (everyone, quotas) = (Key::everyone(), [pool]);
    let pool = Charge::new(rule("site"), &everyone, &quotas).with_cost(0);
    let share = Charge::new(rule("site.share"), client, &quotas).with_cost(0);
    let look = store.take(&[pool, share]).now();
    (look.outcomes()[0].remaining(), look.outcomes()[1].reset_after())
}

#[tokio::test]
async fn a_client_without_weight_borrows_only() {
    let clock = FakeClock::new();
    let layer = layer(&clock, site().fair_by(key()).weight(Cost::from_fn(|_| 0)));
    assert_eq!(send(&layer, "a", 200).await, 70);
    clock.advance(SECOND / 100);
    assert_eq!(send(&layer, "b", 200).await, 1);
}

#[tokio::test]
async fn clients_beyond_the_most_have_one_share_together() {
    let clock = FakeClock::new();
    let layer = layer(&clock, site().fair_by(key()).max_clients(2));
    assert_eq!(send(&layer, "a", 1).await + send(&layer, "b", 1).await, 2);
    // A third of the rate for half a second, and what is left of the 98 above the reserve.
    assert_eq!(send(&layer, "c", 500).await, 68);
    assert_eq!(send(&layer, "d", 500).await, 0, "its share is used");
    assert_eq!(send(&layer, "a", 500).await, 16);
    clock.advance(11 * SECOND);
    assert_eq!(send(&layer, "d", 500).await, 70, "the entries are free, and d is alone");
}

#[tokio::test]
async fn a_cost_is_charged_to_both_and_an_adjustment_changes_both() {
    for (units, left) in [(60, 40), (10, 90), (70, 30)] {
        let (clock, client) = (FakeClock::new(), Key::from("a"));
        let store = clock.store(64);
        let rule = clock.fair(site().cost(60).fair_by(key()));
        let layer = RateLimitLayer::rules(rule, store.clone()).expose_charge(Adjustment::Keep);
        let inner = handler(move |request| {
            let handle: &ChargeHandle = request.extensions().get().expect("a handle");
            handle.adjust_rule_to("site.share", units).expect_err("a part of the pool");
            handle.adjust_rule_to("site", units).expect("a rule");
            200
        });
        let answer = ask(&mut layer.layer(inner), with(&[("x-api-key", "a")])).await;
        assert_eq!(answer.status(), 200);
        let expected = (left, units * SECOND / 100);
        assert_eq!(used(&store, &client, Quota::per_second(100)), expected, "{units}");
    }
}

#[tokio::test]
async fn a_live_plan_without_a_rate_has_no_shares() {
    let (clock, live) = (FakeClock::new(), LivePlan::new(Quota::per_second(100)));
    let rule = Rule::new("site", Everyone, &live).fair_by(key());
    let layer = layer(&clock, rule);
    assert_eq!(send(&layer, "a", 200).await, 70);
    live.replace([Quota::per_second(100), Quota::per_day(71)]);
    clock.advance(SECOND);
    assert_eq!(send(&layer, "a", 200).await, 71);
    live.replace(Vec::new());
    assert_eq!(send(&layer, "a", 200).await, 200);
    live.replace(Quota::blocked());
    assert_eq!(send(&layer, "a", 9).await, 0);
}

#[tokio::test]
async fn other_rules_are_charged_all_or_nothing() {
    let clock = FakeClock::new();
    let store = clock.store(64);
    let user = Rule::new("user", key(), Quota::per_second(20));
    let rules = (user, clock.fair(site().fair_by(key())));
    let layer = RateLimitLayer::rules(rules, store.clone());
    assert_eq!(send(&layer, "a", 500).await, 20);
    let (left, share) = used(&store, &Key::from("a"), Quota::per_second(100));
    assert_eq!((left, share), (80, SECOND / 5), "a denied request charges nothing");
}

#[tokio::test]
async fn a_shared_limit_stands_beside_alternatives() {
    let clock = FakeClock::new();
    let fair = || clock.fair(site().fair_by(key()));
    let alternatives = || {
        let credits = Rule::new("credits", key(), Quota::per_day(2));
        Rule::new("plan", key(), Quota::per_day(1)).or(credits)
    };
    let first = RateLimitLayer::rules((fair(), alternatives()), clock.store(64));
    let last = RateLimitLayer::rules((alternatives(), fair()), clock.store(64));
    assert_eq!([send(&first, "a", 9).await, send(&last, "a", 9).await], [3, 3]);
}

#[test]
fn any_store_has_shares_whose_name_is_taken() {
    let layer = RateLimitLayer::try_rules(site().fair_by(key()), Always(Decision::allow));
    assert!(layer.is_ok());
    let twice = (Rule::new("site.share", key(), Quota::per_second(1)), site().fair_by(key()));
    let error = RateLimitLayer::try_rules(twice, LocalStore::new()).expect_err("the same name");
    assert!(matches!(error, RuleError::SameName(name) if name.as_str() == "site.share"));
    let infos = &mut Vec::new();
    let rule = site().fair_by(key());
    rule.info(infos);
    let shared: Vec<_> = infos.iter().map(|it| it.share_of.map(|of| of.to_string())).collect();
    assert_eq!(shared, [Some("site".to_owned()), None]);
}
