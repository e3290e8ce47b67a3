//! A rule whose limit is shared fairly, through the layer.

use std::{panic::catch_unwind, time::Duration};

use http::StatusCode;
use tower::Layer;
use tower_sluice::{
    Algorithm, Cost, Key, LivePlan, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::{Everyone, HeaderKey, PeerIp},
    middleware::{Adjustment, ChargeHandle, Penalty},
    rule::{FairRule, RuleError, RuleName, Rules},
    store::{Answer, Charge, Context, Op},
    testing::FakeClock,
};

use crate::support::{answer, ask, driven::handler, no_limit::NoLimit, with};

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
async fn weights_divide_the_rate_of_busy_clients() {
    let clock = FakeClock::new();
    let weight = Cost::from_fn(|head| match head.headers["x-api-key"].as_bytes() {
        [b'0'..=b'9'] => u32::from(head.headers["x-api-key"].as_bytes()[0] - b'0'),
        _ => 1,
    });
    let layer = layer(&clock, site().fair_by(key()).weight(weight));
    let mut admitted = [0; 3];
    for at in 0..200 * 22 {
        if at == 200 * 2 {
            // Who comes first has the burst.
            admitted = [0; 3];
        }
        clock.advance(SECOND / 200);
        for (at, client) in ["1", "2", "4"].into_iter().enumerate() {
            admitted[at] += send(&layer, client, 2).await;
        }
    }
    let each = [0, 1, 2].map(|at: u32| f64::from(admitted[at as usize]) / f64::from(1 << at));
    assert!(each.iter().all(|it| (it / each[0] - 1.0).abs() < 0.05), "{admitted:?}");
    let sum: u32 = admitted.iter().sum();
    assert!((1_995..=2_005).contains(&sum), "{sum} of 20 * 100");
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
    assert_eq!(send(&layer, "d", 500).await, 70, "the places are free, and d is alone");
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
fn settings_that_cannot_be_shared_are_errors() {
    let small = || Rule::new("site", Everyone, Quota::per_second(9).with_burst(3));
    let error = |rule: fn() -> Rule<Everyone>| {
        let panic = catch_unwind(move || drop(rule().fair_by(key()))).expect_err("a panic");
        panic.downcast_ref::<String>().cloned().expect("a text")
    };
    let several = || Rule::new("site", Everyone, [Quota::per_second(1), Quota::per_day(9)]);
    assert!(
        error(several).starts_with("rule site: fair_by with 2 quotas; give the rule one quota")
    );
    let window = || {
        let window = Quota::per_second(1).with_algorithm(Algorithm::fixed_window());
        Rule::new("site", Everyone, window)
    };
    assert!(error(window).contains("with the algorithm Gcra"));
    assert!(
        error(|| site().plan(Quota::per_second(9).with_initial(1))).contains("without initial")
    );
    assert!(error(|| site().plan(Vec::new())).contains("with 0 quotas"));
    assert_eq!(
        error(|| site().max_wait(SECOND)),
        "rule site: max_wait with fair_by; remove one of them"
    );
    assert!(error(small).starts_with("rule site: fair_by with a burst of 3"));
    let reasons =
        [("site", "never that of one client"), ("site.share", "unknown rule `site.share`")];
    for (rule, reason) in reasons {
        let penalty = catch_unwind(|| {
            let layer = RateLimitLayer::rules(site().fair_by(key()), LocalStore::new());
            drop(layer.penalty(rule, Penalty::after(Quota::per_minute(3))));
        });
        let panic = penalty.expect_err("no denial is of one client");
        assert!(panic.downcast_ref::<String>().expect("a text").contains(reason));
    }
    let anonymous = || site().if_no_key(Rule::new("ip", PeerIp::new(), Quota::per_second(1)));
    assert!(error(anonymous).starts_with("rule site: if_no_key with fair_by"));
    let clients = catch_unwind(|| drop(site().fair_by(key()).max_clients(0))).expect_err("0");
    let text = clients.downcast_ref::<String>().expect("a text");
    assert_eq!(text, "rule site: max_clients is 0; give 1 to 1048576");
}

/// A store with the default of `supports`.
#[derive(Debug)]
struct Plain(LocalStore);

impl Store for Plain {
    type Error = <LocalStore as Store>::Error;
    type Future = <LocalStore as Store>::Future;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.0.call(op, context)
    }
}

#[test]
fn a_layer_with_a_store_that_has_no_shares_is_not_built() {
    let layer = RateLimitLayer::try_rules(site().fair_by(key()), Plain(LocalStore::new()));
    assert!(layer.is_ok(), "any store can do it");
    assert!(RateLimitLayer::try_rules(site().fair_by(key()), NoLimit).is_ok());
    let twice = (Rule::new("site.share", key(), Quota::per_second(1)), site().fair_by(key()));
    let error = RateLimitLayer::try_rules(twice, LocalStore::new()).expect_err("the same name");
    assert!(matches!(error, RuleError::SameName(name) if name.as_str() == "site.share"));
    let infos = &mut Vec::new();
    let rule = site().fair_by(key());
    rule.info(infos);
    let shared: Vec<_> = infos.iter().map(|it| it.share_of.map(|of| of.to_string())).collect();
    assert_eq!(shared, [Some("site".to_owned()), None]);
}
