//! A breaker under threads that call it, cancel calls and meet random failures.

use std::{
    io::{Error, ErrorKind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt,
    rule::RuleName,
    store::{self, Answer, Breaker, BreakerError, Charge, Op},
};

use crate::support::driven::secs;

const THREADS: usize = 8;
const CALLS: usize = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
const MOMENT: Duration = Duration::from_nanos(1);
const HOURLY: Quota = Quota::per_hour(1_000_000);

/// A store whose answer is ready at the second poll. It counts the calls in flight.
#[derive(Clone, Debug, Default)]
struct Flaky(Arc<State>);

#[derive(Debug, Default)]
struct State {
    failing: AtomicBool,
    calls: AtomicUsize,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

/// A pending answer. It ends the call when it is ready or dropped.
#[derive(Debug)]
struct InFlight {
    store: Option<Flaky>,
    looked_at: bool,
}

impl InFlight {
    fn arrives(&mut self) -> Option<Flaky> {
        let store = self.store.take()?;
        store.0.inside.fetch_sub(1, SeqCst);
        Some(store)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.arrives();
    }
}

impl Future for InFlight {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.looked_at, true) {
            return Poll::Pending;
        }
        let store = self.arrives().expect("polled after it had resolved");
        let failing = store.0.failing.load(SeqCst);
        Poll::Ready(if failing { Err(ErrorKind::TimedOut.into()) } else { Ok(Decision::allow()) })
    }
}

impl Flaky {
    fn is_failing(&self, failing: bool) {
        self.0.failing.store(failing, SeqCst);
    }

    fn calls(&self) -> usize {
        self.0.calls.load(SeqCst)
    }

    fn answer(&self) -> Answer<InFlight> {
        let State { calls, inside, most_inside, .. } = &*self.0;
        calls.fetch_add(1, SeqCst);
        most_inside.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
        Answer::Later(InFlight { store: Some(self.clone()), looked_at: false })
    }
}

impl Store for Flaky {
    type Error = Error;
    type Future = InFlight;

    fn call(&self, _: Op<'_>, _: &store::Context<'_>) -> Answer<InFlight> {
        self.answer()
    }
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Rejected,
    Cancelled,
    Answered(bool),
}

/// Calls the store and waits for the answer, or cancels the call before it.
fn ask(breaker: &Breaker<Flaky>, cancels: bool) -> Outcome {
    let key = Key::everyone();
    let mut later = match breaker.take(&[Charge::new(RuleName::default(), &key, HOURLY.as_ref())]) {
        Answer::Later(later) => later,
        Answer::Now(Err(BreakerError::Open { .. })) => return Outcome::Rejected,
        Answer::Now(other) => panic!("an answer at once: {other:?}"),
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut later).poll(&mut context).is_pending());
    thread::yield_now();
    if cancels {
        return Outcome::Cancelled;
    }
    match Pin::new(&mut later).poll(&mut context) {
        Poll::Ready(answer) => Outcome::Answered(answer.is_ok()),
        Poll::Pending => panic!("it is there at the second look"),
    }
}

/// Runs this number of calls on every thread and returns their results.
fn storm(breaker: &Breaker<Flaky>, calls: usize, before: impl Fn(usize) + Sync) -> Vec<Outcome> {
    let work = |thread: usize| {
        let call = |at: usize| {
            before(at * THREADS + thread);
            ask(breaker, (at * 7 + thread).is_multiple_of(3))
        };
        (0..calls).map(call).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn closes(breaker: &Breaker<Flaky>) {
    let tries = (0..1_000).take_while(|_| breaker.is_open()).map(|_| {
        thread::sleep(Duration::from_micros(10));
        ask(breaker, false)
    });
    drop(tries.collect::<Vec<_>>());
    assert!(!breaker.is_open(), "the place of the probe is lost");
}

#[test]
fn while_the_store_fails_one_call_at_a_time_reaches_it() {
    let store = Flaky::default();
    let breaker = store.clone().breaker().open_for(MOMENT..=MOMENT);
    store.is_failing(true);
    assert!((0..5).all(|_| ask(&breaker, false) == Outcome::Answered(false)));
    assert!(breaker.is_open());
    store.0.most_inside.store(0, SeqCst);
    let before = store.calls();
    let outcomes = storm(&breaker, CALLS, |_| ());
    assert_eq!(store.0.most_inside.load(SeqCst), 1);
    let through = outcomes.iter().filter(|outcome| **outcome != Outcome::Rejected).count();
    assert_eq!(store.calls() - before, through, "a call was made without a result");
    assert!(through > 100 && through < outcomes.len(), "{through}");
    assert!(!outcomes.contains(&Outcome::Answered(true)) && breaker.is_open());
    store.is_failing(false);
    closes(&breaker);
}

#[test]
fn it_closes_again_after_any_sequence_of_failures() {
    let store = Flaky::default();
    let breaker = store.clone().breaker().open_for(MOMENT..=10 * MOMENT);
    for round in 0..20 {
        let flip = |at: usize| {
            if at.is_multiple_of(50) {
                store.is_failing((at / 50 + round).is_multiple_of(2));
            }
        };
        let before = store.calls();
        let outcomes = storm(&breaker, CALLS / 20, flip);
        let through = outcomes.iter().filter(|outcome| **outcome != Outcome::Rejected).count();
        assert_eq!(store.calls() - before, through);
        assert_eq!(store.0.inside.load(SeqCst), 0);
        store.is_failing(false);
        closes(&breaker);
    }
}

/// All answers are failures in a row: a breaker that counts one twice or not at all opens too early
/// or too late.
#[test]
fn concurrent_failures_are_all_counted() {
    for row in [1_000, 1_001, 1_007] {
        let store = Flaky::default();
        let breaker = store.clone().breaker().failures(row).rate(100, u32::MAX);
        let breaker = breaker.open_for(secs(3_600)..=secs(3_600));
        store.is_failing(true);
        let failures = |outcomes: &[Outcome]| {
            outcomes.iter().filter(|outcome| **outcome == Outcome::Answered(false)).count()
        };
        let mut counted = 0;
        while counted + THREADS * 2 < row as usize {
            counted += failures(&storm(&breaker, 2, |_| ()));
            assert!(!breaker.is_open(), "after {counted} of {row}");
        }
        for at in counted..row as usize {
            assert!(!breaker.is_open(), "after {at} of {row}");
            ask(&breaker, false);
        }
        assert!(breaker.is_open(), "after {row}");
    }
}
