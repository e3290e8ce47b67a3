//! Known denials, which need no store call. `hot_keys` has the table of steps.
//!
//! Time advances only by the tests.

use http::StatusCode;
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    decision::Source,
    key::Everyone,
    middleware::Overcommit,
    rule::RuleName,
    store::{Charge, DenyCache},
};

use crate::support::{
    answer,
    driven::{AtOnce, Counting, Time, millis, secs},
    get, header,
    shaky::{Mood, Shaky},
};

const HOURLY: Quota = Quota::per_hour(10);
type Cached = DenyCache<Counting<LocalStore>>;

/// A counting store and the deny cache around it.
fn cached(time: &Time) -> (Counting<LocalStore>, Cached) {
    let inner = Counting::new(time.0.store(64));
    (inner.clone(), inner.deny_cache())
}

#[tokio::test(start_paused = true)]
async fn a_cached_denial_gives_the_same_response_as_the_first() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let rules = (
        Rule::new("site", Everyone, Quota::per_hour(100)),
        Rule::new("user", Everyone, [Quota::per_minute(2), Quota::per_hour(60)]),
        Rule::new("trial", Everyone, Quota::per_hour(1)).report_only(true),
    );
    let layer = RateLimitLayer::rules(rules, store.clone()).expose_decision();
    for _ in 0..2 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    let first = answer(&layer, get("/")).await;
    assert_eq!(header(first.headers(), "retry-after"), "30");
    assert_eq!(
        header(first.headers(), "ratelimit"),
        "\"site\";r=98, \"user-1min\";r=0;t=30, \"user-1h\";r=58"
    );
    time.pass(millis(400)).await;
    let known = answer(&layer, get("/")).await;
    assert_eq!(known.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(known.headers(), "retry-after"), "30", "rounded up");
    assert_eq!(
        header(known.headers(), "ratelimit"),
        "\"user-1min\";r=0;t=30, \"user-1h\";r=58",
        "of what is known"
    );
    assert_eq!(
        header(known.headers(), "ratelimit-policy"),
        header(first.headers(), "ratelimit-policy")
    );
    let decision = known.extensions().get::<Decision>().expect("exposed");
    assert_eq!(decision.source(), Source::DenyCache);
    assert_eq!(inner.takes(), 3);
    time.pass(millis(600)).await;
    let again = answer(&layer, get("/")).await;
    assert_eq!(header(again.headers(), "retry-after"), "29");
    assert_eq!(inner.takes(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_overcommit_layer_allows_requests_with_a_cached_denial() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let rule = || Rule::new("api", Everyone, HOURLY);
    let layer = RateLimitLayer::rules(rule(), store.clone());
    let elastic =
        RateLimitLayer::rules(rule(), store.clone()).overcommit(Overcommit::when(|| true));
    for _ in 0..10 {
        answer(&layer, get("/")).await;
    }
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let allowed = answer(&elastic, get("/")).await;
    assert_eq!(allowed.status(), StatusCode::OK);
    assert_eq!(header(allowed.headers(), "retry-after"), "");
    assert_eq!(inner.takes(), 11);

    let charge = [HOURLY];
    let key = Key::everyone();
    let blocked = Charge::new(RuleName::new("api").expect("a name"), &key, &charge);
    drop(store.block(&blocked, secs(9)).now());
    for _ in 0..2 {
        let denied = answer(&elastic, get("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "blocked");
    }
    assert_eq!(inner.takes(), 12);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_denials_denies_no_other_key_and_stays_within_the_capacity() {
    const KEYS: u64 = 1_000_000;
    let store = Time::default().store().deny_cache().capacity(1_000);
    let limiter = Limiter::named("default", store.clone());
    let nobody = Quota::blocked();
    let is_known = |key: &u64| {
        let decision = limiter.take(*key, &nobody, 1).now();
        assert!(!decision.is_allowed());
        decision.source() == Source::DenyCache
    };
    assert_eq!((0..KEYS).filter(is_known).count(), 0, "no key is denied for another");
    // the oldest and the newest: of denials that end at the same time, either may be kept
    let known = (0..20_000).chain(KEYS - 20_000..KEYS).filter(is_known).count();
    assert!((500..=1_000).contains(&known), "{known} were known");
    let printed = format!("{store:?}").len();
    assert!(printed < 200, "{printed} bytes, although nobody reads a thousand denials");
}

#[tokio::test(start_paused = true)]
async fn cached_denials_hold_in_an_outage_and_do_not_count_as_successes() {
    let time = Time::default();
    let shaky = Shaky::new(time.store());
    let breaker = shaky.clone().timeout(millis(10)).breaker();
    let store = breaker.clone().deny_cache().fallback(time.store(), 1);
    let limiter = Limiter::named("default", store.clone());
    let take = async |key: &str| limiter.take(key, &HOURLY, 1).await;
    drop(limiter.take("alice", &HOURLY, 10).await);
    assert_eq!(take("alice").await.source(), Source::Local);
    shaky.set_mood(Mood::FailingSoon);
    while !breaker.is_open() {
        assert_eq!(take("bob").await.source(), Source::Fallback);
    }
    let calls = shaky.calls();
    for _ in 0..9 {
        // the breaker is due for a probe, but a cached denial is not a probe
        time.pass(millis(100)).await;
        let denial = take("alice").await;
        assert_eq!((denial.is_allowed(), denial.source()), (false, Source::DenyCache));
        assert!(breaker.is_open() && store.is_failing());
    }
    assert_eq!(shaky.calls(), calls);
    time.pass(millis(100)).await;
    let denial = take("alice").await;
    assert_eq!((denial.is_allowed(), denial.source()), (false, Source::Fallback), "mirrored");

    // now with the breaker around the cache
    let shaky = Shaky::new(time.store());
    let store = shaky.clone().deny_cache().breaker().failures(2).rate(100, 1_000);
    let limiter = Limiter::named("default", store.clone());
    drop(limiter.try_take("alice", &HOURLY, 10).await.expect("it works"));
    drop(limiter.try_take("alice", &HOURLY, 1).await.expect("it works"));
    shaky.set_mood(Mood::FailingSoon);
    for _ in 0..2 {
        assert!(!store.is_open());
        drop(limiter.try_take("alice", &HOURLY, 1).await.expect("known"));
        limiter.try_take("bob", &HOURLY, 1).await.expect_err("it fails");
    }
    assert!(store.is_open(), "a cached denial is not a success");
    time.pass(millis(100)).await;
    drop(limiter.try_take("alice", &HOURLY, 1).await.expect("known"));
    assert!(store.is_open(), "a cached denial is not a probe");
}
