//! A governor limiter as a store, compared with the local store.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    RateLimiter,
    clock::{Clock, FakeRelativeClock},
    middleware::{NoOpMiddleware, StateInformationMiddleware},
};
use http::StatusCode;
use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Cost, Decision, Key, LivePlan, Plan, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::Source,
    key::Everyone,
    rule::RuleName,
    store::{Answer, Charge, GovernorStore, Never, Unsupported},
    testing::FakeClock,
};

use crate::support::{answer, get, quota};

fn same(quota: Quota) -> governor::Quota {
    let burst = NonZeroU32::new(quota.limit()).expect("not blocked");
    governor::Quota::with_period(quota.interval()).expect("above 0").allow_burst(burst)
}

/// Returns a store around a governor limiter of `quota` on `clock` that reports the units left.
fn reporting(quota: Quota, clock: impl Clock) -> impl Store<Error = Unsupported> {
    let limiter = RateLimiter::<Key, _, _, _>::dashmap_with_clock(same(quota), clock);
    GovernorStore::new(Arc::new(limiter.with_middleware::<StateInformationMiddleware>()))
}

type Undecided = Result<Decision, Unsupported>;

/// Returns a store that does not report them, as is governor's default, on a clock that stands
/// still.
fn plain(quota: Quota) -> impl Store<Error = Unsupported, Future = Never<Undecided>> {
    let clock = FakeRelativeClock::default();
    let limiter =
        RateLimiter::<Key, _, _, NoOpMiddleware<_>>::dashmap_with_clock(same(quota), clock);
    GovernorStore::new(Arc::new(limiter))
}

fn now<F: Future>(answer: Answer<F>) -> F::Output {
    match answer {
        Answer::Now(output) => output,
        Answer::Later(_) => unreachable!("governor decides at once"),
    }
}

fn take<S: Store>(store: &S, charge: Charge<'_>) -> Result<Decision, S::Error> {
    now(store.take(&[charge]))
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Uses periods in which `period / units` is a whole nanosecond, so that both have the same
    /// interval.
    #[test]
    fn governor_and_the_local_store_decide_alike(
        interval in (24_u32..64, 0_u64..).prop_map(|(shift, n)| (n >> shift).max(1)),
        (units, burst) in (1..1_000_u32, 1..20_u32),
        steps in vec((0..3_u32, 1..22_u32, 0..4_u64, 0..=1_000_u64), 1..100),
    ) {
        let period = Duration::from_nanos(interval) * units;
        let quota = Quota::new(units, period).expect("a quota").with_burst(burst);
        let (ours, theirs) = (FakeClock::new(), FakeRelativeClock::default());
        let (local, governor) = (ours.store(64), reporting(quota, theirs.clone()));
        let quotas = [quota];
        for (key, cost, intervals, permille) in steps {
            let time = intervals * interval * permille / 1_000;
            ours.advance(Duration::from_nanos(time));
            theirs.advance(Duration::from_nanos(time));
            let key = Key::from(key);
            let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(cost);
            let left = take(&local, charge).expect("infallible");
            let right = take(&governor, charge).expect("one charge");
            prop_assert_eq!(left.is_allowed(), right.is_allowed());
            prop_assert_eq!(left.retry_after(), right.retry_after());
            let (left, right) = (left.outcomes()[0], right.outcomes()[0]);
            if left.retry_after().is_none() {
                continue; // governor does not report the units left
            }
            prop_assert_eq!(left.limit(), right.limit());
            prop_assert_eq!(left.remaining(), right.remaining());
            if left.is_denied() {
                prop_assert_eq!(left.next_after(), right.next_after());
                prop_assert_eq!(left.reset_after(), right.reset_after());
            } else {
                // governor reports whole units for an allowed call
                prop_assert!(left.next_after() <= right.next_after());
                prop_assert!(left.reset_after() <= right.reset_after());
                prop_assert!(right.reset_after() - left.reset_after() < quota.interval());
            }
        }
    }
}

#[test]
fn unsupported_operations_of_governor_are_errors_that_name_them() {
    let five = quota("5/s");
    let (store, key, quotas) = (plain(five), Key::everyone(), [five, quota("9/h")]);
    let charge = Charge::new(RuleName::default(), &key, &quotas[..1]);
    let two = Charge::new(RuleName::default(), &key, &quotas);
    let error =
        |answer: Answer<Never<Undecided>>| now(answer).expect_err("unsupported").to_string();
    assert!(error(store.take(&[charge, charge])).contains("one charge under one quota"));
    assert!(error(store.take(&[two])).contains("one charge under one quota"));
    assert!(error(store.take(&[])).contains("one charge under one quota"));
    assert!(error(store.take(&[charge.with_cost(0)])).contains("cost 0"));
    assert!(error(store.take(&[charge.with_quota_index(1)])).contains("no quota with this index"));
    assert!(error(store.take(&[charge.with_headroom(1)])).contains("headroom"));
    assert!(
        error(store.take(&[charge.with_max_wait(Duration::from_secs(1))])).contains("max_wait")
    );
    assert!(error(store.adjust(&charge, -1)).contains("adjust"));
    assert!(error(store.reset(&charge)).contains("reset"));
    assert!(take(&store, charge).expect("one charge").is_allowed());
}

/// Under both policies, only charges that deny nothing pass.
#[tokio::test]
async fn charges_that_the_store_does_not_support_are_rejected() {
    let (five, hourly) = (Quota::per_second(5), Quota::per_hour(9));
    for is_open in [true, false] {
        let live = LivePlan::new(five);
        let layer = |cost: Cost, trial: bool| {
            let rule = Rule::new("api", Everyone, &live).cost(cost);
            let store = match is_open {
                true => plain(five).fail_open().boxed(),
                false => plain(five).fail_closed().boxed(),
            };
            RateLimitLayer::rules(rule, store).report_only(trial).expose_decision()
        };
        let status = async |layer| answer(layer, get("/")).await.status();
        let (built, trial) = (layer(1.into(), false), layer(1.into(), true));
        let free = layer(Cost::from_fn(|_| 0), false);
        assert_eq!(status(&built).await, StatusCode::OK);
        live.replace([five, hourly]);
        for _ in 0..2 {
            let rejected = answer(&built, get("/")).await;
            assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
            let decision = rejected.extensions().get::<Decision>().expect("exposed");
            assert_eq!(decision.source(), Source::FailedClosed);
        }
        for layer in [&free, &trial] {
            assert_eq!(status(layer).await, StatusCode::OK);
        }
        live.replace(five);
        assert_eq!(status(&built).await, StatusCode::OK);
        assert_eq!(status(&free).await, StatusCode::OK, "of a supported plan");
        live.replace([]);
        assert_eq!(status(&built).await == StatusCode::OK, is_open);
    }
}

/// Each alternative is a call of its own, so a store that decides one charge at a time can do them. It has
/// one account for both rules.
#[tokio::test]
async fn an_alternative_may_be_chosen_per_request() {
    const ONE: Quota = Quota::per_hour(1);
    let chosen = Rule::new("plan", Everyone, Plan::from_fn(|_, _| ONE.into()));
    let rules = chosen.or(Rule::new("credits", Everyone, ONE));
    let store = reporting(ONE, FakeRelativeClock::default());
    let layer = RateLimitLayer::rules(rules, store.fail_closed());
    for expected in [200, 429] {
        assert_eq!(answer(&layer, get("/")).await.status(), expected);
    }
}

/// Two choices are two charges of a request, although nothing is known of the first rule of the second one.
#[test]
fn two_choices_are_an_error_when_the_layer_is_built() {
    const ONE: Quota = Quota::per_hour(1);
    let rule = |name: &str, plan: Plan| Rule::new(name, Everyone, plan);
    let chosen = Plan::from_fn(|_, _| ONE.into());
    let first = rule("user", ONE.into()).or(rule("credits", ONE.into()));
    let second = rule("site", chosen).or(rule("spare", ONE.into()));
    let store = reporting(ONE, FakeRelativeClock::default()).fail_closed();
    let error = RateLimitLayer::try_rules((first, second), store).err().expect("one charge");
    assert!(error.to_string().contains("one charge under one quota"), "{error}");
}
