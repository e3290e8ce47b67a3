//! A store that fails gets no calls, except one probe at a time.
//!
//! Time advances only by the tests.

use std::{
    ops::RangeInclusive,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

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
const FIRST: RangeInclusive<Duration> = millis(50)..=millis(100);

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
        inner.is(mood);
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

/// A quota that the store cannot count is such an error. A client with such a quota must not open
/// the breaker for others.
#[tokio::test(start_paused = true)]
async fn an_error_without_a_call_to_the_store_does_not_count() {
    let guarded = Guarded::new(Mood::Failing);
    guarded.fail(100);
    assert!(!guarded.store.is_open());
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(5);
    assert!(guarded.store.is_open());
}

#[tokio::test(start_paused = true)]
async fn timeouts_open_it() {
    let inner = Shaky::new(FakeClock::new().store(64));
    inner.is(Mood::Hanging);
    let store = inner.clone().timeout(millis(10)).breaker();
    for _ in 0..5 {
        charged(|charge| store.take(&[charge])).await.expect_err("it hangs");
    }
    assert!(store.is_open());
    let open = charged(|charge| store.take(&[charge])).await.expect_err("it is open");
    assert!(open.to_string().starts_with("the store failed and is not called again for "));
}

#[tokio::test(start_paused = true)]
async fn a_success_resets_the_count_of_failures() {
    let guarded = Guarded::set(Mood::Well, |breaker| breaker.rate(100, 1_000));
    for _ in 0..50 {
        guarded.inner.is(Mood::FailingSoon);
        guarded.fail(4);
        guarded.inner.is(Mood::Well);
        assert!(guarded.take().is_ok());
    }
    assert!(!guarded.store.is_open());
    let patient = Guarded::set(Mood::FailingSoon, |breaker| breaker.failures(7).rate(100, 1_000));
    patient.fail(7);
    assert!(patient.store.is_open());
}

/// Alternates between failures and successes.
fn alternate(guarded: &Guarded, answers: usize) {
    for at in 0..answers {
        guarded.inner.is(if at % 2 == 0 { Mood::FailingSoon } else { Mood::Well });
        let _ = guarded.take();
    }
}

#[tokio::test(start_paused = true)]
async fn half_of_twenty_answers_within_a_second_open_it() {
    let guarded = Guarded::new(Mood::Well);
    advance(secs(7)).await;
    alternate(&guarded, 19);
    assert!(!guarded.store.is_open(), "19 answers are too few");
    advance(millis(899)).await;
    alternate(&guarded, 1);
    assert!(guarded.store.is_open());

    let rare = Guarded::new(Mood::Well);
    for later in [1_000, 1_100].repeat(20) {
        alternate(&rare, 19);
        advance(millis(later)).await;
    }
    assert!(!rare.store.is_open(), "20 answers, but not within a second");

    let few = Guarded::new(Mood::Well);
    for at in 0..2_000 {
        few.inner.is(if at % 9 < 5 { Mood::Well } else { Mood::FailingSoon });
        few.take().map_or_else(|error| assert!(matches!(error, BreakerError::Store(_))), drop);
        advance(millis(1)).await;
    }
    assert!(!few.store.is_open(), "four of nine are less than half");

    let strict = Guarded::set(Mood::Well, |breaker| breaker.rate(10, 10));
    (0..9).for_each(|_| assert!(strict.take().is_ok()));
    alternate(&strict, 1);
    assert!(strict.store.is_open());
}

#[tokio::test(start_paused = true)]
async fn open_times_double_up_to_the_maximum_with_at_most_half_removed_as_jitter() {
    let guarded = Guarded::open();
    for nominal in [100, 200, 400, 800, 1_000, 1_000, 1_000] {
        let left = guarded.open_for();
        assert!(left >= millis(nominal) / 2 && left <= millis(nominal), "{left:?} of {nominal} ms");
        advance(left - Duration::from_nanos(1)).await;
        assert_eq!(guarded.open_for(), Duration::from_nanos(1), "not a moment earlier");
        advance(Duration::from_nanos(1)).await;
        guarded.fail(1);
    }
    advance(secs(1)).await;
    guarded.inner.is(Mood::Well);
    assert!(guarded.take().is_ok());
    assert!(!guarded.store.is_open());
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(5);
    assert!(FIRST.contains(&guarded.open_for()), "from the start again");
}

#[tokio::test(start_paused = true)]
async fn open_times_have_random_jitter() {
    let times: Vec<_> = (0..300).map(|_| Guarded::open().open_for()).collect();
    assert!(times.iter().all(|time| FIRST.contains(time)), "{times:?}");
    let (shortest, longest) = (times.iter().min(), times.iter().max());
    assert!(shortest < Some(&millis(60)) && longest > Some(&millis(90)), "{times:?}");
    let own = |breaker: Breaker<Shaky>| breaker.failures(1).open_for(secs(10)..=secs(10));
    let long = Guarded::set(Mood::FailingSoon, own);
    long.fail(1);
    assert!((secs(5)..=secs(10)).contains(&long.open_for()));
}

#[tokio::test(start_paused = true)]
async fn exactly_one_of_many_tasks_is_the_probe() {
    for (mood, opens) in [(Mood::Late(millis(30)), false), (Mood::FailingLate(millis(30)), true)] {
        let guarded = Guarded::open();
        advance(millis(100)).await;
        guarded.inner.is(mood);
        let tasks = (0..64).map(|_| {
            let guarded = guarded.clone();
            tokio::spawn(
                async move { matches!(guarded.ask().await, Err(BreakerError::Open { .. })) },
            )
        });
        let tasks: Vec<_> = tasks.collect();
        let mut denied = 0;
        for task in tasks {
            denied += usize::from(task.await.expect("no panic"));
        }
        assert_eq!((denied, guarded.inner.calls()), (63, 6), "{mood:?}");
        assert_eq!(guarded.store.is_open(), opens, "{mood:?}");
    }
}

#[test]
fn exactly_one_of_many_threads_is_the_probe() {
    const THREADS: usize = 16;
    let moment = Duration::from_nanos(1);
    for _ in 0..200 {
        let guarded = Guarded::set(Mood::FailingSoon, |breaker| breaker.open_for(moment..=moment));
        guarded.fail(5);
        guarded.inner.is(Mood::Hanging);
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
    guarded.inner.is(Mood::Hanging);
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
    guarded.inner.is(Mood::Well);
    assert!(guarded.take().is_ok(), "the next is the probe");
    assert!(!guarded.store.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_does_not_count() {
    let guarded = Guarded::new(Mood::Hanging);
    let leave = || {
        for polled in [false, true] {
            let Answer::Later(later) = guarded.ask() else { panic!("it hangs") };
            let mut later = task::spawn(later);
            if polled {
                assert_pending!(later.poll());
            }
        }
    };
    (0..1_000).for_each(|_| leave());
    assert!(!guarded.store.is_open());
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(4);
    guarded.inner.is(Mood::Hanging);
    (0..1_000).for_each(|_| leave());
    assert!(!guarded.store.is_open());
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(1);
    assert!(guarded.store.is_open(), "a cancelled call does not reset the count");
}

/// Simulates a freeze: calls from before it fail long after the store is healthy again.
#[tokio::test(start_paused = true)]
async fn late_failures_do_not_open_it_again() {
    let guarded = Guarded::new(Mood::FailingLate(millis(150)));
    let stale: Vec<_> = (0..64).map(|_| tokio::spawn(guarded.ask().into_future())).collect();
    tokio::task::yield_now().await;
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(5);
    advance(millis(100)).await;
    guarded.inner.is(Mood::Well);
    assert!(guarded.take().is_ok());
    for task in stale {
        assert!(task.await.expect("no panic").is_err());
    }
    assert!(!guarded.store.is_open());
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(4);
    assert!(!guarded.store.is_open(), "late failures are not counted");
}

#[tokio::test(start_paused = true)]
async fn a_late_success_does_not_close_it() {
    let guarded = Guarded::new(Mood::Late(millis(10)));
    let stale = tokio::spawn(guarded.ask().into_future());
    tokio::task::yield_now().await;
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(5);
    assert!(stale.await.expect("no panic").is_ok());
    assert!(guarded.store.is_open());
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
    guarded.inner.is(Mood::FailingSoon);
    guarded.fail(5);
    assert_eq!(undo(), 1);
    advance(millis(100)).await;
    assert_eq!(undo(), 1, "it is no probe");
    guarded.inner.is(Mood::Well);
    assert!(guarded.take().is_ok());
    assert_eq!(undo(), 2);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_breaker_and_settings_make_a_new_one() {
    let guarded = Guarded::new(Mood::FailingSoon);
    let clone = guarded.clone();
    guarded.fail(3);
    clone.fail(2);
    assert!(guarded.store.is_open() && clone.store.is_open());
    assert!(!clone.store.failures(3).is_open());
}

#[test]
fn unsupported_quotas_fail_when_the_layer_is_built() {
    let guarded = Guarded::new(Mood::Well);
    let (anyone, soft) = (Key::everyone(), [HOURLY.with_soft(1)]);
    let queueing = Charge::new(RuleName::default(), &anyone, &soft).with_max_wait(secs(1));
    assert!(guarded.store.supports(&[queueing]).is_err());
    assert!(charged(|charge| guarded.store.supports(&[charge])).is_ok());
}

/// The documented time is microseconds; one reading of the clock takes tens of nanoseconds.
#[test]
fn an_open_breaker_answers_at_once() {
    let open = |breaker: Breaker<Shaky>| breaker.open_for(secs(3_600)..=secs(3_600));
    let guarded = Guarded::set(Mood::FailingSoon, open);
    guarded.fail(5);
    let mut times: Vec<_> = (0..10_000)
        .map(|_| {
            let start = Instant::now();
            assert!(matches!(guarded.take(), Err(BreakerError::Open { .. })));
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[9_900] < Duration::from_micros(50), "p99 is {:?}", times[9_900]);
    let info = allocation_counter::measure(|| drop(guarded.take()));
    assert_eq!(info.count_total, 0);
}

#[test]
#[should_panic(expected = "breaker: failures is 0; give at least 1")]
fn an_invalid_setting_panics() {
    let _ = Guarded::set(Mood::Well, |breaker| breaker.failures(0));
}

#[tokio::test(start_paused = true)]
async fn the_longest_time_does_not_overflow() {
    let for_ever = |breaker: Breaker<Shaky>| breaker.open_for(Duration::MAX..=Duration::MAX);
    let guarded = Guarded::set(Mood::FailingSoon, for_ever);
    guarded.fail(5);
    assert!(guarded.open_for() > secs(1_000_000_000));
}
