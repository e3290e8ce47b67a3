//! Requests that wait for a slot (`max_wait`).

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use futures::{future::join_all, poll};
use http::{Request, Response, StatusCode};
use tokio::{sync::Semaphore, task::yield_now, time::timeout};
use tokio_test::{assert_pending, assert_ready_ok, task, task::Spawn};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Cost, Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, RequestHead, Rule, Store,
    StoreExt,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, Counters, HoldUntil, Toggle},
    rule::{LivePlan, RequestDeadline},
    store::CannotFail,
};

use super::local::Random;
use crate::support::{
    Gated, Strict, ask,
    driven::{Counting, Time, begin, limiter, millis, secs, status},
    get, header,
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

#[tokio::test(start_paused = true)]
async fn slots_go_to_requests_in_the_order_of_their_arrival() {
    let store = Time::default().store();
    let inner = Strict::default();
    let calls = inner.calls();
    let mut service = layer(&[ONE], store.clone()).layer(inner);
    let running = run(&store, &[ONE], 1);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    drop(running);
    for at in 0..3 {
        let woken: Vec<_> = waiting.iter().map(Spawn::is_woken).collect();
        assert_eq!(woken.iter().position(|woken| *woken), Some(at), "{woken:?}");
        assert_eq!(woken[at + 1..].iter().filter(|woken| **woken).count(), 0, "{woken:?}");
        assert!(!run(&store, &[ONE], 1).is_allowed(), "a free slot goes to the first that waits");
        assert_eq!((status(&mut waiting[at]), calls()), (OK, at + 1));
    }
    assert!(run(&store, &[ONE], 1).is_allowed());
    assert_eq!(store.stats().holding, 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_max_wait_or_at_the_deadline_of_the_request() {
    let time = Time::default();
    let (store, counters) = (time.store(), Counters::new());
    let layer = layer(&[ONE, Quota::per_hour(10)], store.clone()).on_decision(counters.clone());
    let mut service = layer.layer(Strict::default());
    let running = run(&store, &[ONE], 1);
    let mut long = begin(&mut service, get("/")).await;
    let mut request = get("/");
    request.extensions_mut().insert(RequestDeadline(millis(300)));
    let mut short = begin(&mut service, request).await;
    assert_pending!(long.poll());
    assert_pending!(short.poll());
    time.pass(millis(301)).await;
    assert_pending!(long.poll());
    assert_eq!(status(&mut short), DENIED);
    // The last call finds the time for which no slot was freed.
    time.pass(millis(1_695)).await;
    assert_pending!(long.poll());
    time.pass(millis(5)).await;
    let denied = assert_ready_ok!(long.poll());
    assert_eq!((denied.status(), header(denied.headers(), "retry-after")), (DENIED, "2"));
    drop(running);
    assert_eq!(store.stats().holding, 0, "nobody waits");
    let left = run(&store, &[ONE, Quota::per_hour(10)], 0);
    assert_eq!(left.outcomes()[1].remaining(), 10, "a wait charges no rate");
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.delayed, counts.denied), (0, 0, 2));
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

#[tokio::test(start_paused = true)]
async fn the_policy_for_outages_decides_if_the_last_call_fails() {
    for (mood, end) in [(Mood::Failing, 1_996), (Mood::FailingLate(millis(150)), 2_147)] {
        let time = Time::default();
        let store = time.store();
        let shaky = Shaky::new(store.clone());
        let mut service = layer(&[ONE], shaky.clone().fail_closed()).layer(Strict::default());
        let running = run(&store, &[ONE], 1);
        let mut asking = begin(&mut service, get("/")).await;
        assert_pending!(asking.poll());
        shaky.is(mood);
        time.pass(millis(1_996)).await;
        if end > 1_996 {
            assert_pending!(asking.poll());
            time.pass(millis(end - 1_996)).await;
        }
        assert_eq!(status(&mut asking), StatusCode::SERVICE_UNAVAILABLE, "{mood:?}");
        drop(running);
        assert_eq!(store.stats().holding, 0, "nobody waits");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_gives_its_position_to_the_next() {
    let store = Time::default().store();
    let mut service = layer(&[ONE], store.clone()).max_waiters(3).layer(Strict::default());
    let running = run(&store, &[ONE], 1);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    assert_eq!(ask(&mut service, get("/")).await.status(), DENIED, "the queue is full");
    drop(waiting.remove(0));
    let mut last = begin(&mut service, get("/")).await;
    assert_pending!(last.poll());
    drop(running);
    assert!(waiting[0].is_woken() && !waiting[1].is_woken());
    drop(waiting.remove(0));
    assert!(waiting[0].is_woken() && !last.is_woken());
    assert_eq!((status(&mut waiting[0]), status(&mut last)), (OK, OK));
}

#[tokio::test(start_paused = true)]
async fn slots_and_rates_are_charged_together_after_the_wait() {
    let time = Time::default();
    let (store, counters) = (time.store(), Counters::new());
    let quotas = [ONE, Quota::per_hour(2)];
    let layer =
        layer(&quotas, store.clone()).on_decision(counters.clone()).expose_charge(Adjustment::Keep);
    let mut service = layer.layer(Strict::default());
    let running = run(&store, &quotas, 1);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    let left = || run(&store, &quotas, 0).outcomes()[1].remaining();
    assert_eq!(left(), 1);
    drop(running);
    assert_eq!((status(&mut waiting[0]), left()), (OK, 0));
    let denied = assert_ready_ok!(waiting[1].poll());
    assert_eq!((denied.status(), header(denied.headers(), "retry-after")), (DENIED, "1800"));
    let at_once = ask(&mut service, get("/")).await;
    assert_eq!(at_once.status(), DENIED, "an exhausted rate is not worth a wait for a slot");
    assert_eq!(store.stats().holding, 0);
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.delayed, counts.denied), (1, 1, 2));
}

/// The rate has one unit per 500 ms, so the second request waits for both.
#[tokio::test(start_paused = true)]
async fn a_request_may_wait_for_a_slot_and_then_for_a_rate() {
    let time = Time::default();
    let store = time.store();
    let quotas = [ONE, Quota::per_second(2).with_burst(1)];
    let mut service = layer(&quotas, store.clone()).layer(Strict::default());
    let running = run(&store, &[ONE], 1);
    let mut first = begin(&mut service, get("/")).await;
    let mut second = begin(&mut service, get("/")).await;
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    time.pass(secs(1)).await;
    drop(running);
    assert_eq!(status(&mut first), OK);
    assert_pending!(second.poll());
    assert_eq!(store.stats().held, 1, "it holds its slot while it waits for the rate");
    time.pass(millis(501)).await;
    assert_eq!(status(&mut second), OK);
}

/// Returns a store of each kind, by the wrapper that makes it.
fn stores() -> Vec<(&'static str, AnyStore)> {
    let local = || Time::default().store();
    let shaky = || Shaky::new(local());
    let failing = shaky();
    failing.is(Mood::Failing);
    vec![
        ("local", local().boxed()),
        ("later", Gated::open(local()).boxed()),
        ("fail_open", shaky().fail_open().boxed()),
        ("fail_closed", shaky().fail_closed().boxed()),
        ("fallback", shaky().fallback(local(), 1).boxed()),
        ("fallback in an outage", failing.fallback(local(), 1).boxed()),
        ("timeout", shaky().timeout(secs(1)).fail_closed().boxed()),
        ("breaker", shaky().breaker().fail_closed().boxed()),
        ("deny_cache", local().deny_cache().boxed()),
        ("leases", local().leases(5).boxed()),
        (
            "all",
            shaky().timeout(secs(1)).breaker().deny_cache().leases(5).fallback(local(), 1).boxed(),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_request_for_several_slots_waits_on_no_store() {
    for (name, store) in stores() {
        never_wait(name, store).await;
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
        assert!(stores().iter().any(|(name, _)| *name == wrapper), "{wrapper}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_grows_during_the_wait_ends_it() {
    let store = Time::default().store();
    let (two, asked) = (Quota::concurrent(2), AtomicUsize::new(0));
    let cost = Cost::from_fn(move |_| if asked.fetch_add(1, SeqCst) == 0 { 1 } else { 2 });
    let rule = Rule::new("api", Everyone, two).cost(cost).max_wait(secs(2));
    let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
    let mut service = layer.layer(Strict::default());
    let mut running = [(); 2].map(|()| Some(run(&store, &[two], 1)));
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    running[0] = None;
    assert!(waiting.is_woken());
    assert_eq!(status(&mut waiting), DENIED);
    assert!(run(&store, &[two], 1).is_allowed(), "it left its place in the queue");
}

#[tokio::test(start_paused = true)]
async fn requests_with_less_headroom_come_first() {
    let store = Time::default().store();
    let two = [Quota::concurrent(2)];
    let batch = |head: &RequestHead<'_>| u32::from(head.path() == "/batch");
    let rule = Rule::new("api", Everyone, two[0]).headroom(Cost::from_fn(batch)).max_wait(secs(2));
    let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
    let mut service = layer.layer(Strict::default());
    let mut running = [(); 2].map(|()| Some(run(&store, &two, 1)));
    let mut batch = begin(&mut service, get("/batch")).await;
    let mut user = begin(&mut service, get("/")).await;
    assert_pending!(batch.poll());
    assert_pending!(user.poll());
    running[0] = None;
    assert!(user.is_woken() && !batch.is_woken());
    assert_eq!(status(&mut user), OK);
    assert!(!batch.is_woken(), "a slot is left over for others");
    assert_eq!(ask(&mut service, get("/")).await.status(), OK, "nobody waits for this slot");
    running[1] = None;
    assert_eq!(status(&mut batch), OK);
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_applies_to_requests_that_wait() {
    let store = Time::default().store();
    let plan = LivePlan::new(Quota::concurrent(2));
    let rule = Rule::new("api", Everyone, &plan).max_wait(secs(2));
    let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
    let door = Arc::new(Semaphore::new(0));
    let mut service = layer.layer(crate::support::driven::held(&door));
    let two = [Quota::concurrent(2)];
    let mut running = [(); 2].map(|()| Some(run(&store, &two, 1)));
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    plan.replace(Quota::concurrent(1));
    running[0] = None;
    assert_pending!(waiting[0].poll());
    assert_eq!(store.stats().held, 1, "the slot is above the new limit");
    plan.replace(Quota::concurrent(4));
    running[1] = None;
    // The first to ask again brings the new limit, and the others follow.
    waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    assert_eq!(store.stats().held, 3);
    door.add_permits(3);
    waiting.iter_mut().for_each(|asking| assert_eq!(status(asking), OK));
}

/// With its headroom, the request needs two slots, and another one brings a limit of one. Nothing but the
/// last free calls it.
#[tokio::test(start_paused = true)]
async fn a_request_that_a_lowered_limit_can_never_serve_is_denied_when_no_slot_is_held() {
    let store = Time::default().store();
    let plan = LivePlan::new(Quota::concurrent(2));
    let rule = Rule::new("api", Everyone, &plan).headroom(1).max_wait(secs(2));
    let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
    let mut service = layer.layer(Strict::default());
    let mut running = [(); 2].map(|()| Some(run(&store, &[Quota::concurrent(2)], 1)));
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    plan.replace(ONE);
    assert!(!run(&store, &[ONE], 1).is_allowed());
    running[0] = None;
    assert!(!waiting.is_woken());
    running[1] = None;
    assert!(waiting.is_woken(), "nothing else would call it");
    assert_eq!(status(&mut waiting), DENIED);
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

/// A request of a customer that waits for the slots of all customers does not hold its own.
#[tokio::test(start_paused = true)]
async fn a_request_waits_for_two_limits_in_turn() {
    let store = Time::default().store();
    let layer = RateLimitLayer::rules(
        (
            Rule::new("customer", HeaderKey::new("x-customer"), ONE).max_wait(secs(2)),
            Rule::new("api", Everyone, Quota::concurrent(2)).max_wait(secs(2)),
        ),
        store.clone(),
    );
    let layer = layer.hold_until(HoldUntil::Head).max_waiters_per_key(9);
    let mut service = layer.layer(Strict::default());
    let of = |customer: &str| with(&[("x-customer", customer)]);
    let customer = limiter("customer", store.clone());
    let alice = customer.take("alice", &ONE, 1).now();
    let two = [Quota::concurrent(2)];
    let mut running = [(); 2].map(|()| Some(run(&store, &two, 1)));
    let mut first = begin(&mut service, of("alice")).await;
    let mut second = begin(&mut service, of("alice")).await;
    let mut bob = begin(&mut service, of("bob")).await;
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(bob.poll());
    drop(alice);
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    running[0] = None;
    assert!(first.is_woken(), "it came first, and keeps its order in the second queue");
    assert!(!bob.is_woken());
    assert_eq!((status(&mut first), status(&mut second), status(&mut bob)), (OK, OK, OK));
    drop(running);
    assert_eq!(store.stats().holding, 0);
}

#[tokio::test(start_paused = true)]
async fn a_reset_calls_the_next_and_a_block_denies_it() {
    let store = Time::default().store();
    let mut service = layer(&[ONE], store.clone()).layer(Strict::default());
    let running = run(&store, &[ONE], 1);
    let mut first = begin(&mut service, get("/")).await;
    let mut second = begin(&mut service, get("/")).await;
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    let api = limiter("api", store.clone());
    drop(api.reset(Key::everyone(), &[ONE]).now());
    assert_eq!(status(&mut first), OK);
    drop(api.block(Key::everyone(), secs(60)).now().expect("room"));
    assert!(second.is_woken());
    assert_eq!(status(&mut second), DENIED);
    drop(running);
    assert_eq!(store.stats().holding, 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_later_keeps_the_order() {
    let store = Time::default().store();
    let gated = Gated::shut(store.clone());
    let mut service = layer(&[ONE], gated.clone()).layer(Strict::default());
    let running = run(&store, &[ONE], 1);
    let mut first = begin(&mut service, get("/")).await;
    assert_pending!(first.poll());
    gated.admit(1);
    assert_pending!(first.poll());
    drop(running);
    assert!(first.is_woken());
    assert_pending!(first.poll());
    assert!(!run(&store, &[ONE], 1).is_allowed(), "the call of the first is pending");
    gated.admit(1);
    assert_eq!(status(&mut first), OK);
}

/// Requests wait, leave at any instant, and run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_million_acquisitions_that_may_wait_leave_every_count_at_zero() {
    const TASKS: u64 = 40;
    const LIMIT: u32 = 3;
    let (store, running) = (LocalStore::new(), Arc::new([const { AtomicUsize::new(0) }; 4]));
    let tasks = (0..TASKS).map(|seed| {
        let (limiter, running) = (Limiter::named("default", store.clone()), running.clone());
        tokio::spawn(async move {
            let mut random = Random(seed);
            let quotas = [Quota::concurrent(LIMIT), Quota::per_second(1_000_000_000)];
            for _ in 0..1_000_000 / TASKS {
                let (key, cost) = (random.below(4), 1 + random.below(2));
                let units = u32::try_from(cost).expect("small");
                let quotas = &quotas[..1 + random.below(2)];
                let mut waits = pin!(limiter.until_ready(key as u64, quotas, units));
                for _ in 0..random.below(5) {
                    let Poll::Ready(ready) = poll!(waits.as_mut()) else {
                        yield_now().await;
                        continue;
                    };
                    // A call for two slots does not wait.
                    let Ok(decision) = ready else { break };
                    let now = running[key].fetch_add(cost, SeqCst) + cost;
                    assert!(now <= 3, "{now} slots held");
                    if random.below(2) == 0 {
                        yield_now().await;
                    }
                    running[key].fetch_sub(cost, SeqCst);
                    drop(decision);
                    break;
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    assert_eq!((store.stats().holding, store.stats().held), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_is_switched_off_or_report_only_lets_waiting_requests_pass() {
    for report_only in [false, true] {
        let time = Time::default();
        let store = time.store();
        let (on, shadow) = (Toggle::on(), Toggle::off());
        let layer = layer(&[ONE], store.clone()).enabled(&on).report_only(&shadow);
        let mut service = layer.layer(Strict::default());
        let running = run(&store, &[ONE], 1);
        let mut waiting = begin(&mut service, get("/")).await;
        assert_pending!(waiting.poll());
        if report_only {
            shadow.set(true);
        } else {
            on.set(false);
        }
        time.pass(millis(2_001)).await;
        assert_eq!(status(&mut waiting), OK);
        drop(running);
    }
}

/// The inner service is ready only with a permit, which a waiting request must not hold.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_holds_no_permit_of_an_inner_limit() {
    let store = Time::default().store();
    let inner = tower::limit::ConcurrencyLimit::new(Strict::default(), 1);
    let mut service = layer(&[ONE], store.clone()).layer(inner);
    let running = run(&store, &[ONE], 1);
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    service.ready().await.expect("the permit is free, and is taken now");
    drop(running);
    assert_pending!(waiting.poll());
    assert_eq!(store.stats().held, 1);
    drop(service);
    assert_eq!(status(&mut waiting), OK);
}

#[tokio::test(start_paused = true)]
async fn a_limiter_waits_for_slots_in_order() {
    let store = Time::default().store();
    let limiter = Limiter::named("default", store.clone());
    let running = limiter.take("alice", &ONE, 1).now();
    let mut first = task::spawn(limiter.until_ready("alice", &ONE, 1));
    let mut second = task::spawn(limiter.throttle("alice", &ONE, async { 7 }));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(running);
    assert!(first.is_woken() && !second.is_woken());
    let first = assert_ready_ok!(first.poll());
    assert_pending!(second.poll());
    drop(first);
    assert_eq!(assert_ready_ok!(second.poll()), 7);
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
            shared.is(mood);
            drop(running);
            assert!(waits.is_woken() && !take().await.is_allowed(), "{what}");
            assert_pending!(waits.poll(), "{what}");
            time.pass(secs(60)).await;
            shared.is(Mood::Well);
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
