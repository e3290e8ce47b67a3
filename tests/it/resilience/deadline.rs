//! Timeouts of store calls.
//!
//! Time advances only by the tests.

use std::{task::Poll, time::Duration};

use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, task};
use tower_sluice::{
    Key, Limiter, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Charge, Timeout, TimeoutError},
    testing::FakeClock,
};

use crate::support::{
    driven::{millis, secs},
    shaky::{CALLS, Mood, Shaky, call},
};

const HOURLY: Quota = Quota::per_hour(10);
const BUDGET: Duration = Duration::from_millis(100);

fn shaky(mood: Mood) -> Shaky {
    let shaky = Shaky::new(FakeClock::new().store(64));
    shaky.is(mood);
    shaky
}

/// Passes a charge of one unit to the closure.
fn charged<T>(read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), HOURLY.as_ref()))
}

#[test]
fn outside_a_runtime_immediate_answers_pass_unchanged() {
    let limiter = Limiter::named("default", shaky(Mood::Well).timeout(BUDGET));
    let decision = tokio_test::block_on(async { limiter.try_take("alice", &HOURLY, 3).await });
    let decision = decision.expect("a decision");
    assert_eq!((decision.source(), decision.remaining()), (Source::Local, Some(7)));
    let late = shaky(Mood::Late(secs(1))).timeout(BUDGET);
    for name in CALLS {
        drop(charged(|charge| call(&late, name, charge)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_covers_the_whole_answer_of_every_call() {
    for name in CALLS {
        let start = Instant::now();
        let store = shaky(Mood::Late(millis(99)));
        let answer = charged(|charge| call(&store.clone().timeout(BUDGET), name, charge));
        assert!(answer.await.expect("in time").is_allowed(), "{name}");
        assert_eq!(start.elapsed(), millis(99), "{name}");

        for slow in [Mood::Late(millis(101)), Mood::FailingLate(secs(9)), Mood::Hanging] {
            let start = Instant::now();
            let store = shaky(slow);
            let answer = charged(|charge| call(&store.clone().timeout(BUDGET), name, charge));
            let error = answer.await.expect_err("too late");
            assert!(matches!(error, TimeoutError::Elapsed(BUDGET)), "{name}: {error:?}");
            assert_eq!(start.elapsed(), BUDGET, "{name}");
            assert_eq!((store.calls(), store.on_their_way()), (1, 0), "{name}: not tried again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_starts_with_the_call_and_not_with_the_first_poll() {
    let store = shaky(Mood::Hanging);
    let start = Instant::now();
    let answer = Limiter::named("default", store.timeout(BUDGET)).try_take("alice", &HOURLY, 1);
    advance(millis(60)).await;
    answer.await.expect_err("too late");
    assert_eq!(start.elapsed(), BUDGET);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_dropped() {
    let store = shaky(Mood::Late(millis(150)));
    let limiter = Limiter::named("default", store.clone().timeout(BUDGET));
    let mut answer = task::spawn(limiter.try_take("alice", &HOURLY, 1).into_future());
    assert_pending!(answer.poll());
    advance(millis(99)).await;
    assert_pending!(answer.poll());
    assert_eq!(store.on_their_way(), 1);
    advance(millis(1)).await;
    assert!(answer.is_woken());
    assert!(matches!(answer.poll(), Poll::Ready(Err(TimeoutError::Elapsed(_)))));
    drop(answer);
    assert_eq!(store.on_their_way(), 0);
    advance(secs(1)).await;
    let left = charged(|charge| store.store.take(&[charge.with_cost(0)]).now());
    assert_eq!(left.remaining(), Some(10), "the dropped call did nothing more");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_ready_counts_even_if_its_task_is_polled_late() {
    let store = shaky(Mood::Late(millis(50))).timeout(BUDGET);
    let mut answer =
        task::spawn(Limiter::named("default", store).try_take("alice", &HOURLY, 1).into_future());
    assert_pending!(answer.poll());
    advance(secs(10)).await;
    assert!(matches!(answer.poll(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_store_pass_through() {
    for mood in [Mood::Failing, Mood::FailingLate(millis(5))] {
        let limiter = Limiter::named("default", shaky(mood).timeout(BUDGET));
        let error = limiter.try_take("alice", &HOURLY, 1).await.expect_err("it fails");
        assert_eq!(error.to_string(), "redis://10.0.0.7 is down");
        assert!(matches!(error, TimeoutError::Store(_)));
    }
    let elapsed = TimeoutError::<std::io::Error>::Elapsed(BUDGET);
    let said = "no answer within 100ms; the charge may still have been made";
    assert_eq!(elapsed.to_string(), said);
}

#[test]
fn undo_and_supports_reach_the_store() {
    let store = shaky(Mood::Well);
    let bounded = store.clone().timeout(BUDGET);
    charged(|charge| {
        let taken = store.store.take(&[charge.with_cost(4)]).now();
        bounded.undo(&[charge.with_cost(4)], &taken, None);
        assert_eq!((store.given_back(), store.calls()), (1, 0));
        assert_eq!(store.store.take(&[charge.with_cost(0)]).now().remaining(), Some(10));
    });
    let (anyone, soft) = (Key::everyone(), [HOURLY.with_soft(1)]);
    let queueing = Charge::new(RuleName::default(), &anyone, &soft).with_max_wait(secs(1));
    assert_eq!(bounded.supports(&[queueing]), store.store.supports(&[queueing]));
    assert!(bounded.supports(&[queueing]).is_err());
}

#[test]
fn the_default_budget_is_100_ms() {
    assert_eq!(Timeout::DEFAULT, BUDGET);
}

#[test]
#[should_panic(expected = "timeout: limit is 0 s; give")]
fn a_timeout_of_zero_panics() {
    let _ = shaky(Mood::Well).timeout(Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_longest_timeout_does_not_overflow() {
    let store = shaky(Mood::Late(millis(1))).timeout(Duration::MAX);
    assert!(Limiter::named("default", store).try_take("alice", &HOURLY, 1).await.is_ok());
}
