//! Explanations: exact, for every state of a layer, and without a charge.

use std::{sync::Arc, time::Duration};

use governor::RateLimiter;
use http::{Method, Request, Response, StatusCode, request::Parts};
use proptest::prelude::*;
use tower::Layer;
use tower_sluice::{
    AccessList, Algorithm, Cost, Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule,
    Store, StoreExt,
    explain::Explanation,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::{Overcommit, Toggle},
    reject::reject_fn,
    rule::{Applies, OnMissingKey, RuleName},
    store::{Charge, GovernorStore},
    testing::FakeClock,
};

use crate::support::{
    Broken, Strict, answer, ask,
    driven::{Time, limiter, millis, secs},
    get, quota, with,
};

fn head(request: Request<()>) -> Parts {
    request.into_parts().0
}

/// Reads `4h 28min 43.5s` in nanoseconds.
fn read(text: &str) -> u64 {
    let word = |word: &str| {
        let at = word.find(|c: char| c.is_ascii_alphabetic()).expect("a unit");
        let (number, unit) = word.split_at(at);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let nanos = match unit {
            "day" => 86_400_000_000_000,
            "h" => 3_600_000_000_000,
            "min" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            other => panic!("{other} is no unit of time"),
        };
        let digits = u32::try_from(part.len()).expect("few");
        let part = part.parse().unwrap_or(0) * nanos / 10_u64.pow(digits);
        whole.parse::<u64>().expect("a number") * nanos + part
    };
    text.split(' ').map(word).sum()
}

/// Reads the wait from a text.
fn reported(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("→ retry after ")?;
    rest.lines().next().map(read)
}

fn algorithms() -> impl Strategy<Value = Quota> {
    let odd = (1..12_u32, 1..400_u64, 1..16_u32, 0..8_usize, 0..4_u32);
    odd.prop_filter_map("no quota", |(units, tens, burst, which, more)| {
        let quota = Quota::new(units, Duration::from_nanos(tens * 60)).ok()?;
        let algorithm = match which {
            0 | 1 => return quota.try_with_burst(burst).ok()?.try_with_soft(more % 2).ok(),
            2 => {
                return quota
                    .try_with_burst(burst)
                    .ok()?
                    .try_with_algorithm(Algorithm::TokenBucket)
                    .ok();
            }
            3 => Algorithm::fixed_window().carry_over(more),
            4 => Algorithm::fixed_window().carry_over(more).paced(),
            5 => Algorithm::AnchoredWindow,
            6 => Algorithm::SlidingWindow { buckets: 1 + more },
            _ => Algorithm::SlidingLog,
        };
        quota.try_with_algorithm(algorithm).ok()
    })
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Explanations and decisions report one wait; after it the charge passes, and one nanosecond
    /// earlier it does not. (With several quotas, a paced or lending one may have passed its moment
    /// when the last is ready.)
    #[test]
    fn the_reported_wait_is_the_shortest_that_helps(
        quotas in prop::collection::vec(algorithms(), 1..3),
        steps in prop::collection::vec((0..3_000_u64, 1..9_u32), 1..12),
        cost in 1..9_u32,
    ) {
        let windows = |quota: &Quota| matches!(quota.algorithm(), Algorithm::FixedWindow { .. });
        prop_assume!(quotas.len() == 1 || !quotas.iter().any(windows));
        let clock = FakeClock::new();
        clock.advance(secs(1_000));
        let limiter = Limiter::new(clock.store(64));
        for (pass, cost) in steps {
            clock.advance(Duration::from_nanos(pass));
            let _ = limiter.take("alice", &quotas, cost).now();
        }
        let look = || {
            let mut would = tokio_test::task::spawn(limiter.explain("alice", &quotas, cost));
            let would = tokio_test::assert_ready_ok!(would.poll());
            (would.is_allowed(), would.to_string())
        };
        let (allowed, text) = look();
        prop_assert_eq!(look(), (allowed, text.clone()));
        if let Some(wait) = reported(&text) {
            prop_assert!(!allowed && wait > 0);
            clock.advance(Duration::from_nanos(wait - 1));
            prop_assert!(!look().0, "a nanosecond earlier than {}", text);
            let early = limiter.take("alice", &quotas, cost).now();
            prop_assert!(!early.is_allowed(), "a nanosecond earlier than {}", text);
            prop_assert_eq!(reported(&early.explain().to_string()), Some(1));
            clock.advance(Duration::from_nanos(1));
            prop_assert!(look().0, "after {}", text);
        } else {
            prop_assert_eq!(allowed, !text.contains("waiting does not help"), "{}", text);
        }
        let taken = limiter.take("alice", &quotas, cost).now();
        prop_assert_eq!(taken.is_allowed(), allowed || reported(&text).is_some(), "{}", text);
    }
}

#[tokio::test]
async fn the_explanation_of_a_denial_shows_the_arithmetic() {
    let time = Time::default();
    let limiter = limiter("user", time.store());
    let quotas = [quota("5/s burst 20"), quota("10000/day")];
    limiter.take("alice", &quotas, 19).now();
    time.0.advance(millis(88));
    let would = limiter.explain("alice", &quotas, 3).await.expect("infallible");
    let expected = "\
would be denied by rule \"user\", quota 1 of 2 (5/s burst 20, gcra), Key(..): cost 3, 1 left
  one unit comes back every 200ms; 19 used, full again in 3.712s, next units in 112ms; needs 3, has 1: 2 more in \
312ms → retry after 312ms
rule \"user\", quota 2 of 2 (10000/day, gcra), Key(..): cost 3, 9981 left
  one unit comes back every 8.64s; 19 used, full again in 2min 44.072s, next units in 8.552s; \
needs 3, has 9981: it fits
";
    assert_eq!(would.to_string(), expected);
    let one = &would.quota_reports()[0];
    assert_eq!((one.cost(), one.headroom(), one.quota()), (Some(3), Some(0), Some(quotas[0])));
    assert_eq!(one.key(), Some(&Key::from("alice")));

    let denied = limiter.take("alice", &quotas, 3).now();
    let alone = "denied by rule \"user\": 1 left of 20\n  one unit comes back every 200ms; 19 used, \
                 full again in 3.712s, next units in 112ms; enough in 312ms → retry after 312ms\n";
    assert!(denied.explain().to_string().starts_with(alone), "{}", denied.explain());
}

#[tokio::test]
async fn a_quota_is_named_with_its_debt_where_that_is_not_the_limit() {
    let limiter = Limiter::new(FakeClock::new().store(64));
    let five = Quota::per_minute(5);
    for (quota, name) in [
        (five, "(5/min, gcra)"),
        (five.with_max_debt(5), "(5/min, gcra)"),
        (five.with_max_debt(2), "(5/min, gcra, max_debt 2)"),
    ] {
        let would = limiter.explain("alice", &quota, 1).await.expect("infallible").to_string();
        assert!(would.contains(name), "{would}");
    }
}

/// Returns a layer's explanation of a request over a new store, and its response to the request.
async fn tried<K, S>(layer: RateLimitLayer<K, S>, request: fn() -> Request<()>) -> String
where
    K: tower_sluice::rule::Rules,
    S: Store<Error = std::convert::Infallible>,
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
    owed: i64,
) -> RateLimitLayer<Rule<HeaderKey>, LocalStore> {
    let store = FakeClock::new().store(64);
    limiter("user", store.clone()).adjust("alice", &quota, owed).now();
    RateLimitLayer::rules(rule, store)
}

#[tokio::test]
async fn requests_without_a_store_call_are_explained_too() {
    let layer = || RateLimitLayer::rules(user(Quota::blocked()), LocalStore::new());
    let everybody = || AccessList::from_fn(|_| true);
    let off = Toggle::on();
    off.set(false);
    for (layer, said) in [
        (layer().enabled(&off), "would be allowed: the layer is switched off\n"),
        (layer().allow(everybody()), "would be allowed: it is on an allow list\n"),
        (layer().deny(everybody()), "would be rejected with 403: access denied\n"),
        (
            layer().deny(everybody()).report_only(true),
            "would be rejected with 403: access denied; allowed anyway: the layer only reports\n",
        ),
    ] {
        assert_eq!(tried(layer, alice).await, said);
    }
    let preflight = || {
        let request = Request::builder().method(Method::OPTIONS).uri("/");
        let request = request.header("origin", "https://app.example");
        request.header("access-control-request-method", "PUT").body(()).expect("a request")
    };
    let exempt = layer().exempt_preflights();
    assert_eq!(tried(exempt, preflight).await, "would be allowed: it is a CORS preflight\n");
    let unkeyed = tried(layer(), || get("/")).await;
    assert_eq!(unkeyed, "would be rejected with 400: missing header x-user\n");
    for (rule, said) in [
        (
            user(Quota::blocked()).on_missing_key(OnMissingKey::Skip),
            "would be allowed: no rule charges it\n",
        ),
        (
            user(Quota::blocked()).applies(|_| Applies::Skip),
            "would be allowed: no rule charges it\n",
        ),
    ] {
        let layer = RateLimitLayer::rules(rule, LocalStore::new());
        assert_eq!(tried(layer, || get("/")).await, said);
    }
}

#[tokio::test]
async fn every_kind_of_quota_is_explained() {
    const Q: Quota = Quota::per_second(5);
    let full = |rule: Rule<HeaderKey>| owing(rule, Q, 5);
    let soft = Q.with_soft(2);
    let cases = [
        (full(user(Q)), "needs 1, has 0: 1 more in 200ms → retry after 200ms"),
        (owing(user(Q), Q, 7), "7 used, 2 beyond the limit, full again in 1.4s"),
        (full(user(Q).headroom(2)), "cost 1 and headroom 2, 0 left"),
        (full(user(Q).headroom(2)), "needs 3, has 0: 3 more in 600ms → retry after 600ms"),
        (
            full(user(Q).headroom(Cost::from_fn(|_| 9))),
            "needs 10, which is above the limit 5: waiting does not help\n",
        ),
        (full(user(soft)), "would be allowed as overage, beyond a quota that is soft\n"),
        (full(user(soft)), "(5/s, gcra, 2 soft), Key(..): cost 1, 0 left"),
        (full(user(soft)), "needs 1, has 0 and up to 2 soft: it passes as overage\n"),
        (owing(user(soft), Q, 7), "needs 1, has 0 and up to 2 soft: 1 more in 200ms → retry after"),
        (
            full(user(soft).cost(7).headroom(Cost::from_fn(|_| 1))),
            "above the limit 5 and its 2 soft: waiting does not help",
        ),
        (
            full(user(Q).report_only(true)),
            "would be allowed\nrule \"user\" (5/s, gcra), report-only",
        ),
        (full(user(Q).report_only(true)), "would be denied: needs 1, has 0: 1 more in 200ms\n"),
        (
            full(user(Quota::blocked())),
            "rule \"user\" (blocked), Key(..): cost 1, 0 left\n  the quota is blocked",
        ),
        (
            full(user(Q)).report_only(true),
            "allowed anyway: the layer only reports\nwould be denied by rule \"user\"",
        ),
        (
            full(user(Q)).overcommit(Overcommit::in_flight(1)),
            "allowed anyway: the layer overcommits, and there is capacity\nwould be denied by rule",
        ),
        (full(user(Q)).overcommit(Overcommit::in_flight(0)), "would be denied by rule"),
    ];
    for (layer, said) in cases {
        let text = tried(layer, alice).await;
        assert!(text.contains(said), "{said:?} is not in {text}");
    }
    let report = user(Q).report_only(true);
    let store = FakeClock::new().store(64);
    limiter("user", store.clone()).block("alice", secs(3_600)).now().expect("room");
    limiter("site", store.clone()).adjust(Key::everyone(), &Q, 5).now();
    let both = RateLimitLayer::rules((report, Rule::new("site", Everyone, Q)), store.clone());
    let text = tried(both, alice).await;
    assert!(text.contains("would be denied by rule \"site\""), "{text}");
    let blocked = tried(RateLimitLayer::rules(user(Q), store), alice).await;
    let said =
        "would be denied by rule \"user\", Key(..): cost 1, the key is blocked → retry after 1h\n";
    assert_eq!(blocked, said);
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_queue_is_predicted() {
    let paced = Quota::per_second(5).with_algorithm(Algorithm::fixed_window().paced());
    for (quota, wait) in [(quota("5/s burst 1"), "200ms"), (paced, "200ms")] {
        let rule = |max| user(quota).max_wait(max);
        let store = FakeClock::new().store(64);
        let patient = RateLimitLayer::rules(rule(millis(200)), store.clone());
        assert_eq!(answer(&patient, alice()).await.status(), 200);
        let would = patient.explain(&head(alice())).await;
        let said = format!("would be allowed, after {wait} in the queue\n");
        assert!(would.to_string().starts_with(&said), "{would}");
        assert!(would.to_string().contains("needs 1, has 0: it waits in the queue\n"), "{would}");
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

/// It gets its position in a window without charges.
#[tokio::test]
async fn a_first_charge_can_queue_in_a_paced_window() {
    let paced = Quota::per_second(5).with_algorithm(Algorithm::fixed_window().paced());
    let (clock, key, quotas) = (FakeClock::new(), Key::from("alice"), [paced]);
    clock.advance(millis(10_050));
    let charge =
        Charge::new(RuleName::default(), &key, &quotas).with_cost(2).with_max_wait(secs(1));
    let store = clock.store(64);
    let would = Explanation::look(&store, &[charge]).await.expect("infallible");
    let is = store.take(&[charge]).now();
    assert!(is.is_allowed() && !is.wait().is_zero(), "{is:?}");
    assert_eq!(
        would.decision().map(|would| (would.is_allowed(), would.wait())),
        Some((true, is.wait()))
    );
}

#[tokio::test]
async fn stores_that_fail_or_cannot_read_are_reported() {
    let q = Quota::per_second(5);
    let open = RateLimitLayer::new(Everyone, q, Broken::Now.fail_open());
    let said = "would be allowed, uncharged: the store failed open\n";
    assert_eq!(tried(open, alice).await, said);
    let closed = RateLimitLayer::new(Everyone, q, Broken::Later.fail_closed());
    let said = "would be denied: the store failed closed → retry after 1s\n";
    assert_eq!(tried(closed, alice).await, said);

    let fallback = Broken::Now.fallback(FakeClock::new().store(64)).instances(5);
    let here = RateLimitLayer::new(Everyone, q, fallback);
    let text = tried(here.clone(), alice).await;
    assert!(
        text.contains("(5/s, gcra), Key(..): cost 1, 1 left of 1\n  one unit comes back every 1s"),
        "{text}"
    );
    let text = tried(here, alice).await;
    assert!(
        text.contains("1 more in ") && text.contains("decided locally with this process's share"),
        "{text}"
    );

    let five = governor::Quota::per_second(std::num::NonZeroU32::new(5).expect("five"));
    let store = GovernorStore::new(Arc::new(RateLimiter::<Key, _, _>::keyed(five)));
    let layer = RateLimitLayer::new(Everyone, q, store.fail_closed()).expose_decision();
    let would = layer.explain(&head(alice())).await.to_string();
    assert!(would.starts_with("the store does not support dry runs: "), "{would}");
    for (status, said) in [
        (200, ": cost 1, the units left are unknown\n  decided by governor"),
        (429, "decided by governor, whose times are upper bounds → retry after "),
    ] {
        let response = loop {
            let response = answer(&layer, alice()).await;
            if response.status() == status {
                break response;
            }
        };
        let decision = response.extensions().get::<Decision>().expect("exposed");
        let is = layer.explain_decision(decision, &head(alice())).to_string();
        assert!(is.contains(said), "{said:?} is not in {is}");
    }
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
    let said = "denied by rule \"user\" (1/h, gcra), key bc6ccc7043dc9acb: cost 1, 0 left\n  \
                one unit comes back every 1h; 1 used, full again in 1h; needs 1, has 0: 1 more in 1h \
                → retry after 1h\nrule \"site\" (9/h, gcra), key ";
    assert!(denied.starts_with(said), "{denied}");
    assert_eq!(
        ask(&mut service, get("/")).await.into_body(),
        "rejected with 400: missing header x-user\n"
    );
    assert!(!format!("{:?}", layer.explain(&head(alice())).await).contains("alice"));
}

/// An explanation also does not open the account of a first contact, which starts below its burst.
#[tokio::test]
async fn an_explanation_opens_no_account() {
    let (clock, quota) = (FakeClock::new(), Quota::per_second(1).with_burst(9).with_initial(0));
    let store = clock.store(64);
    let alice = Key::from("alice");
    let quotas = [quota, quota.with_algorithm(Algorithm::TokenBucket)];
    let name = |name| RuleName::new(name).expect("a name");
    for report_only in [false, true] {
        let charge = Charge::new(name(if report_only { "trial" } else { "user" }), &alice, &quotas);
        let charge = if report_only { charge.with_report_only() } else { charge };
        for _ in 0..3 {
            let would = Explanation::look(&store, &[charge]).await.expect("infallible");
            assert_eq!(would.quota_reports()[1].outcome().retry_after(), Some(secs(1)));
            clock.advance(secs(5));
        }
        let only =
            Explanation::look(&store, &[charge.with_quota_index(1)]).await.expect("infallible");
        assert_eq!((only.quota_reports().len(), store.stats().active), (1, 0));
    }
}
