//! A store that fails gets no calls, except one probe at a time.
//!
//! Time advances only by the tests.

use std::{sync::Barrier, thread, time::Duration};

use futures::FutureExt;
use tokio::time::advance;
use tokio_test::{assert_pending, task};
use tower::BoxError;
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt,
    rule::RuleName,
    store::{Answer, Breaker, BreakerError, Charge},
    testing::FakeClock,
};

use crate::support::{
    driven::{millis, secs},
    shaky::{CALLS, Mood, Shaky, call},
};

const HOURLY: Quota = Quota::per_hour(1_000_000);
type Later = <Breaker<Shaky> as Store>::Future;

/// Passes a charge of one unit to the closure.
fn charged<T>(read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), HOURLY.as_ref()))
}

/// A store inside its breaker.
#[derive(Clone)]
struct Guarded {
    inner: Shaky,
    store: Breaker<Shaky>,
}

impl Guarded {
    fn new(mood: Mood) -> Self {
        Self::set(mood, |breaker| breaker)
    }

    fn set(mood: Mood, set: impl FnOnce(Breaker<Shaky>) -> Breaker<Shaky>) -> Self {
        let inner = Shaky::new(FakeClock::new().store(64));
        inner.set_mood(mood);
        Self { store: set(inner.clone().breaker()), inner }
    }

    /// Returns a breaker opened by five failures.
    fn open() -> Self {
        let guarded = Self::new(Mood::FailingSoon);
        guarded.fail(5);
        guarded
    }

    fn ask(&self) -> Answer<Later> {
        charged(|charge| self.store.take(&[charge]))
    }

    /// Returns the result of a store that answers immediately.
    fn take(&self) -> Result<Decision, BreakerError<BoxError>> {
        match self.ask() {
            Answer::Now(answer) => answer,
            Answer::Later(answer) => answer.now_or_never().expect("it is there"),
        }
    }

    /// Fails this number of calls, each in the inner store.
    fn fail(&self, times: usize) {
        for _ in 0..times {
            assert!(matches!(self.take(), Err(BreakerError::Store(_))));
        }
    }

    /// Returns the remaining time of the open breaker, without a call to the inner store.
    fn open_for(&self) -> Duration {
        let calls = self.inner.calls();
        let Err(BreakerError::Open { retry_after }) = self.take() else { panic!("not open") };
        assert_eq!((self.inner.calls(), self.store.is_open()), (calls, true));
        retry_after
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_of_any_call_open_it() {
    for name in CALLS {
        for mood in [Mood::FailingSoon, Mood::FailingLate(millis(1))] {
            let Guarded { inner, store } = Guarded::new(mood);
            for _ in 0..5 {
                assert!(!store.is_open(), "{name}");
                let error = charged(|charge| call(&store, name, charge)).await.expect_err("fails");
                assert_eq!(error.to_string(), "redis://10.0.0.7 is down");
            }
            assert!(store.is_open(), "{name}, {mood:?}");
            for other in CALLS {
                let Answer::Now(answer) = charged(|charge| call(&store, other, charge)) else {
                    panic!("{other} waits for an open breaker");
                };
                assert!(matches!(answer, Err(BreakerError::Open { .. })), "{other}");
            }
            assert_eq!(inner.calls(), 5, "{name}, {mood:?}");
        }
    }
}

/// Alternates between failures and successes.
fn alternate(guarded: &Guarded, answers: usize) {
    for at in 0..answers {
        guarded.inner.set_mood(if at % 2 == 0 { Mood::FailingSoon } else { Mood::WellSoon });
        let _ = guarded.take();
    }
}

#[tokio::test(start_paused = true)]
async fn half_of_twenty_answers_within_a_second_open_it() {
    let guarded = Guarded::new(Mood::WellSoon);
    advance(secs(7)).await;
    alternate(&guarded, 19);
    assert!(!guarded.store.is_open(), "19 answers are too few");
    advance(millis(899)).await;
    alternate(&guarded, 1);
    assert!(guarded.store.is_open());

    let rare = Guarded::new(Mood::WellSoon);
    for later in [1_000, 1_100].repeat(20) {
        alternate(&rare, 19);
        advance(millis(later)).await;
    }
    assert!(!rare.store.is_open(), "20 answers, but not within a second");

    let few = Guarded::new(Mood::WellSoon);
    for at in 0..2_000 {
        few.inner.set_mood(if at % 9 < 5 { Mood::WellSoon } else { Mood::FailingSoon });
        few.take().map_or_else(|error| assert!(matches!(error, BreakerError::Store(_))), drop);
        advance(millis(1)).await;
    }
    assert!(!few.store.is_open(), "four of nine are less than half");

    let strict = Guarded::set(Mood::WellSoon, |breaker| breaker.rate(10, 10));
    (0..9).for_each(|_| assert!(strict.take().is_ok()));
    alternate(&strict, 1);
    assert!(strict.store.is_open());
}

#[test]
fn exactly_one_of_many_threads_is_the_probe() {
    const THREADS: usize = 16;
    let moment = Duration::from_nanos(1);
    for _ in 0..200 {
        let guarded = Guarded::set(Mood::FailingSoon, |breaker| breaker.open_for(moment..=moment));
        guarded.fail(5);
        guarded.inner.set_mood(Mood::Hanging);
        thread::sleep(Duration::from_micros(1));
        let start = Barrier::new(THREADS);
        let probes: Vec<_> = thread::scope(|scope| {
            let work = || {
                start.wait();
                match guarded.ask() {
                    Answer::Later(probe) => Some(probe),
                    Answer::Now(_) => None,
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|t| t.join().expect("no panic")).collect()
        });
        assert_eq!((probes.len(), guarded.inner.calls()), (1, 6));
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_stays_the_only_one_until_it_is_dropped() {
    let guarded = Guarded::open();
    advance(millis(100)).await;
    guarded.inner.set_mood(Mood::Hanging);
    for _ in 0..3 {
        let Answer::Later(probe) = guarded.ask() else { panic!("the place is free") };
        let mut probe = task::spawn(probe);
        assert_pending!(probe.poll());
        for _ in 0..10 {
            advance(secs(1)).await;
            assert!(guarded.open_for() <= millis(100));
        }
        drop(probe);
        assert!(guarded.store.is_open(), "the dropped probe does not count");
    }
    guarded.inner.set_mood(Mood::WellSoon);
    assert!(guarded.take().is_ok(), "the next is the probe");
    assert!(!guarded.store.is_open());
}

/// An answer without a call, as to a request without a charge.
#[tokio::test(start_paused = true)]
async fn an_immediate_answer_neither_closes_it_nor_ends_a_row_of_failures() {
    let guarded = Guarded::new(Mood::FailingSoon);
    for _ in 0..5 {
        guarded.fail(1);
        guarded.inner.set_mood(Mood::Well);
        let _ = guarded.take();
        guarded.inner.set_mood(Mood::FailingSoon);
    }
    assert!(guarded.store.is_open());
    advance(millis(100)).await;
    guarded.inner.set_mood(Mood::Well);
    for _ in 0..2 {
        assert!(guarded.take().is_ok() && guarded.store.is_open());
    }
    guarded.inner.set_mood(Mood::FailingSoon);
    guarded.fail(1);
    assert!(guarded.open_for() > millis(0));
}

#[tokio::test(start_paused = true)]
async fn undo_does_not_call_the_store_while_it_is_open() {
    let guarded = Guarded::new(Mood::Well);
    let undo = || {
        let taken = guarded.inner.store.take(&[]).now();
        charged(|charge| guarded.store.undo(&[charge], &taken, None));
        guarded.inner.given_back()
    };
    assert_eq!(undo(), 1);
    guarded.inner.set_mood(Mood::FailingSoon);
    guarded.fail(5);
    assert_eq!(undo(), 1);
    advance(millis(100)).await;
    assert_eq!(undo(), 1, "it is no probe");
    guarded.inner.set_mood(Mood::WellSoon);
    assert!(guarded.take().is_ok());
    assert_eq!(undo(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_longest_time_does_not_overflow() {
    let for_ever = |breaker: Breaker<Shaky>| breaker.open_for(Duration::MAX..=Duration::MAX);
    let guarded = Guarded::set(Mood::FailingSoon, for_ever);
    guarded.fail(5);
    assert!(guarded.open_for() > secs(1_000_000_000));
}
