//! Quotas that are chosen per request or replaced at run time.
//!
//! An account keeps its debt, so a change does not refill it.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use tower::Layer;
use tower_sluice::{
    Algorithm, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, Store,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, ChargeHandle},
    rule::{Quotas, RuleError, Rules},
    store::CannotFail,
    testing::FakeClock,
};

use crate::support::{
    all_algorithms, answer, ask,
    driven::{handler, secs},
    get, header,
};

/// Counts the requests that pass before one is denied.
async fn burst<K: Rules, S: Store<Error: CannotFail>>(
    layer: &RateLimitLayer<K, S>,
    request: impl Fn() -> Request<()>,
) -> usize {
    for passed in 0..1_000 {
        if answer(layer, request()).await.status() != 200 {
            return passed;
        }
    }
    1_000
}

/// Returns `RateLimit-Policy` and `RateLimit`.
fn rate_limit_fields(response: &Response<String>) -> [&str; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| header(response.headers(), name))
}

#[tokio::test]
async fn a_replaced_plan_refills_no_account_and_applies_to_the_next_request() {
    let (clock, live) = (FakeClock::new(), LivePlan::new(Quota::per_minute(10)));
    let rule = Rule::new("api", Everyone, &live);
    let layer = RateLimitLayer::rules(rule, clock.store(64));
    let (clone, service) = (layer.clone(), || get("/"));
    assert_eq!(burst(&layer, service).await, 10);
    // twice the rate: the debt of one minute remains
    live.replace(Quota::per_minute(20));
    assert_eq!(live.quotas(), Quotas::from(Quota::per_minute(20)));
    assert_eq!((burst(&layer, service).await, burst(&clone, service).await), (0, 0));
    clock.advance(secs(3));
    assert_eq!((burst(&clone, service).await, burst(&layer, service).await), (1, 0));
    // half the rate: again one minute of debt, and a unit takes six seconds
    live.replace(Quota::per_minute(5));
    clock.advance(secs(3));
    assert_eq!(burst(&layer, service).await, 0);
    clock.advance(secs(9));
    assert_eq!((burst(&layer, service).await, burst(&clone, service).await), (1, 0));
    live.replace(Quota::blocked());
    clock.advance(secs(3_600));
    assert_eq!(answer(&clone, get("/")).await.status(), 403);
    live.replace([]);
    assert_eq!(burst(&clone, service).await, 1_000);
    live.replace(Quota::per_minute(4));
    assert_eq!(burst(&layer, service).await, 4, "unlimited requests are not charged");
}

/// Another layer of the process has shares of a pool `named`.
#[tokio::test]
async fn a_rule_with_the_name_of_a_share_is_a_rule_of_its_own() {
    let pool = Rule::new("named", Everyone, Quota::per_second(100));
    drop(pool.fair_by(HeaderKey::new("x-user")));
    let live = LivePlan::new(Quota::per_minute(10));
    let current = live.clone();
    let chosen = Plan::from_fn(move |_, _| current.quotas());
    for plan in [Plan::from(&live), chosen] {
        let rules = (Rule::new("named.share", Everyone, plan), Rule::new("named", Everyone, []));
        let layer = RateLimitLayer::rules(rules, FakeClock::new().store(64));
        let layer = layer.expose_charge(Adjustment::Keep);
        let mut service = layer.layer(handler(|request| {
            let handle: &ChargeHandle = request.extensions().get().expect("a handle");
            handle.adjust_rule_to("named", 9).expect("a rule");
            handle.adjust_rule_to("named.share", 3).expect("a rule");
            200
        }));
        // Three of ten units count as six of twenty.
        for (units, left) in [(10, 9), (20, 13)] {
            live.replace(Quota::per_minute(units));
            let response = ask(&mut service, get("/")).await;
            let [policy, limit] = rate_limit_fields(&response);
            assert_eq!(policy, format!(r#""named.share";q={units};w=60"#));
            assert!(limit.starts_with(&format!(r#""named.share";r={left};"#)), "{limit}");
        }
    }
}

#[test]
fn the_current_quotas_of_a_live_plan_must_be_supported_when_a_layer_is_built() {
    let build = |plan: Plan| {
        let rule = Rule::new("api", Everyone, plan).max_wait(secs(1));
        RateLimitLayer::try_rules(rule, LocalStore::with_capacity(16)).map(drop)
    };
    let log = Quota::per_second(5).with_algorithm(Algorithm::SlidingLog);
    assert!(matches!(build(log.into()), Err(RuleError::Unsupported(_))));
    assert_eq!(build((&LivePlan::new(log)).into()), build(log.into()));
    for queues in [vec![Quota::per_second(5)], vec![]] {
        assert_eq!(build((&LivePlan::new(queues)).into()), Ok(()));
    }
}

#[test]
fn no_two_current_quotas_of_a_layer_have_one_name() {
    let hour = |units| Quota::per_hour(units).with_name("hour");
    let live = LivePlan::new([hour(5), Quota::per_day(9).with_name("day")]);
    let build = |first: Plan, second: Plan| {
        let rules = (Rule::new("a", Everyone, first), Rule::new("b", Everyone, second));
        RateLimitLayer::try_rules(rules, LocalStore::with_capacity(16)).map(drop)
    };
    let same = Err(RuleError::SameQuotaName("hour".to_owned()));
    let other = LivePlan::new(hour(7));
    for second in [Plan::from(hour(7)), Plan::from(&other)] {
        assert_eq!(build((&live).into(), second.clone()), same);
        assert_eq!(build(second, (&live).into()), same);
    }
    other.replace(Quota::per_hour(7));
    assert_eq!(build((&live).into(), (&other).into()), Ok(()));
}

#[tokio::test]
async fn a_late_charge_of_a_request_under_the_old_plan_refills_no_account() {
    for algorithm in all_algorithms() {
        let [minute, day] = [Quota::per_minute(10), Quota::per_day(10)]
            .map(|quota| quota.with_algorithm(algorithm));
        let (clock, live) = (FakeClock::new(), LivePlan::new(minute));
        clock.advance(secs(3_600));
        let layer = RateLimitLayer::rules(Rule::new("api", Everyone, &live), clock.store(64));
        let layer = layer.expose_charge(Adjustment::Keep);
        let stream = Arc::new(Mutex::new(None::<ChargeHandle>));
        let opened = stream.clone();
        let mut service = layer.clone().layer(handler(move |request| {
            *opened.lock().expect("no panic") = request.extensions().get().cloned();
            200
        }));
        assert_eq!(ask(&mut service, get("/")).await.status(), 200);
        live.replace(day);
        clock.advance(secs(60));
        burst(&layer, || get("/")).await;
        clock.advance(secs(120));
        stream.lock().expect("no panic").take().expect("a handle").adjust_to(2);
        assert_eq!(burst(&layer, || get("/")).await, 0, "{algorithm:?}");
    }
}
