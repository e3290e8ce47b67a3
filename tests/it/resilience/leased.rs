//! Hot keys, which are decided from a local lease. `hot_keys` has the table of steps.
//!
//! Time advances only by the tests.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, timeout},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Answer, Charge},
};

use crate::support::{
    driven::{AtOnce, Time, left, millis, secs},
    shaky::{Mood, Shaky},
    slow::{Slow, When},
};

/// A quota of which a lease of five percent is fifty units.
const HOURLY: Quota = Quota::per_hour(1_000);

/// Passes a charge of one unit for alice to the closure.
fn charged<T>(quotas: &[Quota], read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), quotas))
}

fn take<S: Store>(store: &S, quota: Quota) -> Decision
where
    Answer<S::Future>: AtOnce,
{
    charged(&[quota], |charge| store.take(&[charge]).now())
}

/// Others take each unit that refills, so a whole lease is never available.
#[tokio::test(start_paused = true)]
async fn calls_are_denied_for_at_most_200_ms_while_units_are_gathered() {
    let time = Time::default();
    let inner = time.store();
    let (store, quota) = (inner.clone().leases(5), Quota::per_second(100));
    (0..200).for_each(|_| drop(take(&store, quota)));
    let mut last = Instant::now();
    for step in 1..=200 {
        time.pass(millis(10)).await;
        if step % 4 == 0 && take(&store, quota).is_allowed() {
            last = Instant::now();
        }
        drop(take(&inner, quota));
        assert!(last.elapsed() <= millis(200), "denied for {:?}", last.elapsed());
    }
}

/// Makes alice's key hot on a store that answers later.
async fn heat<S: Store<Error = E>, E: std::fmt::Debug>(store: &S, quota: Quota) {
    for _ in 0..3 {
        drop(charged(&[quota], |charge| store.take(&[charge])).await.expect("a decision"));
    }
}

/// Returns a runtime with a timer, which a waiting call needs.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// Returns the time for which this thread has run.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

/// Returns the least CPU time in three runs, per call, for this number of calls that wait for one
/// lease. A run has 40,000 calls, because the time is counted in steps of some milliseconds.
fn waiting_cost(calls: u32) -> Duration {
    let (runtime, quota) = (runtime(), Quota::per_hour(2_000_000));
    let one = || {
        let inner = Slow::new(LocalStore::with_capacity(1_000), When::AtFirstPoll);
        let store = inner.clone().leases(5);
        tokio_test::block_on(heat(&store, quota));
        inner.answer(When::Told);
        let _inside = runtime.enter();
        let start = cpu_time();
        let ask = || task::spawn(charged(&[quota], |charge| store.take(&[charge])).into_future());
        let mut asks: Vec<_> = (0..calls).map(|_| ask()).collect();
        while !asks.is_empty() {
            asks.retain_mut(|ask| ask.poll().is_pending());
            inner.tell(asks.len());
        }
        cpu_time() - start
    };
    let rounds = 40_000 / calls;
    let run = || (0..rounds).map(|_| one()).sum::<Duration>() / (calls * rounds);
    (0..3).map(|_| run()).min().unwrap_or_default()
}

#[test]
fn a_waiting_call_costs_the_same_among_forty_thousand() {
    let [few, many] = [1_000, 40_000].map(waiting_cost);
    println!("{few:?} per call among 1000, {many:?} among 40000");
    assert!(many < few * 6, "{many:?} per call, and {few:?} among 1000");
}

/// The task of the call that borrows waits for another call, and does not poll the first.
#[tokio::test(start_paused = true)]
async fn no_call_waits_long_for_a_borrow_call_that_is_not_polled() {
    let time = Time::default();
    let inner = Shaky::new(time.store());
    let store = inner.clone().timeout(millis(250)).leases(5);
    heat(&store, HOURLY).await;
    inner.set_mood(Mood::Late(millis(5)));
    let mut borrower =
        task::spawn(charged(&[HOURLY], |charge| store.take(&[charge])).into_future());
    assert_pending!(borrower.poll());
    for wait in [105, 5, 5] {
        let start = Instant::now();
        let answer = charged(&[HOURLY], |charge| store.take(&[charge]));
        let decision = timeout(secs(1), answer).await.expect("in time").expect("a decision");
        assert_eq!((decision.source(), start.elapsed()), (Source::Local, millis(wait)));
    }
    // The lease is of use as soon as its call is polled.
    assert!(assert_ready!(borrower.poll()).expect("a decision").is_allowed());
    let next = charged(&[HOURLY], |charge| store.take(&[charge])).await;
    assert_eq!(next.expect("a decision").source(), Source::Leased);
}

#[tokio::test(start_paused = true)]
async fn fallback_decisions_give_no_lease() {
    let time = Time::default();
    let (inner, local) = (Shaky::new(time.store()), time.store());
    inner.set_mood(Mood::Failing);
    let store = inner.clone().fallback(local.clone(), 1).leases(5);
    for _ in 0..30 {
        assert_eq!(take(&store, HOURLY).source(), Source::Fallback);
    }
    let left = left(&local, "default", "alice", &HOURLY);
    assert_eq!(left, 970, "no more is charged than was admitted");
    let open = inner.clone().fail_open().leases(5);
    for _ in 0..30 {
        assert_eq!(take(&open, HOURLY).source(), Source::FailedOpen);
    }
}

#[tokio::test(start_paused = true)]
async fn reported_values_combine_the_store_and_the_lease() {
    let time = Time::default();
    let window = HOURLY.with_algorithm(Algorithm::fixed_window());
    for quotas in [&[HOURLY][..], &[window], &[HOURLY, Quota::per_day(2_000)]] {
        let (store, plain) = (time.store().leases(5), time.store());
        for n in 0..40 {
            let [decision, alone] = charged(quotas, |charge| {
                [store.take(&[charge]).now(), plain.take(&[charge]).now()]
            });
            let numbers = |decision: &Decision| -> Vec<_> {
                let each = decision.outcomes().iter();
                each.map(|it| (it.limit(), it.remaining(), it.reset_after(), it.next_after()))
                    .collect()
            };
            assert_eq!(numbers(&decision), numbers(&alone), "{n} of {quotas:?}");
            assert_eq!((decision.is_allowed(), decision.wait()), (true, Duration::ZERO));
            time.pass(millis(3)).await;
        }
        let last = charged(quotas, |charge| store.take(&[charge]).now());
        drop(charged(quotas, |charge| plain.take(&[charge]).now()));
        assert_eq!(last.source(), Source::Leased);
    }
}
