//! Requests that wait instead of being denied (`max_wait`).

use std::{convert::Infallible, time::Duration};

use http::{Method, Response, StatusCode, Version};
use tokio_test::{assert_pending, assert_ready_ok, task::Spawn};
use tower::Layer;
use tower_sluice::{
    Decision, Key, Limiter, Quota, RateLimitLayer, Rule, Store,
    key::Everyone,
    middleware::Counters,
    rule::{RequestDeadline, RuleName},
    store::CannotFail,
};

use crate::support::{
    Gated, Strict, ask,
    driven::{Counting, Time, begin, left, millis, secs},
    get, header, with,
};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).with_burst(1);
const STEP: Duration = Duration::from_millis(200);

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn layer<S: Store<Error: CannotFail>>(quota: Quota, most: Duration, store: S) -> Layered<S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, quota).max_wait(most), store)
}

fn passes(asking: &mut Spawn<impl Future<Output = Result<Response<String>, Infallible>>>) {
    assert_eq!(assert_ready_ok!(asking.poll()).status(), StatusCode::OK);
}

/// Three requests pass at once; the others follow in order, one by one, with one store call each.
async fn smooths<S: Store<Error: CannotFail> + Clone>(time: Time, store: S) {
    let (inner, store) = (Strict::default(), Counting::new(store));
    let calls = inner.calls();
    let mut service = layer(FIVE.with_burst(3), secs(2), store.clone()).layer(inner);
    let mut asking = Vec::new();
    for _ in 0..9 {
        asking.push(begin(&mut service, get("/")).await);
    }
    let (now, waiting) = asking.split_at_mut(3);
    now.iter_mut().for_each(passes);
    waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    for at in 0..waiting.len() {
        time.pass(STEP - millis(1)).await;
        assert!(!waiting.iter().any(Spawn::is_woken), "no task is woken before its wait is over");
        time.pass(millis(1)).await;
        passes(&mut waiting[at]);
        assert_eq!(calls(), 3 + at + 1);
    }
    assert_eq!((store.takes(), store.given_back()), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn a_block_applies_to_later_requests_and_not_to_queued_ones() {
    let time = Time::default();
    let store = time.store();
    let mut service = layer(FIVE, secs(2), store.clone()).layer(Strict::default());
    passes(&mut begin(&mut service, get("/")).await);
    let mut waiting = begin(&mut service, get("/")).await;
    let name = RuleName::new("api").expect("a name");
    drop(
        Limiter::named(name.as_str(), store).block(Key::everyone(), secs(60)).now().expect("room"),
    );
    let mut later = begin(&mut service, get("/")).await;
    assert_eq!(assert_ready_ok!(later.poll()).status(), StatusCode::TOO_MANY_REQUESTS);
    time.pass(STEP).await;
    passes(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_burst_continues_evenly_in_order_with_one_store_call_each() {
    let time = Time::default();
    smooths(time.clone(), time.store()).await;
    smooths(time.clone(), Gated::open(time.store())).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_is_denied_at_once_uncharged() {
    let (time, counters) = (Time::default(), Counters::new());
    let store = time.store();
    let layer = layer(Quota::per_second(1), secs(2), store.clone()).on_decision(counters.clone());
    let mut service = layer.expose_decision().layer(Strict::default());
    passes(&mut begin(&mut service, get("/")).await);
    let mut waiting = [begin(&mut service, get("/")).await, begin(&mut service, get("/")).await];
    waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    for _ in 0..5 {
        let denied = ask(&mut service, get("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(denied.headers(), "retry-after"), "3");
    }
    time.pass(secs(2)).await;
    for (asking, wait) in waiting.iter_mut().zip([1, 2]) {
        let response = assert_ready_ok!(asking.poll());
        let decision = response.extensions().get::<Decision>().expect("exposed");
        assert_eq!((decision.is_allowed(), decision.wait()), (true, secs(wait)));
    }
    time.pass(secs(1)).await;
    passes(&mut begin(&mut service, get("/")).await);
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.delayed, counts.denied), (4, 2, 5));
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_denials_report_when_they_would_pass() {
    let time = Time::default();
    let store = Counting::new(time.store());
    let layer = layer(Quota::per_second(1), secs(60), store.clone()).max_waiters(2);
    let (mut service, mut other) = (layer.layer(Strict::default()), layer.layer(Strict::default()));
    passes(&mut begin(&mut service, get("/")).await);
    let mut second = begin(&mut service, get("/")).await;
    let mut third = begin(&mut other, get("/")).await;
    for service in [&mut service, &mut other] {
        let denied = ask(service, get("/")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(denied.headers(), "retry-after"), "3");
    }
    assert_eq!((store.takes(), store.given_back()), (5, 0), "they were never charged");
    time.pass(secs(2)).await;
    passes(&mut second);
    passes(&mut third);
    time.pass(secs(1) - millis(1)).await;
    let mut early = begin(&mut service, get("/")).await;
    assert_pending!(early.poll());
    drop(early);
    time.pass(millis(1)).await;
    passes(&mut begin(&mut service, get("/")).await);
}

/// All four calls are pending before the first has an answer. The first holds the only position.
#[tokio::test(start_paused = true)]
async fn requests_that_find_the_queue_full_during_a_store_call_are_denied_uncharged() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let counting = Counting::new(gated.clone());
    let layer = layer(Quota::per_second(1), secs(60), counting.clone()).max_waiters(1);
    let mut service = layer.expose_decision().layer(Strict::default());
    let mut asking = Vec::new();
    for _ in 0..4 {
        asking.push(begin(&mut service, get("/")).await);
    }
    asking.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    gated.admit(6);
    passes(&mut asking[2]);
    assert_pending!(asking[0].poll());
    for at in [3, 1] {
        let denied = assert_ready_ok!(asking[at].poll());
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(denied.headers(), "retry-after"), "2");
        let decision = denied.extensions().get::<Decision>().expect("exposed");
        assert_eq!((decision.is_allowed(), decision.retry_after()), (false, Some(secs(2))));
    }
    assert_eq!(counting.given_back(), 0, "they were never charged");
    time.pass(secs(1)).await;
    passes(&mut asking[0]);
    time.pass(secs(1)).await;
    passes(&mut begin(&mut service, get("/")).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_during_its_store_call_leaves_the_queue() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let layer = layer(Quota::per_second(1), secs(60), gated.clone()).max_waiters(1);
    let mut service = layer.layer(Strict::default());
    let mut first = begin(&mut service, get("/")).await;
    assert_pending!(first.poll());
    drop(first);
    gated.admit(2);
    passes(&mut begin(&mut service, get("/")).await);
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    time.pass(secs(1)).await;
    passes(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_frees_its_position_for_the_next() {
    let time = Time::default();
    let inner = Strict::default();
    let (calls, store) = (inner.calls(), Counting::new(time.store()));
    let mut service = layer(FIVE, secs(2), store.clone()).layer(inner);
    passes(&mut begin(&mut service, get("/")).await);
    let mut second = begin(&mut service, get("/")).await;
    let mut third = begin(&mut service, get("/")).await;
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    time.pass(millis(150)).await;
    drop(third);
    let mut fourth = begin(&mut service, get("/")).await;
    assert_pending!(fourth.poll());
    time.pass(millis(50)).await;
    passes(&mut second);
    assert_pending!(fourth.poll());
    time.pass(STEP).await;
    passes(&mut fourth);
    assert_eq!((calls(), store.takes(), store.given_back()), (3, 4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_deadline_is_before_its_wait_ends_is_denied_at_once() {
    let time = Time::default();
    let mut service = layer(FIVE, secs(2), time.store()).layer(Strict::default());
    let by = |time| {
        let mut request = get("/");
        request.extensions_mut().insert(RequestDeadline(time));
        request
    };
    passes(&mut begin(&mut service, get("/")).await);
    let mut both = with(&[("grpc-timeout", "1S")]);
    both.extensions_mut().insert(RequestDeadline(millis(150)));
    for with_deadline in
        [with(&[("grpc-timeout", "199m")]), by(STEP - Duration::from_nanos(1)), both]
    {
        let denied = ask(&mut service, with_deadline).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    let mut grpc = with(&[("content-type", "application/grpc"), ("grpc-timeout", "1m")]);
    (*grpc.method_mut(), *grpc.version_mut()) = (Method::POST, Version::HTTP_2);
    assert_eq!(header(ask(&mut service, grpc).await.headers(), "grpc-status"), "8");
    // denied requests took no position; one that is in time waits, and an invalid deadline is
    // ignored
    let requests = [by(STEP), with(&[("grpc-timeout", "400m")]), with(&[("grpc-timeout", "1")])];
    let mut waiting = Vec::new();
    for request in requests {
        waiting.push(begin(&mut service, request).await);
    }
    for asking in &mut waiting {
        assert_pending!(asking.poll());
        time.pass(STEP).await;
        passes(asking);
    }
    time.pass(STEP).await;
    passes(&mut begin(&mut service, by(Duration::ZERO)).await);
    // a long deadline does not extend the rule's longest wait
    let mut queue = Vec::new();
    for _ in 0..10 {
        queue.push(begin(&mut service, by(secs(60))).await);
    }
    queue.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    assert_eq!(ask(&mut service, by(secs(60))).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_the_store_call_is_part_of_the_deadline() {
    let time = Time::default();
    let (local, name) = (time.store(), RuleName::new("api").expect("a name"));
    let gated = Gated::shut(local.clone());
    let store = Counting::new(gated.clone());
    let mut service = layer(FIVE, secs(2), store.clone()).layer(Strict::default());
    for (deadline, runs) in [(millis(300), true), (millis(299), false)] {
        let mut request = get("/");
        request.extensions_mut().insert(RequestDeadline(deadline));
        let mut asking = begin(&mut service, request).await;
        assert_pending!(asking.poll());
        time.pass(millis(100)).await;
        // The store answers after 100 ms, with a wait of 200 ms.
        drop(Limiter::named(name.as_str(), local.clone()).take(Key::everyone(), &FIVE, 1).now());
        gated.admit(1);
        if runs {
            assert_pending!(asking.poll());
            time.pass(STEP).await;
            passes(&mut asking);
        } else {
            let denied = assert_ready_ok!(asking.poll());
            assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(store.given_back(), 1);
        }
        time.pass(STEP).await;
        assert_eq!(left(&local, "api", Key::everyone(), &FIVE), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_of_several_rules_counts_and_one_that_cannot_wait_denies() {
    let time = Time::default();
    let store = time.store();
    let slow = Quota::per_minute(60).with_burst(1);
    let rules = (
        Rule::new("fast", Everyone, FIVE).max_wait(secs(9)),
        Rule::new("slow", Everyone, slow).max_wait(secs(2)),
        Rule::new("hard", Everyone, Quota::per_hour(3)),
    );
    let mut service = RateLimitLayer::rules(rules, store.clone()).layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    let mut second = begin(&mut service, get("/")).await;
    let mut third = begin(&mut service, get("/")).await;
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(third);
    assert_eq!(left(&store, "hard", Key::everyone(), &Quota::per_hour(3)), 1);
    time.pass(secs(1) - millis(1)).await;
    assert_pending!(second.poll());
    time.pass(millis(1)).await;
    assert_ready_ok!(second.poll());
}
