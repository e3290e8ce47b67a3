//! Explanations: exact, for every state of a layer, and without a charge.

use std::time::Duration;

use http::{Request, Response, StatusCode, request::Parts};
use proptest::prelude::*;
use tower::Layer;
use tower_sluice::{
    Algorithm, Cost, Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::Overcommit,
    reject::reject_fn,
    testing::FakeClock,
};

use crate::support::{
    Strict, all_algorithms, answer, ask,
    driven::{Time, limiter, millis, secs},
    get, quota, with,
};

fn head(request: Request<()>) -> Parts {
    request.into_parts().0
}

fn quotas() -> impl Strategy<Value = Quota> {
    let odd = (1..12_u32, 1..400_u64, 1..16_u32, 0..8_usize, 0..2_u32);
    odd.prop_filter_map("no quota", |(units, tens, burst, which, soft)| {
        let quota = Quota::new(units, Duration::from_nanos(tens * 60)).ok()?;
        let quota = quota.try_with_algorithm(all_algorithms().nth(which)?).ok()?;
        let quota = quota.try_with_burst(burst).unwrap_or(quota);
        Some(quota.try_with_soft(soft).unwrap_or(quota))
    })
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Explanations and decisions report one wait; after it the charge passes, and one nanosecond
    /// earlier it does not. (With several quotas, a paced or lending one may have passed its moment
    /// when the last is ready.)
    #[test]
    fn the_reported_wait_is_the_shortest_that_helps(
        quotas in prop::collection::vec(quotas(), 1..3),
        steps in prop::collection::vec((0..3_000_u64, 1..9_u32), 1..12),
        cost in 1..9_u32,
    ) {
        let windows = |quota: &Quota| matches!(quota.algorithm(), Algorithm::FixedWindow { .. });
        prop_assume!(quotas.len() == 1 || !quotas.iter().any(windows));
        let clock = FakeClock::new();
        clock.advance(secs(1_000));
        let limiter = Limiter::named("default", clock.store(64));
        for (pass, cost) in steps {
            clock.advance(Duration::from_nanos(pass));
            let _ = limiter.take("alice", &quotas, cost).now();
        }
        let look = || {
            let mut would = tokio_test::task::spawn(limiter.explain("alice", &quotas, cost));
            let would = tokio_test::assert_ready!(would.poll());
            let wait = would.decision.as_ref().ok().and_then(Decision::retry_after);
            (would.is_allowed(), wait.filter(|wait| !wait.is_zero()), would.to_string())
        };
        let (allowed, reported, text) = look();
        prop_assert_eq!(look(), (allowed, reported, text.clone()));
        prop_assert_eq!(text.contains("→ retry after "), reported.is_some(), "{}", text);
        if let Some(wait) = reported {
            let said = format!("→ retry after {wait:?}\n");
            prop_assert!(!allowed && text.contains(&said), "{}", text);
            clock.advance(wait - Duration::from_nanos(1));
            prop_assert!(!look().0, "a nanosecond earlier than {}", text);
            let early = limiter.take("alice", &quotas, cost).now();
            prop_assert!(!early.is_allowed(), "a nanosecond earlier than {}", text);
            prop_assert_eq!(early.retry_after(), Some(Duration::from_nanos(1)));
            clock.advance(Duration::from_nanos(1));
            prop_assert!(look().0, "after {}", text);
        } else {
            prop_assert_eq!(allowed, !text.contains("waiting does not help"), "{}", text);
        }
        let taken = limiter.take("alice", &quotas, cost).now();
        prop_assert_eq!(taken.is_allowed(), allowed || reported.is_some(), "{}", text);
    }
}

#[tokio::test]
async fn the_explanation_of_a_denial_has_a_line_per_quota() {
    let time = Time::default();
    let limiter = limiter("user", time.store());
    let quotas = [quota("5/s burst 20"), quota("10000/day")];
    drop(limiter.take("alice", &quotas, 19).now());
    time.0.advance(millis(88));
    let would = limiter.explain("alice", &quotas, 3).await;
    let lines = |first: &str, key: &str| {
        format!(
            "{first} by rule \"user\" → retry after 312ms\n  \
             rule \"user\"{key}: 1 of 20 left, next in 112ms, full in 3.712s; denied for 312ms\n  \
             rule \"user\", quota 2"
        )
    };
    let expected = lines("would be denied", " (5/s burst 20, gcra), Key(..), cost 3");
    let last = " (10000/day, gcra), Key(..), cost 3: 9981 of 10000 left, next in 8.552s, full in \
                164.072s\n";
    assert_eq!(would.to_string(), expected + last);
    let one = &would.quota_reports[0];
    assert_eq!((one.cost, one.headroom, one.quota), (Some(3), Some(0), Some(quotas[0])));
    assert_eq!(one.key, Some(Key::from("alice")));

    let denied = limiter.take("alice", &quotas, 3).now();
    let text = denied.explain().to_string();
    assert!(text.starts_with(&lines("denied", "")), "{text}");
}

/// Returns a layer's explanation of a request over a new store, and its response to the request.
async fn tried<K, S>(layer: RateLimitLayer<K, S>, request: fn() -> Request<()>) -> String
where
    K: tower_sluice::rule::Rules,
    S: Store<Error = std::convert::Infallible> + Sync,
{
    let would = layer.explain(&head(request())).await;
    let again = layer.explain(&head(request())).await.to_string();
    assert_eq!(would.to_string(), again, "a look changes nothing");
    let status = answer(&layer, request()).await.status();
    assert_eq!(would.is_allowed(), status == StatusCode::OK, "{status}: {would}");
    assert!(!again.contains("alice"), "{again}");
    again
}

fn alice() -> Request<()> {
    with(&[("x-user", "alice")])
}

fn user(quota: Quota) -> Rule<HeaderKey> {
    Rule::new("user", HeaderKey::new("x-user"), quota)
}

/// Returns a layer in which alice's account has this number of units charged.
fn owing(
    rule: Rule<HeaderKey>,
    quota: Quota,
    owed: u32,
) -> RateLimitLayer<Rule<HeaderKey>, LocalStore> {
    let store = FakeClock::new().store(64);
    drop(limiter("user", store.clone()).charge("alice", &quota, owed).now());
    RateLimitLayer::rules(rule, store)
}

#[tokio::test]
async fn every_kind_of_quota_is_explained() {
    const Q: Quota = Quota::per_second(5);
    let full = |rule: Rule<HeaderKey>| owing(rule, Q, 5);
    let soft = Q.with_soft(2);
    let cases = [
        (full(user(Q)), "would be denied by rule \"user\" → retry after 200ms\n"),
        (
            owing(user(Q), Q, 7),
            "cost 1: 0 of 5 left, next in 600ms, full in 1.4s; denied for 600ms",
        ),
        (full(user(Q).headroom(2)), "cost 1 and headroom 2: 0 of 5 left"),
        (full(user(Q).headroom(2)), "; denied for 600ms\n"),
        (full(user(Q).headroom(Cost::from_fn(|_| 9))), "; denied: waiting does not help\n"),
        (full(user(soft)), "would be allowed as overage, beyond a soft quota\n"),
        (full(user(soft)), "(5/s, gcra), Key(..), cost 1: 0 of 5 left"),
        (owing(user(soft), Q, 7), "; denied for 200ms\n"),
        (
            full(user(soft).cost(7).headroom(Cost::from_fn(|_| 1))),
            "; denied: waiting does not help\n",
        ),
        (
            full(user(Q).report_only(true)),
            "would be allowed\n  rule \"user\" (5/s, gcra), report-only",
        ),
        (full(user(Q).report_only(true)), "; would be denied for 200ms\n"),
        (
            full(user(Quota::blocked())),
            "rule \"user\" (blocked, gcra), Key(..), cost 1: 0 of 0 left",
        ),
        (
            full(user(Q)).report_only(true),
            "would be denied by rule \"user\" → retry after 200ms; allowed anyway: the layer only reports",
        ),
        (
            full(user(Q)).overcommit(Overcommit::in_flight(1)),
            "; allowed anyway: the layer overcommits, and there is capacity\n",
        ),
        (full(user(Q)).overcommit(Overcommit::in_flight(0)), "would be denied by rule"),
    ];
    for (layer, said) in cases {
        let text = tried(layer, alice).await;
        assert!(text.contains(said), "{said:?} is not in {text}");
    }
    let report = user(Q).report_only(true);
    let store = FakeClock::new().store(64);
    drop(limiter("user", store.clone()).block("alice", secs(3_600)).now().expect("room"));
    drop(limiter("site", store.clone()).charge(Key::everyone(), &Q, 5).now());
    let both = RateLimitLayer::rules((report, Rule::new("site", Everyone, Q)), store.clone());
    let text = tried(both, alice).await;
    assert!(text.contains("would be denied by rule \"site\""), "{text}");
    let blocked = tried(RateLimitLayer::rules(user(Q), store), alice).await;
    let said = "would be denied by rule \"user\", whose key is blocked → retry after 3600s\n";
    assert!(blocked.starts_with(said), "{blocked}");
}

#[tokio::test]
async fn a_denial_is_explained_in_its_response_with_fingerprints_as_keys() {
    let secret = FingerprintKey::from(*b"sixteen bytes ..");
    let rules = (user(Quota::per_hour(1)), Rule::new("site", Everyone, Quota::per_hour(9)));
    let layer = RateLimitLayer::rules(rules, FakeClock::new().store(64))
        .fingerprint(secret)
        .reject(reject_fn(|why, head| Response::new(why.explain(head).to_string())));
    let mut service = layer.layer(Strict::default());
    ask(&mut service, alice()).await;
    let denied = ask(&mut service, alice()).await.into_body();
    let said = "denied by rule \"user\" → retry after 3600s\n  rule \"user\" (1/h, gcra), key \
                bc6ccc7043dc9acb, cost 1: 0 of 1 left, next in 3600s, full in 3600s; denied for \
                3600s\n  rule \"site\" (9/h, gcra), key ";
    assert!(denied.starts_with(said), "{denied}");
    assert_eq!(
        ask(&mut service, get("/")).await.into_body(),
        "rejected with 400: missing header x-user\n"
    );
    assert!(!format!("{:?}", layer.explain(&head(alice())).await).contains("alice"));
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_queue_is_predicted() {
    let paced =
        Quota::per_second(5).with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true });
    for (quota, wait) in [(quota("5/s burst 1"), "200ms"), (paced, "200ms")] {
        let rule = |max| user(quota).max_wait(max);
        let store = FakeClock::new().store(64);
        let patient = RateLimitLayer::rules(rule(millis(200)), store.clone());
        assert_eq!(answer(&patient, alice()).await.status(), 200);
        let would = patient.explain(&head(alice())).await;
        let said = format!("would be allowed, after {wait} in the queue\n");
        assert!(would.to_string().starts_with(&said), "{would}");
        let hasty = RateLimitLayer::rules(rule(millis(199)), store.clone());
        assert!(!hasty.explain(&head(alice())).await.is_allowed());
        let crowded = patient.clone().max_waiters(0).explain(&head(alice())).await;
        assert!(
            !crowded.is_allowed() && crowded.to_string().contains("retry after 200ms"),
            "{crowded}"
        );

        let waited = answer(&patient.clone().expose_decision(), alice()).await;
        let decision = waited.extensions().get::<Decision>().expect("exposed");
        let is = patient.explain_decision(decision, &head(alice())).to_string();
        assert!(is.starts_with(&format!("allowed, after {wait} in the queue\n")), "{is}");
    }
}
