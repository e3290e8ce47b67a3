//! An answer takes at most its budget, whatever the store does. Time stands still but where a test
//! waits.

mod support;

use std::{task::Poll, time::Duration};

use support::{
    driven::{millis, secs},
    shaky::{CALLS, Mood, Shaky, call},
};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, task};
use tower_sluice::{
    Charge, Key, Limiter, Quota, RuleName, Source, Store,
    store::{Deadline, DeadlineError},
    testing::FakeClock,
};

const HOURLY: Quota = Quota::per_hour(10);
const BUDGET: Duration = Duration::from_millis(100);

fn shaky(mood: Mood) -> Shaky {
    let shaky = Shaky::new(FakeClock::new().store(64));
    shaky.is(mood);
    shaky
}

/// Lends a charge of one unit.
fn charged<T>(read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), HOURLY.as_ref()))
}

#[test]
fn outside_a_runtime_it_can_be_asked_and_answers_at_once_pass_untouched() {
    let limiter = Limiter::new(shaky(Mood::Well).deadline(BUDGET));
    let decision = tokio_test::block_on(async { limiter.take("alice", &HOURLY, 3).await });
    let decision = decision.expect("a decision");
    assert_eq!((decision.source(), decision.remaining()), (Source::Local, Some(7)));
    let late = shaky(Mood::Late(secs(1))).deadline(BUDGET);
    for name in CALLS {
        drop(charged(|charge| call(&late, name, charge)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_for_the_whole_answer_of_every_call() {
    for name in CALLS {
        let start = Instant::now();
        let store = shaky(Mood::Late(millis(99)));
        let answer = charged(|charge| call(&store.clone().deadline(BUDGET), name, charge));
        assert!(answer.await.expect("in time").is_allowed(), "{name}");
        assert_eq!(start.elapsed(), millis(99), "{name}");

        for slow in [Mood::Late(millis(101)), Mood::FailingLate(secs(9)), Mood::Hanging] {
            let start = Instant::now();
            let store = shaky(slow);
            let answer = charged(|charge| call(&store.clone().deadline(BUDGET), name, charge));
            let error = answer.await.expect_err("too late");
            assert!(matches!(error, DeadlineError::Elapsed(BUDGET)), "{name}: {error:?}");
            assert_eq!(start.elapsed(), BUDGET, "{name}");
            assert_eq!((store.calls(), store.on_their_way()), (1, 0), "{name}: not tried again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_runs_from_the_question_and_not_from_the_first_look() {
    let store = shaky(Mood::Hanging);
    let start = Instant::now();
    let answer = Limiter::new(store.deadline(BUDGET)).take("alice", &HOURLY, 1);
    advance(millis(60)).await;
    answer.await.expect_err("too late");
    assert_eq!(start.elapsed(), BUDGET);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_dropped() {
    let store = shaky(Mood::Late(millis(150)));
    let limiter = Limiter::new(store.clone().deadline(BUDGET));
    let mut answer = task::spawn(limiter.take("alice", &HOURLY, 1).into_future());
    assert_pending!(answer.poll());
    advance(millis(99)).await;
    assert_pending!(answer.poll());
    assert_eq!(store.on_their_way(), 1);
    advance(millis(1)).await;
    assert!(answer.is_woken());
    assert!(matches!(answer.poll(), Poll::Ready(Err(DeadlineError::Elapsed(_)))));
    drop(answer);
    assert_eq!(store.on_their_way(), 0);
    advance(secs(1)).await;
    let left = charged(|charge| store.store.take(&[charge.cost(0)]).now());
    assert_eq!(left.remaining(), Some(10), "what was dropped did nothing more");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_there_counts_though_its_task_was_woken_late() {
    let store = shaky(Mood::Late(millis(50))).deadline(BUDGET);
    let mut answer = task::spawn(Limiter::new(store).take("alice", &HOURLY, 1).into_future());
    assert_pending!(answer.poll());
    advance(secs(10)).await;
    assert!(matches!(answer.poll(), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn the_store_s_own_errors_pass() {
    for mood in [Mood::Failing, Mood::FailingLate(millis(5))] {
        let limiter = Limiter::new(shaky(mood).deadline(BUDGET));
        let error = limiter.take("alice", &HOURLY, 1).await.expect_err("it fails");
        assert_eq!(error.to_string(), "redis://10.0.0.7 is down");
        assert!(matches!(error, DeadlineError::Store(_)));
    }
    let elapsed = DeadlineError::<std::io::Error>::Elapsed(BUDGET);
    let said = "no answer within 100ms; the charge may still have been made";
    assert_eq!(elapsed.to_string(), said);
}

#[test]
fn giving_back_and_checking_reach_the_store() {
    let store = shaky(Mood::Well);
    let bounded = store.clone().deadline(BUDGET);
    charged(|charge| {
        let taken = store.store.take(&[charge.cost(4)]).now();
        bounded.undo(&[charge.cost(4)], &taken, None);
        assert_eq!((store.given_back(), store.calls()), (1, 0));
        assert_eq!(store.store.take(&[charge.cost(0)]).now().remaining(), Some(10));
    });
    let (anyone, soft) = (Key::everyone(), [HOURLY.soft(1)]);
    let queueing = Charge::new(RuleName::default(), &anyone, &soft).max_wait(secs(1));
    assert_eq!(bounded.check(&[queueing]), store.store.check(&[queueing]));
    assert!(bounded.check(&[queueing]).is_err());
}

#[test]
fn a_budget_of_nothing_is_refused_with_field_value_and_fix() {
    let error = Deadline::try_new(shaky(Mood::Well), Duration::ZERO).expect_err("nothing");
    let said =
        "deadline: budget is 0 s; give a store time to answer, as 100 ms (Deadline::DEFAULT)";
    assert_eq!(error.to_string(), said);
    assert!(Deadline::try_new(shaky(Mood::Well), Deadline::DEFAULT).is_ok());
    assert_eq!(Deadline::DEFAULT, BUDGET);
}

#[test]
#[should_panic(expected = "deadline: budget is 0 s; give")]
fn a_budget_of_nothing_in_a_program_panics() {
    let _ = shaky(Mood::Well).deadline(Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_longest_budget_does_not_overflow() {
    let store = shaky(Mood::Late(millis(1))).deadline(Duration::MAX);
    assert!(Limiter::new(store).take("alice", &HOURLY, 1).await.is_ok());
}
