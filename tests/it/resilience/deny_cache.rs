//! Known denials, which need no store call.
//!
//! Time advances only by the tests.

use http::StatusCode;
use tokio_test::{assert_ready, task};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::{Outcome, Source},
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
    slow::Slow,
};

const HOURLY: Quota = Quota::per_hour(10);
type Cached = DenyCache<Counting<LocalStore>>;

/// A counting store and the deny cache around it.
fn cached(time: &Time) -> (Counting<LocalStore>, Cached) {
    let inner = Counting::new(time.0.store(64));
    (inner.clone(), inner.deny_cache())
}

/// Exhausts the account and caches a denial of `cost`.
fn exhaust(store: &Cached, quota: Quota, cost: u32) -> Decision {
    let limiter = Limiter::named("default", store.clone());
    drop(limiter.charge("alice", &quota, quota.limit()).now());
    let denial = limiter.take("alice", &quota, cost).now();
    assert_eq!((denial.is_allowed(), denial.source()), (false, Source::Local));
    denial
}

#[tokio::test(start_paused = true)]
async fn a_denied_key_calls_the_store_once_per_lifetime() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let mut wait = exhaust(&store, HOURLY, 1).retry_after();
    for n in 1..5_000 {
        time.pass(millis(1)).await;
        let denial = Limiter::named("default", store.clone()).take("alice", &HOURLY, 1).now();
        wait = wait.map(|wait| wait - millis(1));
        let source = if n % 1_000 == 0 { Source::Local } else { Source::DenyCache };
        assert_eq!((denial.source(), denial.retry_after()), (source, wait), "after {n} ms");
    }
    assert_eq!(inner.takes(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_answer_older_than_a_change_is_not_cached() {
    for name in ["refund", "reset", "undo", "another plan"] {
        let inner = Slow::new(Time::default().store());
        let store = inner.clone().deny_cache();
        let (key, quotas, rule) = (Key::from("alice"), [HOURLY], RuleName::default());
        let charge = Charge::new(rule, &key, &quotas);
        let taken = inner.store.take(&[charge.with_cost(10)]).now();
        // decided now, delivered below
        let mut before = task::spawn(store.take(&[charge]).into_future());
        inner.confirm(1);
        match name {
            "refund" => drop(store.adjust(&charge, -10).await),
            "reset" => drop(store.reset(&charge).await),
            "undo" => store.undo(&[charge.with_cost(10)], &taken, None),
            _ => {
                let other = [Quota::per_hour(9)];
                inner.tell(1);
                let dear = Charge::new(rule, &key, &other).with_cost(9);
                let denial = store.take(&[dear]).await.expect("infallible");
                assert!(!denial.is_allowed());
                // simulates a store that drops the account of another plan
                drop(inner.store.reset(&charge).now());
            }
        }
        inner.tell(1);
        let denial = assert_ready!(before.poll()).expect("infallible");
        assert!(!denial.is_allowed(), "{name}: the call was made before the change");
        inner.tell(1);
        let now = store.take(&[charge]).await.expect("infallible");
        assert!(now.is_allowed(), "{name}: {now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_several_cached_denials_the_longest_is_reported() {
    let (_, store) = cached(&Time::default());
    let [user, site] = ["user", "site"].map(|name| RuleName::new(name).expect("a name"));
    let (alice, all) = (Key::from("alice"), Key::everyone());
    let (by_user, by_site) = ([HOURLY], [Quota::per_hour(6)]);
    let charges = [Charge::new(user, &alice, &by_user), Charge::new(site, &all, &by_site)];
    for (charge, (units, wait)) in charges.iter().zip([(10, 360), (6, 600)]) {
        drop(store.adjust(charge, units).now());
        assert_eq!(store.take(&[*charge]).now().retry_after(), Some(secs(wait)));
    }
    for (cost, wait) in [(1, 600), (5, 1_800)] {
        let denial = store.take(&[charges[0].with_cost(cost), charges[1]]).now();
        let expected = (Source::DenyCache, Some(secs(wait)));
        assert_eq!((denial.source(), denial.retry_after()), expected, "cost {cost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_only_rule_is_ignored_beside_a_cached_denial() {
    let (_, store) = cached(&Time::default());
    let [one, two] = ["one", "two"].map(|name| RuleName::new(name).expect("a name"));
    let (key, quotas) = (Key::from("alice"), [HOURLY]);
    let charges = [Charge::new(one, &key, &quotas), Charge::new(two, &key, &quotas)];
    for charge in charges {
        drop(store.adjust(&charge, 10).now());
        assert!(!store.take(&[charge]).now().is_allowed());
    }
    let decision = store.take(&[charges[0].with_report_only(true), charges[1]]).now();
    let flags = |outcome: &Outcome| (outcome.is_report_only(), outcome.is_denied());
    assert_eq!(decision.source(), Source::DenyCache);
    assert_eq!(
        decision.outcomes().iter().map(flags).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );
}

/// Simulates a cluster, in which the accounts are on different servers.
#[tokio::test(start_paused = true)]
async fn a_temporary_charge_of_a_denied_call_is_not_kept_as_a_denial() {
    let inner = Slow::new(Time::default().store());
    let store = inner.clone().deny_cache();
    let [site, user] = ["site", "user"].map(|name| RuleName::new(name).expect("a name"));
    let (all, alice) = (Key::everyone(), Key::from("alice"));
    let (once, hourly) = ([Quota::per_hour(1)], [HOURLY]);
    let (site, user) = (Charge::new(site, &all, &once), Charge::new(user, &alice, &hourly));
    drop(inner.store.adjust(&user, 10).now());
    // the call is in flight, and the site stays charged until the other server denies
    let mut call = task::spawn(store.take(&[site, user]).into_future());
    let moment = inner.store.take(&[site]).now();
    inner.tell(1);
    assert!(!store.take(&[site]).await.expect("infallible").is_allowed());
    assert_eq!(store.take(&[site]).await.expect("infallible").source(), Source::DenyCache);
    inner.store.undo(&[site], &moment, None);
    inner.tell(1);
    assert!(!assert_ready!(call.poll()).expect("infallible").is_allowed());
    inner.tell(1);
    assert!(store.take(&[site]).await.expect("infallible").is_allowed());
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
