//! Calls to a limiter that wait outside HTTP.

use std::{
    cell::Cell,
    convert::Infallible,
    sync::{Barrier, atomic::AtomicU32, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tower_sluice::{
    Decision, Limiter, LocalStore, Quota, Store, StoreExt,
    limiter::NotReady,
    store::{Answer, Charge, Context, Never, Op, Unsupported},
    testing::FakeClock,
};

use crate::support::{
    Broken, Gated,
    driven::{Counting, Time, left, millis, secs},
};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).with_burst(1);
const STEP: Duration = Duration::from_millis(200);

/// A local store that does not support queueing.
#[derive(Clone, Debug)]
struct Impatient(LocalStore);

impl Store for Impatient {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        assert!(op.charges().iter().all(|charge| charge.max_wait.is_zero()));
        self.0.call(op, context)
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let patient = charges.iter().any(|charge| !charge.max_wait.is_zero());
        if patient { Err(Unsupported::new("queues; ask again")) } else { Ok(()) }
    }
}

async fn even<S: Store<Error = Infallible> + Clone + Sync>(time: &Time, store: S) {
    let store = Counting::new(store);
    let limiter = Limiter::named("default", store.clone());
    let ready = |_| task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    let mut ready: Vec<_> = (0..6).map(ready).collect();
    let first = assert_ready_ok!(ready[0].poll());
    assert_eq!(first.wait(), Duration::ZERO);
    ready[1..].iter_mut().for_each(|ready| assert_pending!(ready.poll()));
    for (at, ready) in (1..).zip(&mut ready[1..]) {
        time.pass(STEP - millis(1)).await;
        assert!(!ready.is_woken());
        time.pass(millis(1)).await;
        assert_eq!(assert_ready_ok!(ready.poll()).wait(), at * STEP);
    }
    assert_eq!((store.takes(), store.given_back()), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_continue_evenly_in_order_with_one_store_call_each() {
    let time = Time::default();
    even(&time, time.store()).await;
    even(&time, time.store().boxed()).await;
    even(&time, Gated::open(time.store())).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_queue_is_called_again_after_its_wait() {
    let time = Time::default();
    let store = Counting::new(Impatient(time.store()));
    let limiter = Limiter::named("default", store.clone());
    drop(assert_ready_ok!(task::spawn(limiter.until_ready("upstream", &FIVE, 1)).poll()));
    let mut second = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    assert_pending!(second.poll());
    time.pass(STEP - millis(1)).await;
    assert!(!second.is_woken());
    time.pass(millis(1)).await;
    drop(assert_ready_ok!(second.poll()));
    assert_eq!(store.takes(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_undoes_its_charge() {
    let time = Time::default();
    let store = time.store();
    let limiter = Limiter::named("default", store.clone());
    drop(limiter.until_ready("upstream", &FIVE, 1).await.expect("at once"));
    {
        let mut gone = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
        assert_pending!(gone.poll());
    }
    let mut next = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    assert_pending!(next.poll());
    time.pass(STEP).await;
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_eq!(
        left(&store, "default", "upstream", &FIVE),
        0,
        "a call that was ready keeps its unit"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_fits_does_not_wait_and_is_not_charged() {
    let store = Time::default().store();
    let limiter = Limiter::named("default", store.clone());
    let two = Quota::per_hour(2);
    let both = [Quota::per_hour(9), two];
    assert_eq!(limiter.until_ready("a", &two, 3).await.err(), Some(NotReady::Never));
    assert_eq!(limiter.until_ready("a", &both, 3).await.err(), Some(NotReady::Never));
    let blocked = Quota::blocked();
    assert_eq!(limiter.until_ready("a", &blocked, 1).await.err(), Some(NotReady::Never));
    assert_eq!(left(&store, "default", "a", &two), 2);
    drop(limiter.take("a", &two, 2).now());
    let look = limiter.until_ready("a", &two, 0).await.expect("a look");
    assert_eq!((look.remaining(), look.wait()), (Some(0), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_an_error_and_not_a_wait() {
    for broken in [Broken::Now, Broken::Later] {
        let limiter = Limiter::named("default", broken);
        let error = limiter.try_until_ready("a", &FIVE, 1).await.expect_err("an outage");
        assert!(matches!(error, NotReady::Store(_)) && error.to_string().contains("down"));
        assert!(limiter.try_take("a", &FIVE, 1).await.is_err());
        assert!(limiter.try_take_up_to("a", &FIVE, 1).await.is_err());
        let throttled = limiter.try_throttle("a", &FIVE, async { unreachable!("not paid for") });
        assert!(throttled.await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_key_is_ready_when_its_block_ends() {
    let time = Time::default();
    let limiter = Limiter::named("default", time.store());
    drop(limiter.block("upstream", secs(3)).now().expect("room"));
    let mut ready = task::spawn(limiter.until_ready("upstream", &FIVE, 1));
    assert_pending!(ready.poll());
    time.pass(secs(3) - millis(1)).await;
    assert_pending!(ready.poll());
    time.pass(millis(1)).await;
    drop(assert_ready_ok!(ready.poll()));
}

#[tokio::test(start_paused = true)]
async fn throttled_work_starts_with_its_unit() {
    let time = Time::default();
    let limiter = Limiter::named("default", time.store());
    let begun = Cell::new(0);
    let work = || async {
        begun.set(begun.get() + 1);
        begun.get()
    };
    assert_eq!(limiter.throttle("upstream", &FIVE, work()).await, Ok(1));
    let mut second = task::spawn(limiter.throttle("upstream", &FIVE, work()));
    assert_pending!(second.poll());
    time.pass(STEP - millis(1)).await;
    assert_pending!(second.poll());
    assert_eq!(begun.get(), 1);
    time.pass(millis(1)).await;
    assert_eq!(assert_ready!(second.poll()), Ok(2));
    let never = limiter.throttle("upstream", &Quota::blocked(), work()).await;
    assert_eq!((never, begun.get()), (Err(NotReady::Never), 2));
}

#[tokio::test(start_paused = true)]
async fn take_returns_at_once_whether_it_charged() {
    async fn tries<S: Store<Error = Infallible>>(time: &Time, store: S) {
        let limiter = &Limiter::named("default", store);
        let take = async |cost| limiter.take("a", &FIVE, cost).await.is_allowed();
        assert_eq!([take(1).await, take(1).await, take(2).await], [true, false, false]);
        time.pass(STEP).await;
        assert!(take(1).await);
    }
    let time = Time::default();
    tries(&time, time.store()).await;
    tries(&time, Gated::open(time.store())).await;
}

#[tokio::test]
async fn take_up_to_takes_only_units_that_every_quota_has() {
    async fn grants<S: Store<Error = Infallible> + Sync>(clock: &FakeClock, store: S) {
        let limiter = Limiter::named("default", store);
        let quotas = [Quota::per_second(10), Quota::per_hour(15)];
        let granted = async |most| limiter.take_up_to("a", &quotas, most).await;
        assert_eq!((granted(0).await, granted(7).await), (0, 7));
        assert_eq!((granted(7).await, granted(7).await), (3, 0));
        clock.advance(secs(1));
        assert_eq!((granted(u32::MAX).await, granted(1).await), (5, 0));
        assert_eq!(limiter.take_up_to("a", &Quota::blocked(), 1).await, 0);
    }
    let clock = FakeClock::new();
    grants(&clock, clock.store(64)).await;
    grants(&clock, Gated::open(clock.store(64))).await;
}

#[test]
fn concurrent_take_up_to_calls_take_exactly_the_available_units() {
    const HAS: u32 = 50_000;
    let (limiter, quota) =
        (Limiter::named("default", FakeClock::new().store(16)), Quota::per_hour(HAS));
    let (granted, start) = (AtomicU32::new(0), Barrier::new(8));
    let (granted, start, limiter) = (&granted, &start, &limiter);
    thread::scope(|scope| {
        for most in 1..=8 {
            scope.spawn(move || {
                start.wait();
                loop {
                    let up_to = limiter.take_up_to("hot", &quota, most);
                    match tokio_test::block_on(up_to) {
                        0 => break,
                        units => granted.fetch_add(units, Relaxed),
                    };
                }
            });
        }
    });
    assert_eq!(granted.load(Relaxed), HAS);
}
