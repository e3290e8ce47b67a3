//! Decisions and outcomes that a store of a user creates.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tower_sluice::{
    Decision, Limiter, Quota, RateLimitLayer, Rule, decision::Outcome, key::Everyone,
    limiter::NotReady, rule::RuleName,
};

use crate::support::{always::Always, answer, get};

const SECOND: Duration = Duration::from_secs(1);

fn exhausted() -> Outcome {
    Outcome::full(RuleName::default(), 0, 5).with_remaining(0)
}

#[test]
fn the_settings_of_a_decision_read_back() {
    let freed = Arc::new(AtomicUsize::new(0));
    let free = {
        let freed = freed.clone();
        move || {
            freed.fetch_add(1, Relaxed);
        }
    };
    let plain = Decision::allow();
    assert_eq!((plain.wait(), plain.is_overage()), (Duration::ZERO, false));

    let mut decision = Decision::allow().with_wait(3 * SECOND).with_overage().with_slot(free);
    assert_eq!((decision.wait(), decision.is_overage()), (3 * SECOND, true));
    let slot = decision.take_slot().expect("a slot");
    assert!(decision.take_slot().is_none());
    drop(decision);
    assert_eq!(freed.load(Relaxed), 0);
    drop(slot);
    assert_eq!(freed.load(Relaxed), 1);
}

#[test]
fn the_settings_of_an_outcome_read_back() {
    let full = Outcome::full(RuleName::default(), 0, 5);
    assert_eq!((full.limit(), full.remaining()), (5, 5));
    assert_eq!((full.reset_after(), full.next_after()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(full.with_remaining(9).remaining(), 5, "at most the limit");

    let denied = exhausted().with_reset_after(5 * SECOND).with_next_after(SECOND);
    assert!(!denied.is_denied());
    let denied = denied.with_retry_after(Some(2 * SECOND));
    assert!(denied.is_denied());
    assert_eq!((denied.remaining(), denied.reset_after()), (0, 5 * SECOND));
    assert_eq!((denied.next_after(), denied.retry_after()), (SECOND, Some(2 * SECOND)));
    assert_eq!(exhausted().with_retry_after(None).retry_after(), None);

    let unknown = exhausted().with_estimated_retry_after(Duration::ZERO);
    assert!(unknown.is_denied() && unknown.is_estimated());
    assert_eq!(unknown.retry_after(), None, "only slots have an estimate");
    let unknown = Outcome::unknown(RuleName::default(), 0, Some(SECOND));
    assert_eq!((unknown.limit(), unknown.remaining(), unknown.held()), (0, 0, None));
    assert_eq!((unknown.next_after(), unknown.retry_after()), (Duration::ZERO, Some(SECOND)));
}

#[test]
fn the_wait_is_the_longest_of_the_slots_that_deny() {
    let slots = Outcome::slots(RuleName::default(), 0, 5, 3);
    assert_eq!((slots.limit(), slots.held(), slots.remaining()), (5, Some(3), 2));
    assert_eq!(slots.retry_after(), Some(Duration::ZERO));
    assert_eq!(no_slot(Duration::ZERO).retry_after(), Some(SECOND), "at least a second");

    let decision = Decision::deny()
        .with_outcome(no_slot(2 * SECOND))
        .with_outcome(no_slot(3 * SECOND))
        .with_outcome(no_slot(9 * SECOND).with_report_only(true))
        .with_outcome(exhausted().with_reset_after(9 * SECOND));
    assert_eq!(decision.retry_after(), Some(3 * SECOND));

    let of_a_rate = exhausted().with_retry_after(Some(4 * SECOND));
    let decision = Decision::deny().with_outcome(of_a_rate);
    assert_eq!(decision.retry_after(), Some(4 * SECOND));
    let decision = Decision::deny().with_outcome(no_slot(SECOND)).with_outcome(of_a_rate);
    assert_eq!(decision.retry_after(), Some(4 * SECOND));
    let wait = decision.binding().and_then(Outcome::retry_after);
    assert_eq!(wait, Some(4 * SECOND), "the quota of the wait decides");
    let never = exhausted().with_retry_after(None);
    let decision = Decision::deny().with_outcome(of_a_rate).with_outcome(never);
    assert_eq!(decision.retry_after(), None);
    assert_eq!(Decision::allow().with_outcome(exhausted()).retry_after(), Some(Duration::ZERO));
}

#[tokio::test]
async fn the_wait_of_a_denial_without_outcomes_is_unknown() {
    let limiter = Limiter::named("default", Always(Decision::deny));
    let ready = limiter.until_ready("alice", &Quota::per_second(1), 1).await;
    assert_eq!(ready.err(), Some(NotReady::UnknownWait));
}

/// A wait that cannot begin makes an overage of another quota a denial. Its text has no numbers that the
/// store does not know.
#[tokio::test]
async fn a_denial_is_no_overage_and_invents_no_numbers() {
    let waits = || {
        let unknown = Outcome::unknown(RuleName::new("api").expect("a name"), 0, Some(SECOND));
        Decision::allow().with_overage().with_wait(SECOND).with_outcome(unknown)
    };
    let tokens = Quota::per_second(1).with_unit("tokens");
    let rule = Rule::new("api", Everyone, tokens).max_wait(SECOND);
    let layer = RateLimitLayer::rules(rule, Always(waits));
    layer.queue_handle().close();
    let denied = answer(&layer, get("/")).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers().get("x-ratelimit-overage"), None);
    assert_eq!(denied.body(), "Quota exhausted; retry in 1 s.\n");
}

/// governor does not report the units left to a call that asks for more than the limit.
#[cfg(feature = "governor")]
#[tokio::test]
async fn what_is_left_of_a_governor_limiter_is_taken_by_a_call_for_more_than_its_limit() {
    use std::num::NonZeroU32;
    use tower_sluice::{Key, StoreExt, store::GovernorStore};

    let ten = governor::Quota::per_hour(NonZeroU32::new(10).expect("above 0"));
    let governor = Arc::new(governor::RateLimiter::<Key, _, _>::keyed(ten));
    let limiter = Limiter::named("default", GovernorStore::new(governor).fail_closed());
    for (most, taken) in [(4, 4), (40, 6), (40, 0)] {
        assert_eq!(limiter.take_up_to("alice", &Quota::per_hour(10), most).await, taken);
    }
}

#[cfg(feature = "governor")]
#[tokio::test(start_paused = true)]
async fn a_call_that_the_store_does_not_support_is_not_waited_for() {
    use std::num::NonZeroU32;
    use tokio::time::timeout;
    use tower_sluice::{Key, StoreExt, store::GovernorStore};

    let ten = governor::Quota::per_hour(NonZeroU32::new(10).expect("above 0"));
    let governor = Arc::new(governor::RateLimiter::<Key, _, _>::keyed(ten));
    let store = GovernorStore::new(governor);
    let two = [Quota::per_second(5), Quota::per_hour(9)];
    for store in [store.clone().fail_open().boxed(), store.fail_closed().boxed()] {
        let limiter = Limiter::named("default", store);
        let ready = timeout(1_000 * SECOND, limiter.until_ready("alice", &two, 1)).await;
        let error = ready.expect("no wait").expect_err("two quotas");
        assert!(matches!(error, NotReady::Unsupported(_)), "{error}");
    }
}

/// Returns the denial of a concurrent quota, with the time until a slot is probably free.
fn no_slot(free_in: Duration) -> Outcome {
    let outcome = Outcome::slots(RuleName::default(), 0, 5, 5);
    outcome.with_estimated_retry_after(free_in)
}
