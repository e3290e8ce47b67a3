//! Known denials, which need no store call.
//!
//! Time advances only by the tests.

use std::time::Duration;

use http::StatusCode;
use tokio_test::{assert_pending, assert_ready, task};
use tower_sluice::{
    Algorithm, Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
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
    random::rows,
    shaky::{Mood, Shaky},
    slow::Slow,
};

const HOURLY: Quota = Quota::per_hour(10);
const NANO: Duration = Duration::from_nanos(1);

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

/// Passes a charge of one unit for alice to the closure.
fn charged<T>(quotas: &[Quota], read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), quotas))
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
async fn a_key_calls_the_store_from_the_nanosecond_its_wait_ends() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let quota = Quota::per_second(5);
    let wait = exhaust(&store, quota, 1).retry_after().expect("a wait");
    time.pass(wait - NANO).await;
    let limiter = Limiter::named("default", store);
    let last = limiter.take("alice", &quota, 1).now();
    assert_eq!((last.source(), last.retry_after()), (Source::DenyCache, Some(NANO)));
    time.pass(NANO).await;
    assert!(limiter.take("alice", &quota, 1).now().is_allowed());
    assert_eq!(inner.takes(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_greater_cost_gets_its_own_wait_and_a_smaller_one_calls_the_store() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let limiter = Limiter::named("default", store.clone());
    drop(limiter.take("alice", &HOURLY, 7).now());
    assert!(!limiter.take("alice", &HOURLY, 5).now().is_allowed());
    time.pass(millis(700)).await;
    for cost in [5, 6, 10, 11] {
        let denial = limiter.take("alice", &HOURLY, cost).now();
        let plain = Limiter::named("default", inner.store()).take("alice", &HOURLY, cost).now();
        assert_eq!((denial.source(), plain.source()), (Source::DenyCache, Source::Local));
        assert_eq!(rows(&denial), rows(&plain), "cost {cost}");
    }
    assert_eq!(limiter.take("alice", &HOURLY, 11).now().retry_after(), None);
    let asked = inner.takes();
    assert!(limiter.take("alice", &HOURLY, 3).now().is_allowed());
    assert_eq!(inner.takes(), asked + 1);
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_never_fits_is_cached_too() {
    let (inner, store) = cached(&Time::default());
    let limiter = Limiter::named("default", store);
    for quota in [HOURLY, HOURLY.with_algorithm(Algorithm::SlidingLog)] {
        let asked = inner.takes();
        for source in [Source::Local, Source::DenyCache, Source::DenyCache] {
            let denial = limiter.take("dear", &quota, 11).now();
            assert_eq!((denial.source(), denial.retry_after()), (source, None));
        }
        assert_eq!(inner.takes(), asked + 1);
        assert!(limiter.take("dear", &quota, 5).now().is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn reads_and_report_only_charges_always_call_the_store() {
    let (inner, store) = cached(&Time::default());
    drop(exhaust(&store, HOURLY, 1));
    let quotas = [HOURLY];
    charged(&quotas, |charge| {
        let asks = [charge.with_cost(0), charge.with_report_only(true), charge.with_quota_index(0)];
        for (n, ask) in asks.into_iter().enumerate() {
            assert_eq!(store.take(&[ask]).now().source(), Source::Local, "{ask:?}");
            assert_eq!(inner.takes(), n + 2);
        }
        // these calls also cache nothing
        let fresh = inner.clone().deny_cache();
        for ask in [charge.with_report_only(true), charge.with_quota_index(0)] {
            drop(fresh.take(&[ask]).now());
        }
        assert_eq!(fresh.take(&[charge]).now().source(), Source::Local);
        assert_eq!(fresh.take(&[charge]).now().source(), Source::DenyCache);
        assert_eq!(fresh.take(&[charge, charge]).now().source(), Source::Local, "named twice");
    });
}

#[tokio::test(start_paused = true)]
async fn a_queueing_request_is_denied_while_the_queue_exceeds_its_max_wait() {
    let time = Time::default();
    let (_, store) = cached(&time);
    let quota = Quota::per_second(10).with_burst(1);
    let patient = |store: &Cached| {
        let quotas = [quota];
        charged(&quotas, |charge| store.take(&[charge.with_max_wait(millis(500))]).now())
    };
    let waits: Vec<_> = (0..6).map(|_| patient(&store).wait()).collect();
    assert_eq!(waits, [0, 100, 200, 300, 400, 500].map(millis));
    for source in [Source::Local, Source::DenyCache] {
        let denial = patient(&store);
        assert_eq!((denial.source(), denial.retry_after()), (source, Some(millis(600))));
    }
    time.pass(millis(100) - NANO).await;
    assert_eq!(patient(&store).source(), Source::DenyCache);
    time.pass(NANO).await;
    assert_eq!((patient(&store).wait(), patient(&store).is_allowed()), (millis(500), false));
}

/// Every local change of an account.
const CHANGES: [&str; 7] =
    ["refund", "late", "reset", "block", "unblock", "undo", "smaller charge"];

fn change(store: &Cached, name: &str, charge: Charge<'_>, taken: &Decision) {
    match name {
        "refund" => drop(store.adjust(&charge, -1).now()),
        "late" => drop(store.adjust(&charge, 1).now()),
        "reset" => drop(store.reset(&charge).now()),
        "block" => drop(store.block(&charge, secs(9)).now()),
        "unblock" => drop(store.unblock(&charge).now()),
        "undo" => store.undo(&[charge.with_cost(8)], taken, None),
        _ => assert!(store.take(&[charge.with_cost(1)]).now().is_allowed()),
    }
}

#[tokio::test(start_paused = true)]
async fn local_changes_apply_at_once() {
    for name in CHANGES {
        let (inner, store) = cached(&Time::default());
        let quotas = [HOURLY];
        charged(&quotas, |charge| {
            let taken = store.take(&[charge.with_cost(8)]).now();
            assert!(!store.take(&[charge.with_cost(5)]).now().is_allowed());
            assert_eq!(store.take(&[charge.with_cost(5)]).now().source(), Source::DenyCache);
            change(&store, name, charge, &taken);
            let asked = inner.takes();
            let (plain, changed) =
                (inner.store().take(&[charge.with_cost(5)]), store.take(&[charge.with_cost(5)]));
            assert_eq!(rows(&plain.now()).len(), rows(&changed.now()).len());
            assert_eq!(inner.takes(), asked + 1, "{name}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_and_its_end_are_cached() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let quotas = [HOURLY];
    charged(&quotas, |charge| {
        drop(store.block(&charge, secs(9)).now());
        for source in [Source::Local, Source::DenyCache] {
            let denial = store.take(&[charge.with_cost(2)]).now();
            assert_eq!((denial.source(), denial.retry_after()), (source, Some(secs(9))));
        }
        let dearer = store.take(&[charge.with_cost(11)]).now();
        assert_eq!((dearer.source(), dearer.retry_after()), (Source::DenyCache, Some(secs(9))));
        assert_eq!(store.take(&[charge]).now().source(), Source::DenyCache, "for any cost");
        drop(store.unblock(&charge).now());
        assert!(store.take(&[charge]).now().is_allowed());
        assert_eq!(inner.takes(), 2);
    });
}

#[tokio::test(start_paused = true)]
async fn another_plan_drops_the_denials_of_the_first() {
    let (inner, store) = cached(&Time::default());
    drop(exhaust(&store, HOURLY, 1));
    let limiter = Limiter::named("default", store);
    let dear = Quota::per_hour(100).with_burst(200);
    assert!(limiter.take("alice", &dear, 1).now().is_allowed());
    assert!(!limiter.take("alice", &HOURLY, 1).now().is_allowed());
    assert_eq!(limiter.take("alice", &HOURLY, 1).now().source(), Source::DenyCache);
    assert!(!limiter.take("alice", &Quota::per_hour(9), 1).now().is_allowed());
    assert_eq!(limiter.take("alice", &HOURLY, 1).now().source(), Source::Local);
    assert_eq!(inner.takes(), 5);
}

#[tokio::test(start_paused = true)]
async fn keys_and_rules_are_cached_separately() {
    let (_, store) = cached(&Time::default());
    drop(exhaust(&store, HOURLY, 1));
    assert!(Limiter::named("default", store.clone()).take("bob", &HOURLY, 1).now().is_allowed());
    let other = Limiter::named("other", store);
    assert!(other.take("alice", &HOURLY, 1).now().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn changes_of_another_process_apply_after_the_lifetime() {
    let time = Time::default();
    let shared = time.0.store(64);
    for (life, store) in [
        (secs(1), shared.clone().deny_cache()),
        (millis(250), shared.clone().deny_cache().max_age(millis(250))),
    ] {
        let limiter = Limiter::named("default", store);
        drop(limiter.charge("alice", &HOURLY, 10).now());
        assert!(!limiter.take("alice", &HOURLY, 1).now().is_allowed());
        drop(Limiter::named("default", shared.clone()).reset("alice", &HOURLY).now());
        time.pass(life - NANO).await;
        assert!(!limiter.take("alice", &HOURLY, 1).now().is_allowed(), "not yet");
        time.pass(NANO).await;
        assert!(limiter.take("alice", &HOURLY, 1).now().is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_starts_with_the_call_and_its_wait_with_the_answer() {
    let time = Time::default();
    let inner = Slow::new(time.store());
    let limiter = Limiter::named("default", inner.clone().deny_cache());
    drop(Limiter::named("default", inner.store.clone()).charge("alice", &HOURLY, 10).now());
    let mut asked = task::spawn(limiter.take("alice", &HOURLY, 1).into_future());
    assert_pending!(asked.poll());
    time.pass(millis(300)).await;
    inner.tell(1);
    let wait = assert_ready!(asked.poll()).retry_after().expect("a wait");
    time.pass(millis(700) - NANO).await;
    let decision = limiter.take("alice", &HOURLY, 1).await;
    assert_eq!(decision.source(), Source::DenyCache);
    assert_eq!(decision.retry_after(), Some(wait - (millis(700) - NANO)));
    let now = Limiter::named("default", inner.store.clone()).take("alice", &HOURLY, 1).now();
    assert!(decision.retry_after() >= now.retry_after(), "no wait is reported too short");
    time.pass(NANO).await;
    inner.tell(1);
    let again = limiter.take("alice", &HOURLY, 1).await;
    assert_eq!(again.source(), Source::Local);
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
async fn a_change_that_is_not_awaited_drops_the_cached_denial() {
    let inner = Slow::new(Time::default().store());
    let limiter = Limiter::named("default", inner.clone().deny_cache());
    drop(Limiter::named("default", inner.store.clone()).charge("alice", &HOURLY, 10).now());
    inner.tell(1);
    assert!(!limiter.take("alice", &HOURLY, 1).await.is_allowed());
    drop(limiter.reset("alice", &HOURLY));
    inner.tell(1);
    assert!(limiter.take("alice", &HOURLY, 1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn several_charges_are_denied_by_the_cached_one() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let [user, site, trial] = ["user", "site", "trial"].map(|n| RuleName::new(n).expect("a name"));
    let (alice, all) = (Key::from("alice"), Key::everyone());
    let (by_user, by_site) = ([HOURLY, Quota::per_day(50)], [Quota::per_hour(100)]);
    let charges = [
        Charge::new(trial, &all, &by_site).with_report_only(true),
        Charge::new(site, &all, &by_site),
        Charge::new(user, &alice, &by_user),
    ];
    drop(store.adjust(&charges[2], 10).now());
    let plain = store.take(&charges).now();
    assert_eq!((plain.source(), plain.is_allowed()), (Source::Local, false));
    time.pass(millis(9)).await;
    let decision = store.take(&charges).now();
    let now = inner.store().take(&charges).now();
    assert_eq!((decision.source(), inner.takes()), (Source::DenyCache, 1));
    let outcomes = decision.outcomes();
    assert_eq!(outcomes.len(), 4);
    assert_eq!(rows(&decision)[2..], rows(&now)[2..]);
    assert_eq!(
        decision.binding().map(|outcome| (outcome.rule(), outcome.quota_index())),
        Some((user, 0))
    );
    for (outcome, now) in outcomes.iter().zip(now.outcomes()) {
        let place = |outcome: &Outcome| {
            (outcome.rule(), outcome.quota_index(), outcome.is_report_only(), outcome.is_denied())
        };
        assert_eq!(place(outcome), place(now));
    }
    // the site's account was not denied
    assert!(store.take(&charges[1..2]).now().is_allowed());
    assert_eq!(store.take(&charges[2..]).now().source(), Source::DenyCache);
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
async fn a_first_contact_that_opens_an_account_reaches_the_store() {
    let time = Time::default();
    let (inner, store) = cached(&time);
    let late = [Quota::per_second(10).with_initial(0)];
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    let [one, two] = ["one", "two"].map(|name| RuleName::new(name).expect("a name"));
    let hourly = [HOURLY];
    let known = Charge::new(one, &alice, &hourly);
    drop(store.adjust(&known, 10).now());
    assert!(!store.take(&[known]).now().is_allowed());
    let new_key = Charge::new(two, &bob, &late);
    assert_eq!(store.take(&[known, new_key]).now().source(), Source::Local);
    time.pass(millis(100)).await;
    assert!(store.take(&[new_key]).now().is_allowed(), "the denied call opened it");
    assert_eq!(inner.takes(), 3);
}

#[tokio::test(start_paused = true)]
async fn decisions_of_a_fallback_are_not_cached() {
    let shaky = Shaky::new(Time::default().store());
    let (closed, here) = (shaky.clone().fail_closed(), Time::default().store());
    shaky.is(Mood::Failing);
    let limiter = Limiter::named("default", closed.deny_cache());
    for _ in 0..2 {
        let denial = limiter.take("alice", &HOURLY, 1).await;
        assert_eq!(denial.source(), Source::FailedClosed);
    }
    let limiter = Limiter::named("default", shaky.clone().fallback(here, 1).deny_cache());
    drop(limiter.take("alice", &HOURLY, 10).await);
    for _ in 0..2 {
        let denial = limiter.take("alice", &HOURLY, 1).await;
        assert_eq!((denial.is_allowed(), denial.source()), (false, Source::Fallback));
    }
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
    shaky.is(Mood::FailingSoon);
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
    shaky.is(Mood::FailingSoon);
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
async fn a_full_set_evicts_the_denial_that_ends_first() {
    let time = Time::default();
    let store = time.store().deny_cache().capacity(1);
    let limiter = Limiter::named("default", store.clone());
    let quick = Quota::per_second(20);
    drop(limiter.charge("quick", &quick, 20).now());
    assert!(!limiter.take("quick", &quick, 1).now().is_allowed());
    let nobody = Quota::blocked();
    for key in 0..8_u32 {
        assert!(!limiter.take(key, &nobody, 1).now().is_allowed());
    }
    for key in 0..8_u32 {
        assert_eq!(limiter.take(key, &nobody, 1).now().source(), Source::DenyCache);
    }
    assert_eq!(limiter.take("quick", &quick, 1).now().source(), Source::Local);
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

#[test]
#[should_panic(expected = "max_age is 61s; give a time such as 1s, at most 60s: until then")]
fn a_denial_is_repeated_for_at_most_a_minute() {
    let cache = LocalStore::with_capacity(1).deny_cache();
    drop(cache.max_age(secs(60)).capacity(1 << 10).max_age(secs(61)));
}

#[test]
#[should_panic(expected = "capacity is 0; give 1 to 16777216, the number of hot keys to keep")]
fn a_cache_has_room_for_a_denial() {
    drop(LocalStore::with_capacity(1).deny_cache().capacity(0));
}
