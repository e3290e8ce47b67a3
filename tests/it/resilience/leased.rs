//! Hot keys, which are decided from a local lease.
//!
//! Time advances only by the tests.

#![allow(clippy::print_stdout)]

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, timeout},
};
use tokio_test::{assert_pending, assert_ready, task};
use tower_sluice::{
    Algorithm, Decision, Key, Limiter, LocalStore, Quota, Store, StoreExt,
    decision::{Outcome, Source},
    rule::RuleName,
    store::{Answer, Charge, Leased},
};

use crate::support::{
    driven::{AtOnce, Counting, Time, millis, secs},
    shaky::{Mood, Shaky},
    slow::Slow,
};

/// A quota of which a lease of five percent is fifty units.
const HOURLY: Quota = Quota::per_hour(1_000);

type Holder = Leased<Counting<LocalStore>>;

/// Returns a counting store and leases on it.
fn leased(time: &Time, percent: u32) -> (Counting<LocalStore>, Holder) {
    let inner = Counting::new(time.0.store(1_024));
    (inner.clone(), inner.leases(percent))
}

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

/// Calls this number of times at once and returns how many passed.
fn passed<S: Store>(store: &S, quota: Quota, times: usize) -> usize
where
    Answer<S::Future>: AtOnce,
{
    (0..times).filter(|_| take(store, quota).is_allowed()).count()
}

/// Returns the units that the store has left, not counting the leased ones.
fn left(inner: &Counting<LocalStore>, quota: Quota) -> u32 {
    charged(&[quota], |charge| {
        inner.store().take(&[charge.with_cost(0)]).now().outcomes()[0].remaining()
    })
}

/// Advances time in short steps, so that unused units are noticed.
async fn pass(time: &Time, whole: Duration) {
    for _ in 0..whole.as_millis() / 10 {
        time.pass(millis(10)).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_can_be_taken_to_the_last_unit() {
    for units in [100, 1_000, 20_000] {
        let time = Time::default();
        let (inner, store) = leased(&time, 5);
        let quota = Quota::per_second(units);
        assert_eq!(passed(&store, quota, units as usize + 50), units as usize);
        assert!(inner.takes() < 150, "{} trips", inner.takes());
        time.pass(secs(1)).await;
        assert_eq!(passed(&store, quota, units as usize), units as usize);
    }
}

/// Others take each unit that refills, so a whole lease is never available.
#[tokio::test(start_paused = true)]
async fn calls_are_denied_for_at_most_200_ms_while_units_are_gathered() {
    let time = Time::default();
    let (inner, store) = leased(&time, 5);
    let quota = Quota::per_second(100);
    assert_eq!(passed(&store, quota, 200), 100);
    let mut last = Instant::now();
    for step in 1..=200 {
        time.pass(millis(10)).await;
        if step % 4 == 0 && take(&store, quota).is_allowed() {
            last = Instant::now();
        }
        drop(take(inner.store(), quota));
        assert!(last.elapsed() <= millis(200), "denied for {:?}", last.elapsed());
    }
}

/// Runs four processes, one of them with most of the load. Returns the used part of the limit and
/// the calls per round trip.
async fn uneven(quota: Quota, percent: u32, load: u32, seconds: u32) -> (f64, f64) {
    const PARTS: [u32; 4] = [70, 20, 8, 2];
    let time = Time::default();
    let inner = Counting::new(time.0.store(64));
    let holders = PARTS.map(|_| inner.clone().deny_cache().leases(percent));
    let (mut asks, mut admitted, mut owed) = (0_u32, 0_u32, [0_u32; 4]);
    for _ in 0..seconds * 1_000 {
        for (n, part) in PARTS.iter().enumerate() {
            owed[n] += load * part;
            while owed[n] >= 100_000 {
                owed[n] -= 100_000;
                asks += 1;
                admitted += u32::from(take(&holders[n], quota).is_allowed());
            }
        }
        time.pass(millis(1)).await;
        tokio::task::yield_now().await;
    }
    // an account that was full, or this number of windows
    let full = quota.algorithm() == Algorithm::Gcra;
    let most = f64::from(quota.limit()) * f64::from(u8::from(full))
        + f64::from(seconds) / quota.interval().as_secs_f64();
    let wanted = most.min(f64::from(asks));
    assert!(f64::from(admitted) <= most, "{admitted} of {most}");
    (f64::from(admitted) / wanted, f64::from(asks) / inner.takes() as f64)
}

#[tokio::test(start_paused = true)]
async fn four_processes_use_the_limit_with_one_store_call_in_twenty() {
    const SECONDLY: Quota = Quota::per_second(1_000);
    const MINUTELY: Quota = Quota::per_minute(60_000);
    for (quota, percent, loads) in [
        (SECONDLY, 6, &[1_050, 10_000][..]),
        (SECONDLY, 10, &[800, 950, 1_500, 10_000]),
        (MINUTELY, 5, &[800, 1_050, 10_000]),
        (SECONDLY.with_algorithm(Algorithm::fixed_window()), 5, &[800, 1_050, 10_000]),
    ] {
        for &load in loads {
            let seconds = if load < 10_000 { 20 } else { 4 };
            let (used, fewer) = uneven(quota, percent, load, seconds).await;
            assert!(used >= 0.95, "{used:.3} of {quota} at {load} a second");
            assert!(fewer >= 20.0, "{fewer:.1} times fewer trips of {quota} at {load} a second");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_plan_ends_the_lease() {
    let time = Time::default();
    let (inner, store) = leased(&time, 5);
    passed(&store, HOURLY, 20);
    assert_eq!(take(&store, HOURLY).source(), Source::Leased);
    let owed = 1_000 - left(&inner, HOURLY);
    assert_eq!(take(&store, Quota::per_hour(900)).source(), Source::Local);
    let asked = inner.takes();
    drop(take(&store, HOURLY));
    assert_eq!((inner.takes(), inner.given_back()), (asked + 1, 0));
    assert!(1_000 - left(&inner, HOURLY) >= owed, "it stays charged");
}

#[tokio::test(start_paused = true)]
async fn undoing_a_leased_call_undoes_its_part_of_the_lease_in_the_store() {
    let (time, quotas) = (Time::default(), [HOURLY]);
    let (inner, store) = leased(&time, 5);
    charged(&quotas, |charge| {
        passed(&store, HOURLY, 9);
        let taken: Vec<_> = (0..20).map(|_| store.take(&[charge.with_cost(2)]).now()).collect();
        assert!(taken.iter().any(|taken| taken.source() == Source::Leased));
        let (before, admitted) = (left(&inner, HOURLY), u32::try_from(taken.len()).expect("few"));
        for taken in &taken {
            store.undo(&[charge.with_cost(2)], taken, Some(1));
        }
        assert_eq!(left(&inner, HOURLY), before + admitted);
    });
    drop(store);
    assert_eq!(left(&inner, HOURLY), 1_000 - 9 - 20);
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
        let inner = Slow::new(LocalStore::with_capacity(1_000));
        let store = inner.clone().leases(5);
        inner.tell(3);
        tokio_test::block_on(heat(&store, quota));
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

/// The account of bob is in the same set of the table.
#[tokio::test(start_paused = true)]
async fn a_change_of_another_key_during_a_borrow_call_loses_no_units() {
    let (time, bob) = (Time::default(), Key::from("bob"));
    let inner = Slow::new(time.store());
    let store = inner.clone().leases(5).capacity(8);
    inner.tell(3);
    heat(&store, HOURLY).await;
    let ask = || task::spawn(charged(&[HOURLY], |charge| store.take(&[charge])).into_future());
    let mut borrower = ask();
    assert_pending!(borrower.poll());
    assert_eq!(remaining(&inner.store), 993);
    inner.confirm(1);
    let refund = Charge::new(RuleName::default(), &bob, HOURLY.as_ref());
    drop(store.adjust(&refund, -1).await.expect("a refund"));
    inner.tell(1);
    assert!(assert_ready!(borrower.poll()).expect("a decision").is_allowed());
    assert_eq!(remaining(&inner.store), 996);
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
    let look = remaining(&local);
    assert_eq!(look, 970, "no more is charged than was admitted");
    let open = inner.clone().fail_open().leases(5);
    for _ in 0..30 {
        assert_eq!(take(&open, HOURLY).source(), Source::FailedOpen);
    }
}

fn remaining(local: &LocalStore) -> u32 {
    charged(&[HOURLY], |charge| local.take(&[charge.with_cost(0)]).now().outcomes()[0].remaining())
}

#[tokio::test(start_paused = true)]
async fn keys_beyond_the_capacity_call_the_store_each_time() {
    let time = Time::default();
    let (inner, store) = leased(&time, 5);
    let store = store.capacity(8);
    let limiter = Limiter::named("default", store.clone());
    for key in 0..20_u32 {
        for _ in 0..20 {
            assert!(limiter.take(key, &HOURLY, 1).now().is_allowed());
        }
    }
    // the first eight keys have a lease, and the others find no room
    assert_eq!(inner.takes(), 8 * 6 + 12 * 20);
    pass(&time, millis(400)).await;
    for _ in 0..20 {
        assert!(limiter.take(19_u32, &HOURLY, 1).now().is_allowed());
    }
    assert_eq!(inner.takes(), 8 * 6 + 12 * 20 + 6);
}

#[tokio::test(start_paused = true)]
async fn a_local_change_ends_the_lease() {
    let (time, quotas) = (Time::default(), [HOURLY]);
    let (inner, store) = leased(&time, 5);
    let (other, user) = (Key::from("other"), RuleName::new("user").expect("a name"));
    let hot = || {
        charged(&quotas, |charge| {
            let both = [charge, Charge::new(user, &other, &quotas)];
            (0..20).for_each(|_| drop(store.take(&[charge]).now()));
            (0..20).for_each(|_| drop(store.take(&both).now()));
            let here = [store.take(&[charge]).now(), store.take(&both).now()];
            assert_eq!(here.map(|decision| decision.source()), [Source::Leased; 2]);
        });
    };
    let asked = |charge: Charge<'_>| {
        let before = inner.takes();
        let decision = store.take(&[charge]).now();
        assert_eq!(inner.takes(), before + 1, "the store is called");
        decision
    };
    charged(&quotas, |charge| {
        hot();
        let given_back = inner.given_back();
        drop(store.reset(&charge).now());
        // the other account is kept, and gets its units back
        assert_eq!((left(&inner, HOURLY), inner.given_back()), (1_000, given_back + 2));
        assert_eq!(asked(charge).outcomes()[0].owed_by_all(), 1);

        // charges from here on are later than the reset
        time.0.advance(Duration::from_nanos(1));
        hot();
        drop(store.block(&charge, secs(9)).now());
        assert!(!asked(charge).is_allowed());
        drop(store.unblock(&charge).now());
        let owed = 1_000 - left(&inner, HOURLY);
        let other = inner.store().take(&[Charge::new(user, &other, &quotas).with_cost(0)]).now();
        assert_eq!(owed, 43, "nothing of it is held any more");
        assert_eq!(other.outcomes()[0].owed_by_all(), 42);
    });
}

#[tokio::test(start_paused = true)]
async fn reported_values_combine_the_store_and_the_lease() {
    let time = Time::default();
    let window = HOURLY.with_algorithm(Algorithm::fixed_window());
    for quotas in [&[HOURLY][..], &[window], &[HOURLY, Quota::per_day(2_000)]] {
        let ((_, store), plain) = (leased(&time, 5), time.store());
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

#[tokio::test(start_paused = true)]
async fn the_call_that_borrows_can_be_cancelled() {
    let time = Time::default();
    let inner = Slow::new(time.store());
    let store = inner.clone().leases(5);
    inner.tell(3);
    heat(&store, HOURLY).await;
    let ask = || task::spawn(charged(&[HOURLY], |charge| store.take(&[charge])).into_future());
    let (mut borrower, mut other) = (ask(), ask());
    assert_pending!(borrower.poll());
    assert_pending!(other.poll());
    drop(borrower);
    tokio::task::yield_now().await;
    inner.tell(1);
    tokio::task::yield_now().await;
    assert!(other.is_woken());
    let decision = assert_ready!(other.poll()).expect("a decision");
    assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Leased));
}

trait Owed {
    fn owed_by_all(&self) -> u32;
}

impl Owed for Outcome {
    fn owed_by_all(&self) -> u32 {
        self.limit() - self.remaining()
    }
}
