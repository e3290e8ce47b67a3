//! Slots as clients, operators and files see them.

use std::time::Duration;

use axum::{Router, body::Body, extract::Request, routing::get};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;
use tower_sluice::{
    Cost, Headers, LivePlan, LocalStore, Quota, RateLimitLayer, Rule,
    key::Everyone,
    rule::{RuleError, Rules},
};

fn rule(plan: impl Into<tower_sluice::Plan>) -> Rule<Everyone> {
    Rule::new("jobs", Everyone, plan)
}

/// Returns the responses to two requests that run at the same time.
async fn two(
    layer: RateLimitLayer<Rule<Everyone>, LocalStore>,
    accept: &str,
) -> [Response<Body>; 2] {
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let mut responses = Vec::new();
    for _ in 0..2 {
        let request = Request::get("/").header("accept", accept).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await;
        responses.push(response.expect("infallible"));
    }
    responses.try_into().expect("two responses")
}

fn field<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test]
async fn a_denial_has_a_retry_after_and_no_time_in_its_fields() {
    let quotas = [Quota::concurrent(1), Quota::per_hour(10)];
    let layer = RateLimitLayer::rules(rule(quotas), LocalStore::new());
    let [first, second] = two(layer, "application/json").await;
    let policy = "\"jobs-concurrent\";q=1;qu=\"concurrent-requests\", \"jobs-1h\";q=10;w=3600";
    for response in [&first, &second] {
        assert_eq!(field(response, "ratelimit-policy"), policy);
    }
    assert_eq!(field(&first, "ratelimit"), "\"jobs-concurrent\";r=0, \"jobs-1h\";r=9;t=3240");
    assert_eq!(field(&second, "ratelimit"), "\"jobs-concurrent\";r=0, \"jobs-1h\";r=9");
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((field(&first, "retry-after"), field(&second, "retry-after")), ("", "1"));
    let body = second.into_body().collect().await.expect("a body").to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(problem["violated-policies"], serde_json::json!(["jobs-concurrent"]));
    assert_eq!(problem["detail"], "Quota exhausted; retry in 1 s.");
}

/// These families know no units, so a client would take slots for requests.
#[tokio::test]
async fn the_older_fields_leave_slots_out() {
    for (family, name, left) in [
        (Headers::Draft07, "ratelimit", "limit=10, remaining=9, reset=3240"),
        (Headers::Draft06, "ratelimit-remaining", "9"),
        (Headers::XRateLimitDelta, "x-ratelimit-reset", "3240"),
    ] {
        let quotas = [Quota::concurrent(1), Quota::per_hour(10)];
        let layer = RateLimitLayer::rules(rule(quotas), LocalStore::new());
        let [first, second] = two(layer.headers(family), "*/*").await;
        assert_eq!(field(&first, name), left, "{family:?}");
        assert!(["10;w=3600", ""].contains(&field(&first, "ratelimit-policy")), "{family:?}");
        // The rate did not deny the request.
        let names = second.headers().keys().map(|name| name.as_str());
        let names: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
        assert_eq!((names, field(&second, "retry-after")), (vec![], "1"), "{family:?}");
    }
}

#[tokio::test]
async fn a_grpc_call_gets_the_expected_wait() {
    let layer = RateLimitLayer::rules(rule(Quota::concurrent(1)), LocalStore::new());
    let app = Router::new().fallback(async || "hello").layer(layer);
    let call = || {
        let request = Request::post("/service/Method").version(http::Version::HTTP_2);
        let request = request.header("content-type", "application/grpc").body(Body::empty());
        app.clone().oneshot(request.expect("a request"))
    };
    let _first = call().await.expect("infallible");
    let second = call().await.expect("infallible");
    assert_eq!(field(&second, "grpc-status"), "8");
    assert_eq!(field(&second, "grpc-retry-pushback-ms"), "1000");
}

#[tokio::test]
async fn an_explanation_has_the_held_slots() {
    let quota = Quota::concurrent(2).with_soft(1);
    let layer = RateLimitLayer::rules(rule([quota, Quota::per_hour(9)]), LocalStore::new());
    let [_first, second] = two(layer.clone(), "*/*").await;
    assert_eq!(second.status(), StatusCode::OK);
    let request = Request::new(Body::empty());
    let would = layer.explain(&request).await;
    let text = would.to_string();
    assert!(would.is_allowed(), "{text}");
    assert!(text.contains("(2 concurrent, slots)"), "{text}");
    assert!(text.contains("3 held"), "{text}");
    assert!(text.contains("would be allowed as overage"), "{text}");
    let [_third, denied] = two(layer.clone(), "*/*").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let text = layer.explain(&request).await.to_string();
    assert!(text.contains("; denied until another request ends\n"), "{text}");
}

#[test]
fn mistakes_are_found_when_a_layer_is_built() {
    let cost = rule(Quota::concurrent(2)).cost(3);
    let error = RateLimitLayer::try_rules(cost, LocalStore::new()).expect_err("never fits");
    assert!(matches!(error, RuleError::CostAboveLimit { cost: 3, limit: 2, .. }), "{error}");
}

/// Returns the error of a layer whose requests have a fixed cost and may wait.
fn wait_error(rules: impl Rules) -> Option<String> {
    let layer = RateLimitLayer::try_rules(rules, LocalStore::new());
    let error = layer.err()?;
    assert!(matches!(error, RuleError::SeveralSlotsWait { cost: 10, .. }), "{error}");
    Some(error.to_string())
}

#[test]
fn a_fixed_cost_of_several_slots_with_a_max_wait_is_an_error_when_the_layer_is_built() {
    let second = Duration::from_secs(1);
    let of = |quotas: &[Quota]| rule(quotas.to_vec()).cost(10).max_wait(second);
    let (slots, rate) = (Quota::concurrent(10), Quota::per_minute(10));
    let live = || rule(&LivePlan::new(slots)).cost(10).max_wait(second);
    let expected = "rule jobs: max_wait with a cost of 10 slots, but a request for more than one \
                    slot does not wait; lower the cost to 1 or remove the max_wait";
    for (what, error) in [
        ("slots", wait_error(of(&[slots]))),
        ("a rate beside them", wait_error(of(&[rate, slots]))),
        ("a live plan", wait_error(live())),
        ("another rule", wait_error((Rule::new("rate", Everyone, rate), of(&[slots])))),
        ("no key", wait_error(Rule::new("key", Everyone, rate).if_no_key(of(&[slots])))),
    ] {
        assert_eq!(error.as_deref(), Some(expected), "{what}");
    }
    let computed = rule(slots).cost(Cost::from_fn(|_| 10)).max_wait(second);
    assert_eq!(wait_error(computed), None);
    assert_eq!(wait_error(rule(slots).cost(10)), None, "no max_wait");
    assert_eq!(wait_error(of(&[rate])), None, "no slots");
    assert_eq!(wait_error(rule(slots).max_wait(second)), None, "one slot");
}

#[cfg(feature = "governor")]
#[test]
fn a_store_without_slots_says_so_when_the_layer_is_built() {
    use std::{num::NonZeroU32, sync::Arc};

    use governor::RateLimiter;
    use tower_sluice::{Key, StoreExt, store::GovernorStore};

    let ten = NonZeroU32::new(10).expect("above 0");
    let limiter = Arc::new(RateLimiter::<Key, _, _>::keyed(governor::Quota::per_second(ten)));
    let store = GovernorStore::new(limiter).fail_closed();
    let error =
        RateLimitLayer::try_rules(rule(Quota::concurrent(10)), store).expect_err("no slots");
    assert!(error.to_string().contains("cannot hold slots"), "{error}");
}

#[cfg(feature = "redis")]
#[test]
fn a_fixed_cost_of_more_slots_than_redis_takes_is_an_error_when_the_layer_is_built() {
    use tower_sluice::{RedisStore, StoreExt};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _entered = runtime.as_ref().expect("a runtime").enter();
    let layer = |cost, quota| {
        let store = RedisStore::connect("redis://127.0.0.1:1").lazy().expect("an address");
        RateLimitLayer::try_rules(rule(quota).cost(cost), store.fallback(LocalStore::new(), 1))
    };
    assert!(layer(256, Quota::concurrent(1 << 24)).is_ok());
    assert!(layer(257, Quota::per_minute(1_000)).is_ok());
    let error = layer(257, Quota::concurrent(1 << 24)).expect_err("too many slots").to_string();
    assert!(error.contains("takes more than 256 slots"), "{error}");
}

#[cfg(feature = "serde")]
#[test]
fn slots_are_read_from_files() {
    #[derive(Debug, serde::Deserialize, serde::Serialize, PartialEq)]
    struct Limits {
        exports: Quota,
        jobs: tower_sluice::rule::Quotas,
    }

    let text = "exports = \"5 concurrent\"\n\
                jobs = [\"100/min\", { concurrent = 3, soft = 2, name = \"running\" }]\n";
    let limits: Limits = toml::from_str(text).expect("limits");
    assert_eq!(limits.exports, Quota::concurrent(5));
    let running = Quota::concurrent(3).with_soft(2).with_name("running");
    assert_eq!(limits.jobs.as_ref(), [Quota::per_minute(100), running]);
    let again: Limits = toml::from_str(&toml::to_string(&limits).expect("text")).expect("limits");
    assert_eq!(again, limits);
    for (wrong, why) in [
        ("{ concurrent = 3, units = 5 }", "exclude each other"),
        ("{ concurrent = 3, algorithm = \"gcra\" }", "is set on a concurrent quota"),
        ("{ concurrent = 0 }", "concurrent is \"0\"; give at least 1"),
        ("{ concurrent = 3, blocked = true }", "exclude each other"),
        (
            "{ units = 3, period = \"1s\", algorithm = \"concurrent\" }",
            "unknown variant `concurrent`",
        ),
    ] {
        let text = format!("exports = {wrong}\njobs = []\n");
        let error = toml::from_str::<Limits>(&text).expect_err(wrong).to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}
