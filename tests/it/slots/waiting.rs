//! Requests that wait for a slot (`max_wait`).

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::time::{sleep, timeout};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    rule::LivePlan,
    store::CannotFail,
};

use crate::support::{
    Gated, Strict,
    driven::{Counting, Time, begin, limiter, millis, secs, status},
    get,
    several_slots::{AnyStore, never_wait},
    shaky::{Mood, Shaky},
    with,
};

const ONE: Quota = Quota::concurrent(1);
const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

/// A layer whose requests wait for 2 s, and hold their slots until the head.
fn layer<S: Store<Error: CannotFail>>(quotas: &[Quota], store: S) -> Layered<S> {
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(secs(2));
    RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head)
}

/// Takes slots of the key of `layer`, as a running request does.
fn run(store: &LocalStore, quotas: &[Quota], cost: u32) -> Decision {
    limiter("api", store.clone()).take(Key::everyone(), quotas, cost).now()
}

/// The time of the calls is a part of the wait. A timer is up to a millisecond late.
#[tokio::test(start_paused = true)]
async fn a_slow_store_prolongs_no_wait_except_by_the_call_at_its_end() {
    // The times of the first and of the last call, and the end of the wait.
    for (first, last, end) in
        [(200, 150, 2_001), (200, 203, 2_001), (0, 3, 2_001), (5, 300, 2_291), (2_500, 0, 2_500)]
    {
        for is_freed in [false, true] {
            let what = format!("{first} ms, {last} ms, freed: {is_freed}");
            let (time, at) = (Time::default(), std::cell::Cell::new(0));
            let until = async |then: u64| time.pass(millis(then - at.replace(then))).await;
            let store = time.store();
            let gated = Gated::shut(store.clone());
            let counting = Counting::new(gated.clone());
            let mut service = layer(&[ONE], counting.clone()).layer(Strict::default());
            let mut running = Some(run(&store, &[ONE], 1));
            let mut asking = begin(&mut service, get("/")).await;
            assert_pending!(asking.poll(), "{what}");
            until(first).await;
            gated.admit(1);
            // The last call begins before the end of the wait of 2,000 ms, earlier by the time of the first call
            // and by 5 ms (`LAST_CALL`), and its timer is 1 ms late.
            let begins = 1_996 - first.min(1_996);
            if begins > first {
                assert_pending!(asking.poll(), "{what}");
                until(begins - 2).await;
                assert!(!asking.is_woken(), "{what}");
                until(begins).await;
                assert!(asking.is_woken(), "{what}");
                assert_pending!(asking.poll(), "{what}: the last call");
                until(begins + last).await;
                running.take_if(|_| is_freed);
                gated.admit(1);
            }
            if is_freed && begins > first {
                assert_eq!(status(&mut asking), OK, "{what}: the answer of the call is used");
            } else {
                if at.get() < end {
                    assert_pending!(asking.poll(), "{what}");
                    until(end).await;
                }
                assert_eq!((status(&mut asking), at.get()), (DENIED, end), "{what}");
            }
            assert_eq!(counting.takes(), 1 + usize::from(begins > first), "{what}");
        }
    }
}

/// Returns a store of each kind, by the wrapper that makes it. The inner stores may answer later.
fn stores(is_late: bool) -> Vec<(&'static str, AnyStore)> {
    let local = || Time::default().store();
    let in_mood = |now, later| {
        let shaky = Shaky::new(local());
        shaky.set_mood(if is_late { later } else { now });
        shaky
    };
    let shaky = || in_mood(Mood::Well, Mood::Late(millis(1)));
    let failing = in_mood(Mood::Failing, Mood::FailingLate(millis(1)));
    vec![
        ("local", local().boxed()),
        ("later", Gated::open(local()).boxed()),
        ("fail_open", shaky().fail_open().boxed()),
        ("fail_closed", shaky().fail_closed().boxed()),
        ("fallback", shaky().fallback(local(), 1).boxed()),
        ("fallback in an outage", failing.fallback(local(), 1).boxed()),
        ("timeout", shaky().timeout(secs(1)).fail_closed().boxed()),
        ("breaker", shaky().breaker().fail_closed().boxed()),
        ("deny_cache", shaky().deny_cache().fail_closed().boxed()),
        ("leases", shaky().leases(5).fail_closed().boxed()),
        (
            "all",
            shaky().timeout(secs(1)).breaker().deny_cache().leases(5).fallback(local(), 1).boxed(),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_request_for_several_slots_waits_on_no_store() {
    for (name, store) in stores(false) {
        never_wait(name, store).await;
    }
}

/// Each wrapper passes the waiter on, and the slot.
#[tokio::test(start_paused = true)]
async fn a_request_for_one_slot_waits_on_each_store() {
    for (name, store) in [false, true].into_iter().flat_map(stores) {
        let running = limiter("api", store.clone()).take(Key::everyone(), &ONE, 1).await;
        let mut service = layer(&[ONE], store).layer(Strict::default());
        let mut waiting = begin(&mut service, get("/")).await;
        for _ in 0..9 {
            assert_pending!(waiting.poll(), "{name}");
            sleep(millis(9)).await;
        }
        drop(running);
        let response = timeout(millis(9), waiting).await.expect("it is woken");
        assert_eq!(response.expect("infallible").status(), OK, "{name}");
    }
}

/// The documentation of the module lists the wrappers.
#[test]
fn several_slots_are_tested_on_each_wrapper() {
    let text = include_str!("../../../src/store/mod.rs");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | [`"));
    let wrappers: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    assert!(wrappers.len() >= 7, "{wrappers:?}");
    for wrapper in wrappers {
        assert!(stores(false).iter().any(|(name, _)| *name == wrapper), "{wrapper}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_request_brings_a_raised_limit_to_those_that_wait() {
    let several = [ONE, Quota::per_hour(100)];
    for quotas in [&several[..1], &several[..]] {
        for waits in [false, true] {
            let store = Time::default().store();
            let plan = LivePlan::new(quotas.to_vec());
            let rule = Rule::new("api", Everyone, &plan).max_wait(secs(2));
            let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
            let mut service = layer.max_waiters_per_key(9).layer(Strict::default());
            let _stream = run(&store, quotas, 1);
            let mut first = begin(&mut service, get("/")).await;
            let mut second = begin(&mut service, get("/")).await;
            assert_pending!(first.poll());
            assert_pending!(second.poll());
            let mut raised = quotas.to_vec();
            raised[0] = Quota::concurrent(2);
            plan.replace(raised.clone());
            if waits {
                let mut third = begin(&mut service, get("/")).await;
                assert_pending!(third.poll());
            } else {
                assert!(!run(&store, &raised, 1).is_allowed(), "others wait");
            }
            assert!(first.is_woken() && !second.is_woken(), "waits: {waits}");
            assert_eq!((status(&mut first), status(&mut second)), (OK, OK));
        }
    }
}

/// A key is blocked while a call waits for its slot, and the block ends while the call sleeps.
#[tokio::test(start_paused = true)]
async fn a_limiter_keeps_no_place_in_the_queue_while_it_sleeps() {
    for throttles in [false, true] {
        for (what, mood) in
            [("store", Mood::Well), ("cache", Mood::Well), ("outage", Mood::Failing)]
        {
            let time = Time::default();
            let shared = Shaky::new(time.store());
            let limiter = Limiter::named(
                "default",
                match what {
                    "store" => shared.clone().fail_closed().boxed(),
                    "cache" => shared.clone().deny_cache().fail_closed().boxed(),
                    _ => shared.clone().fallback(time.store(), 1).boxed(),
                },
            );
            let take = async || limiter.take("alice", &ONE, 1).await;
            let running = take().await;
            let mut waits = task::spawn(async {
                match throttles {
                    false => limiter.until_ready("alice", &ONE, 1).await.map(drop),
                    true => limiter.throttle("alice", &ONE, async {}).await,
                }
            });
            assert_pending!(waits.poll());
            drop(limiter.block("alice", secs(3_600)).await.expect("room"));
            shared.set_mood(mood);
            drop(running);
            assert!(waits.is_woken() && !take().await.is_allowed(), "{what}");
            assert_pending!(waits.poll(), "{what}");
            time.pass(secs(60)).await;
            shared.set_mood(Mood::Well);
            drop(limiter.unblock("alice").await);
            assert!(take().await.is_allowed(), "{what}, throttles: {throttles}");
            time.pass(secs(3_600)).await;
            assert_ready_ok!(waits.poll());
        }
    }
}

/// Requests of two keys on four threads. Every third is cancelled at some moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wakeup_is_lost_and_no_limit_is_exceeded() {
    const LIMIT: usize = 3;
    const TASKS: usize = 300;
    for round in 0..20_usize {
        let store = LocalStore::with_capacity(64);
        let rule = Rule::new("user", HeaderKey::new("x-user"), Quota::concurrent(3));
        let layer = RateLimitLayer::rules(rule.max_wait(secs(60)), store.clone());
        let layer = layer.hold_until(HoldUntil::Head).max_waiters(TASKS).max_waiters_per_key(TASKS);
        let running: Arc<[AtomicUsize; 2]> = Arc::default();
        let counted = running.clone();
        let inner = service_fn(move |request: Request<()>| {
            let (user, running) =
                (usize::from(request.headers()["x-user"] == "bob"), counted.clone());
            async move {
                let _leaves = Leaves::enter(running, user, LIMIT);
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        });
        let service = layer.layer(inner);
        let tasks: Vec<_> = (0..TASKS)
            .map(|at| {
                let user = if (at + round) % 2 == 0 { "bob" } else { "alice" };
                tokio::spawn(service.clone().oneshot(with(&[("x-user", user)])))
            })
            .collect();
        for task in tasks.iter().skip(round % 3).step_by(3) {
            tokio::task::yield_now().await;
            task.abort();
        }
        for task in tasks {
            let answer = timeout(Duration::from_secs(30), task).await.expect("no task is stuck");
            let status = answer.map(|answer| answer.expect("infallible").status());
            assert!(
                status.as_ref().map_or_else(tokio::task::JoinError::is_cancelled, |it| *it == OK)
            );
        }
        let stats = store.stats();
        assert_eq!((stats.holding, stats.held), (0, 0));
    }
}

/// Counts the running requests of a user while it lives.
struct Leaves(Arc<[AtomicUsize; 2]>, usize);

impl Leaves {
    fn enter(running: Arc<[AtomicUsize; 2]>, user: usize, limit: usize) -> Self {
        assert!(running[user].fetch_add(1, SeqCst) < limit);
        Self(running, user)
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0[self.1].fetch_sub(1, SeqCst);
    }
}
