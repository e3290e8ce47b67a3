//! Overcommit: denied requests that pass uncharged while the system has capacity.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    thread,
    time::Duration,
};

use http::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio_test::{assert_ready_ok, task};
use tower::{Layer, ServiceExt};
use tower_sluice::{
    AccessList, Cost, Decision, Key, LocalStore, Quota, RateLimitLayer, Rule, Store,
    decision::{Outcome, Source},
    key::{Everyone, HeaderKey},
    middleware::{Counters, DecisionEvent, HoldUntil, Overcommit},
    rule::{Adaptive, RuleName},
    store::CannotFail,
};

use crate::support::{
    Gated,
    always::Always,
    answer, ask,
    driven::{begin, handler, held, left, limiter, secs},
    get, header, store, with,
};

const TWO: Quota = Quota::per_hour(2);

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn layer<S: Store<Error: CannotFail>>(store: S) -> Layered<S> {
    let cost = Cost::from_fn(|head| match head.headers.get("x-cost") {
        Some(cost) => cost.to_str().expect("text").parse().expect("a number"),
        None => 1,
    });
    RateLimitLayer::rules(Rule::new("api", Everyone, TWO).cost(cost), store).expose_decision()
}

fn is_overage(response: &Response<String>) -> bool {
    let decision = response.extensions().get::<Decision>().expect("exposed");
    assert!(decision.is_allowed());
    let reported = header(response.headers(), "x-ratelimit-overage") == "1";
    assert_eq!(reported, decision.is_overage());
    reported
}

fn has(store: &LocalStore) -> u32 {
    left(store, "api", Key::everyone(), &TWO)
}

#[tokio::test]
async fn while_there_is_capacity_denied_requests_pass_uncharged_and_marked() {
    let (store, room, counters) = (store(), Arc::new(AtomicBool::new(true)), Counters::new());
    let signal = room.clone();
    let elastic = Overcommit::when(move || signal.load(SeqCst));
    let layer = layer(store.clone()).overcommit(elastic).on_decision(counters.clone());
    let seen = handler(|request| {
        let seen: &Decision = request.extensions().get().expect("exposed");
        if seen.is_overage() { 203 } else { 200 }
    });
    let mut service = layer.layer(seen);
    for at in 0..6 {
        let response = ask(&mut service, get("/")).await;
        assert_eq!(is_overage(&response), at >= 2);
        assert_eq!(response.status().as_u16(), if at >= 2 { 203 } else { 200 });
        assert!(!response.headers().contains_key("retry-after"));
    }
    room.store(false, SeqCst);
    let denied = ask(&mut service, get("/")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(denied.headers(), "retry-after"), "1800");
    assert_eq!(header(denied.headers(), "x-ratelimit-overage"), "");
    room.store(true, SeqCst);
    assert!(is_overage(&ask(&mut service, get("/")).await));
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.overage, counts.denied), (7, 5, 1));
}

fn unknown(wait: Option<Duration>) -> Outcome {
    Outcome::unknown(RuleName::default(), 0, wait)
}

#[tokio::test]
async fn an_unknown_wait_is_one_that_ends() {
    for (denied, status) in [
        (Decision::deny as fn() -> Decision, 200),
        (|| Decision::deny().with_outcome(unknown(Some(secs(1)))), 200),
        (
            || {
                Decision::deny()
                    .with_outcome(unknown(Some(secs(1))).with_estimated_retry_after(secs(1)))
            },
            200,
        ),
        (|| Decision::deny().with_outcome(unknown(None)), 429),
        (|| Decision::deny().with_outcome(unknown(Some(secs(1)))).with_blocked(), 429),
        (|| Decision::deny().with_source(Source::Unsupported), 429),
        (|| Decision::deny().with_source(Source::FailedClosed), 503),
        (|| Decision::deny().with_source(Source::Busy), 503),
    ] {
        let layer = layer(Always(denied)).overcommit(Overcommit::when(|| true));
        let found = answer(&layer, get("/")).await.status().as_u16();
        assert_eq!(found, status, "{:?}", denied());
    }
}

#[tokio::test]
async fn requests_that_never_fit_stay_denied_at_any_capacity() {
    let layer = layer(store()).overcommit(Overcommit::when(|| true));
    let denied = answer(&layer, with(&[("x-cost", "3")])).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(denied.headers(), "retry-after"), "");
    let blocked = RateLimitLayer::new(Everyone, Quota::blocked(), store());
    let blocked = answer(&blocked.overcommit(Overcommit::when(|| true)), get("/")).await;
    assert_eq!(blocked.status(), StatusCode::FORBIDDEN);
    // capacity does not help a request without a key
    let unkeyed = RateLimitLayer::new(HeaderKey::new("x-user"), TWO, store());
    let unkeyed = answer(&unkeyed.overcommit(Overcommit::when(|| true)), get("/")).await;
    assert_eq!(unkeyed.status(), StatusCode::BAD_REQUEST);
}

/// A real service at saturation: `most` requests stay in it until the test releases them.
async fn saturates<S: Store<Error: CannotFail>>(accounts: &LocalStore, store: S) {
    let (door, elastic) = (Arc::new(Semaphore::new(0)), Overcommit::in_flight(4));
    let layer = layer(store).overcommit(elastic.clone());
    let inner = held(&door);
    let mut service = layer.layer(inner.clone());
    let mut begin = async || {
        let mut running = begin(&mut service, get("/")).await;
        let first = running.poll().map(|answer| answer.expect("infallible"));
        (running, first)
    };
    let mut running = Vec::new();
    for _ in 0..4 {
        let (request, answer) = begin().await;
        assert!(answer.is_pending(), "two are charged and two pass beyond");
        running.push(request);
    }
    assert_eq!((has(accounts), format!("{elastic:?}")), (0, "Overcommit(4 of 4 in flight)".into()));
    for _ in 0..3 {
        let Poll::Ready(denied) = begin().await.1 else { panic!("a fifth request in flight") };
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    // one is finished and one is dropped, so two can enter
    door.add_permits(1);
    assert_ready_ok!(running.remove(0).poll());
    drop(running.remove(0));
    assert_eq!(format!("{elastic:?}"), "Overcommit(2 of 4 in flight)");
    for _ in 0..2 {
        let (request, answer) = begin().await;
        assert!(answer.is_pending());
        running.push(request);
    }
    assert!(begin().await.1.is_ready());
    door.add_permits(4);
    for mut request in running {
        assert!(is_overage(&assert_ready_ok!(request.poll())));
    }
    assert_eq!(format!("{elastic:?}"), "Overcommit(0 of 4 in flight)");
    assert_eq!(has(accounts), 0);
}

#[tokio::test]
async fn a_saturated_service_is_protected_and_an_idle_one_is_not() {
    let accounts = store();
    saturates(&accounts, accounts.clone()).await;
    let accounts = store();
    saturates(&accounts, Gated::open(accounts.clone())).await;
}

/// Requests on an allow list are in flight as well.
#[tokio::test]
async fn a_service_that_is_busy_with_uncharged_requests_has_no_capacity() {
    let (store, elastic) = (store(), Overcommit::in_flight(1));
    drop(limiter("api", store.clone()).take(Key::everyone(), &TWO, 2).now());
    let free = AccessList::from_fn(|head| head.headers.contains_key("x-free"));
    let layer = layer(store).overcommit(elastic.clone()).allow(free);
    let mut service = layer.layer(held(&Arc::new(Semaphore::new(0))));
    let mut running = begin(&mut service, with(&[("x-free", "1")])).await;
    assert!(running.poll().is_pending());
    assert_eq!(format!("{elastic:?}"), "Overcommit(1 of 1 in flight)");
    let denied = assert_ready_ok!(begin(&mut service, get("/")).await.poll());
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(running);
    assert_eq!(format!("{elastic:?}"), "Overcommit(0 of 1 in flight)");
}

/// Each thread calls before any other has its answer: of all calls at one moment, four pass as
/// overage.
#[test]
fn concurrent_threads_do_not_exceed_the_capacity() {
    const THREADS: usize = 8;
    let (accounts, elastic) = (store(), Overcommit::in_flight(4));
    drop(limiter("api", accounts.clone()).take(Key::everyone(), &TWO, 2).now());
    let service =
        layer(accounts).overcommit(elastic.clone()).layer(held(&Arc::new(Semaphore::new(0))));
    let (start, asked, rounds) = (Barrier::new(THREADS), Barrier::new(THREADS), 0..2_000);
    let passed = AtomicUsize::new(0);
    let ask = |round: usize| {
        start.wait();
        let mut running = task::spawn(service.clone().oneshot(get("/")));
        if running.poll().is_pending() {
            passed.fetch_add(1, SeqCst);
        }
        asked.wait();
        assert_eq!(passed.load(SeqCst), 4 * (round + 1));
        // no request ends before all are counted
        start.wait();
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| rounds.clone().for_each(ask))));
    });
    assert_eq!(format!("{elastic:?}"), "Overcommit(0 of 4 in flight)");
}

/// The only slot is held, so the request waits, and then runs beyond the limit.
#[tokio::test(start_paused = true)]
async fn a_request_that_runs_after_its_wait_is_reported_as_delayed() {
    let (store, delayed) = (store(), Arc::new(AtomicBool::new(false)));
    let seen = delayed.clone();
    let one = Quota::concurrent(1);
    let layer =
        RateLimitLayer::rules(Rule::new("api", Everyone, one).max_wait(secs(1)), store.clone())
            .hold_until(HoldUntil::Head)
            .overcommit(Overcommit::when(|| true))
            .on_decision(move |event: &DecisionEvent<'_>| seen.store(event.is_delayed, SeqCst));
    let running = limiter("api", store).take(Key::everyone(), &one, 1).now();
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    assert!(delayed.load(SeqCst) && running.is_allowed());
}

/// The request costs more than the limit of the moment, and less than the highest.
#[tokio::test]
async fn an_explanation_of_an_adaptive_limit_agrees_with_the_layer() {
    let limit = Adaptive::gradient().max(10).initial(2);
    let rule = Rule::new("overload", Everyone, limit.plan()).cost(5);
    let layer = RateLimitLayer::rules(rule, store())
        .hold_until(HoldUntil::Head)
        .overcommit(Overcommit::when(|| true));
    let (parts, ()) = get("/").into_parts();
    assert!(layer.explain(&parts).await.is_allowed());
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
}
