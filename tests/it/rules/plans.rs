//! Quotas that are chosen per request or replaced at run time.
//!
//! An account keeps its debt, so a change does not refill it.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use tower::Layer;
use tower_sluice::{
    Algorithm, Decision, Headers, Key, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule,
    Store,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, ChargeHandle},
    rule::{Applies, Quotas, RuleError, Rules},
    store::CannotFail,
    testing::FakeClock,
};

use crate::support::{
    all_algorithms, answer, ask,
    driven::{handler, left, secs},
    get, header, with,
};

const FREE: Quota = Quota::per_minute(2);
const PAID: Quota = Quota::per_minute(5);

/// The tier that an identity layer in front may have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Paid,
    Unlimited,
    Banned,
}

fn by_tier() -> Rule<HeaderKey> {
    let plan = Plan::from_fn(|head, _| match head.extensions.get() {
        Some(Tier::Paid) => PAID.into(),
        Some(Tier::Unlimited) => [].into(),
        Some(Tier::Banned) => Quota::blocked().into(),
        None => FREE.into(),
    });
    Rule::new("user", HeaderKey::new("x-user"), plan)
}

fn of(user: &str, tier: Option<Tier>) -> Request<()> {
    let mut request = with(&[("x-user", user)]);
    tier.map(|tier| request.extensions_mut().insert(tier));
    request
}

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
async fn the_plan_of_the_extensions_is_charged() {
    let layer = RateLimitLayer::rules(by_tier(), FakeClock::new().store(64));
    assert_eq!(burst(&layer, || of("alice", None)).await, 2);
    assert_eq!(burst(&layer, || of("bob", Some(Tier::Paid))).await, 5);
    assert_eq!(burst(&layer, || of("carol", Some(Tier::Unlimited))).await, 1_000);
    assert_eq!(burst(&layer, || of("dave", Some(Tier::Banned))).await, 0);
    let banned = answer(&layer, of("dave", Some(Tier::Banned))).await;
    assert_eq!((banned.status().as_u16(), header(banned.headers(), "retry-after")), (403, ""));
}

#[tokio::test]
async fn the_plan_of_the_key_is_charged() {
    let plan = Plan::from_fn(|_, key| {
        if *key == Key::from("alice") {
            Quotas::from([PAID, Quota::per_hour(3)])
        } else {
            FREE.into()
        }
    });
    let rule = Rule::new("user", HeaderKey::new("x-user"), plan);
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64));
    assert_eq!(burst(&layer, || of("alice", None)).await, 3);
    assert_eq!(burst(&layer, || of("bob", None)).await, 2);
}

/// Each plan has its own account, because its period differs, in any order of requests.
#[tokio::test]
async fn alternating_plans_gain_at_most_one_burst_each() {
    let (fast, slow) = (Quota::new(10, secs(1)).expect("fast"), Quota::per_minute(60));
    let plan =
        Plan::from_fn(
            move |head, _| {
                if head.headers.contains_key("x-fast") { fast.into() } else { slow.into() }
            },
        );
    let clock = FakeClock::new();
    let rule = Rule::new("user", HeaderKey::new("x-user"), plan);
    let layer = RateLimitLayer::rules(rule, clock.store(64));
    let fast = || with(&[("x-user", "alice"), ("x-fast", "1")]);
    let slow = || with(&[("x-user", "alice")]);
    assert_eq!((burst(&layer, fast).await, burst(&layer, slow).await), (10, 60));
    assert_eq!((burst(&layer, fast).await, burst(&layer, slow).await), (0, 0));
    let mut passed = 0;
    for _ in 0..60 {
        clock.advance(secs(1));
        passed += burst(&layer, fast).await + burst(&layer, slow).await;
    }
    assert_eq!(passed, 60 * (10 + 1), "from then on what each plan alone gives");
    clock.advance(secs(60));
    let mut each = [0, 0];
    loop {
        let before = each;
        each[0] += usize::from(answer(&layer, slow()).await.status() == 200);
        each[1] += usize::from(answer(&layer, fast()).await.status() == 200);
        if each == before {
            break;
        }
    }
    assert_eq!(each, [60, 10]);
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

#[tokio::test]
async fn one_live_plan_serves_several_rules() {
    let live = LivePlan::new(FREE);
    let rules = vec![Rule::new("a", Everyone, &live), Rule::new("b", Everyone, &live)];
    let store = FakeClock::new().store(64);
    let layer = RateLimitLayer::rules(rules, store.clone());
    assert_eq!(burst(&layer, || get("/")).await, 2);
    live.replace(PAID);
    assert_eq!(left(&store, "a", Key::everyone(), &PAID), 0);
    assert_eq!(left(&store, "b", Key::everyone(), &PAID), 0);
}

#[tokio::test]
async fn headers_report_the_plan_of_the_request() {
    let store = FakeClock::new().store(64);
    let site = Rule::new("site", Everyone, Quota::per_hour(100).with_name("all"));
    let layer = RateLimitLayer::rules((by_tier(), site), store);
    let free = answer(&layer, of("alice", None)).await;
    assert_eq!(
        rate_limit_fields(&free),
        [r#""user";q=2;w=60, "all";q=100;w=3600"#, r#""user";r=1;t=30, "all";r=99;t=3564"#]
    );
    let paid = answer(&layer, of("bob", Some(Tier::Paid))).await;
    assert_eq!(
        rate_limit_fields(&paid),
        [r#""user";q=5;w=60, "all";q=100;w=3600"#, r#""user";r=4;t=48, "all";r=98;t=3528"#]
    );
    let unlimited = answer(&layer, of("carol", Some(Tier::Unlimited))).await;
    assert_eq!(rate_limit_fields(&unlimited), [r#""all";q=100;w=3600"#, r#""all";r=97;t=3492"#]);
    answer(&layer, of("alice", None)).await;
    let denied = answer(&layer, of("alice", None)).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(rate_limit_fields(&denied)[0], r#""user";q=2;w=60, "all";q=100;w=3600"#);
    assert_eq!(header(denied.headers(), "retry-after"), "30");
}

#[tokio::test]
async fn headers_report_a_replaced_plan_beside_fixed_quotas() {
    let live = LivePlan::new(Quota::per_minute(10));
    let user = Rule::new("user", Everyone, &live).applies(|head| match head.path() {
        "/" => Applies::Charge,
        _ => Applies::Skip,
    });
    let site = Rule::new("site", Everyone, Quota::per_hour(100));
    let layer = RateLimitLayer::rules((user, site), FakeClock::new().store(64));
    let mut service = layer.layer(handler(|_| 200));
    let mut policy =
        async |path: &str| rate_limit_fields(&ask(&mut service, get(path)).await)[0].to_owned();
    let both = |units| format!(r#""user";q={units};w=60, "site";q=100;w=3600"#);
    assert_eq!(policy("/").await, both(10));
    assert_eq!(policy("/skipped").await, r#""site";q=100;w=3600"#);
    for units in [20, 10, 30] {
        live.replace(Quota::per_minute(units));
        assert_eq!(policy("/skipped").await, r#""site";q=100;w=3600"#);
        assert_eq!(policy("/").await, both(units));
        assert_eq!(policy("/").await, both(units));
    }
    live.replace(Quota::per_minute(1));
    let denied = ask(&mut service, get("/")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(rate_limit_fields(&denied)[0], both(1));
    assert!(rate_limit_fields(&denied)[1].starts_with(r#""user";r=0;t="#));
}

#[tokio::test]
async fn headers_report_the_plan_that_was_replaced_of_two() {
    let plans = [10, 100].map(|units| LivePlan::new(Quota::per_minute(units)));
    let rules = (Rule::new("a", Everyone, &plans[0]), Rule::new("b", Everyone, &plans[1]));
    let layer = RateLimitLayer::rules(rules, FakeClock::new().store(64));
    // Each service begins with the current plans.
    let mut service = layer.layer(handler(|_| 200));
    let mut limits = [10, 100];
    for (changed, units) in [(0, 20), (1, 200), (1, 300), (0, 30)] {
        plans[changed].replace(Quota::per_minute(units));
        limits[changed] = units;
        let policy = format!(r#""a";q={};w=60, "b";q={};w=60"#, limits[0], limits[1]);
        for _ in 0..2 {
            assert_eq!(rate_limit_fields(&ask(&mut service, get("/")).await)[0], policy);
        }
    }
}

#[tokio::test]
async fn headers_of_every_family_report_the_replaced_plan() {
    let live = LivePlan::new(Quota::per_minute(10).with_name("slow"));
    let layer = || {
        let rule = Rule::new("api", Everyone, &live);
        RateLimitLayer::rules(rule, FakeClock::new().store(64))
    };
    let (ratelimit, draft07) = (layer(), layer().headers(Headers::Draft07));
    let (draft06, none) = (layer().headers(Headers::Draft06), layer().headers(Headers::None));
    assert_eq!(
        rate_limit_fields(&answer(&ratelimit, get("/")).await),
        [r#""slow";q=10;w=60"#, r#""slow";r=9;t=54"#]
    );
    live.replace([Quota::per_minute(60), Quota::per_hour(100)]);
    let two = answer(&ratelimit, get("/")).await;
    assert!(
        rate_limit_fields(&two)[0].starts_with(r#""api-1min";q=60;w=60, "api-1h";q=100;w=3600"#)
    );
    live.replace(Quota::per_minute(60).with_burst(20));
    let response = answer(&draft07, get("/")).await;
    assert_eq!(rate_limit_fields(&response), ["20;w=20", "limit=20, remaining=19, reset=19"]);
    let response = answer(&draft06, get("/")).await;
    assert_eq!(header(response.headers(), "ratelimit-limit"), "20");
    assert_eq!(header(response.headers(), "ratelimit-remaining"), "19");
    assert!(rate_limit_fields(&answer(&none, get("/")).await).concat().is_empty());
    live.replace([]);
    assert!(rate_limit_fields(&answer(&ratelimit, get("/")).await).concat().is_empty());
}

#[tokio::test]
async fn a_plan_without_quotas_limits_nothing_and_leaves_the_account_alone() {
    let store = FakeClock::new().store(64);
    let layer = RateLimitLayer::rules(by_tier(), store.clone()).expose_decision();
    answer(&layer, of("alice", None)).await;
    for _ in 0..9 {
        let response = answer(&layer, of("alice", Some(Tier::Unlimited))).await;
        let decision = response.extensions().get::<Decision>().expect("asked");
        assert!(decision.is_allowed() && decision.outcomes().is_empty());
    }
    assert_eq!(left(&store, "user", "alice", &FREE), 1);
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
