//! `max_wait` smooths a burst instead of refusing it: a request reserves its place when it comes,
//! and holds nothing but that place until it is up.

mod support;

use std::{convert::Infallible, time::Duration};

use http::{Method, Response, StatusCode, Version};
use support::{
    Gated, Strict, ask,
    driven::{Counting, Time, begin, left, millis, secs},
    get, header, with,
};
use tokio_test::{assert_pending, assert_ready_ok, task::Spawn};
use tower::Layer;
use tower_sluice::{
    Counters, Deadline, Decision, Key, Limiter, Quota, RateLimitLayer, Rule, RuleName, Store,
    key::Everyone, store::CannotFail,
};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).burst(1);
const STEP: Duration = Duration::from_millis(200);

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn layer<S: Store<Error: CannotFail>>(quota: Quota, most: Duration, store: S) -> Layered<S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, quota).max_wait(most), store)
}

fn passes(asking: &mut Spawn<impl Future<Output = Result<Response<String>, Infallible>>>) {
    assert_eq!(assert_ready_ok!(asking.poll()).status(), StatusCode::OK);
}

/// Three at once leave as they came, and the rest one by one; the store is asked once for each.
async fn smooths<S: Store<Error: CannotFail> + Clone>(time: Time, store: S) {
    let (inner, store) = (Strict::default(), Counting::new(store));
    let calls = inner.calls();
    let mut service = layer(FIVE.burst(3), secs(2), store.clone()).layer(inner);
    let mut asking = Vec::new();
    for _ in 0..9 {
        asking.push(begin(&mut service, get("/")).await);
    }
    let (now, waiting) = asking.split_at_mut(3);
    now.iter_mut().for_each(passes);
    waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    for at in 0..waiting.len() {
        time.pass(STEP - millis(1)).await;
        assert!(!waiting.iter().any(Spawn::is_woken), "nobody is woken before his place is up");
        time.pass(millis(1)).await;
        passes(&mut waiting[at]);
        assert_eq!(calls(), 3 + at + 1);
    }
    assert_eq!((store.takes(), store.given_back()), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn a_block_reaches_requests_that_come_later_than_those_that_wait() {
    let time = Time::default();
    let store = time.store();
    let mut service = layer(FIVE, secs(2), store.clone()).layer(Strict::default());
    passes(&mut begin(&mut service, get("/")).await);
    let mut waiting = begin(&mut service, get("/")).await;
    let name = RuleName::new("api").expect("a name");
    Limiter::named(name, store).block(Key::everyone(), secs(60)).now().expect("room");
    let mut later = begin(&mut service, get("/")).await;
    assert_eq!(assert_ready_ok!(later.poll()).status(), StatusCode::TOO_MANY_REQUESTS);
    time.pass(STEP).await;
    passes(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_burst_leaves_evenly_spaced_in_the_order_it_came_and_nobody_asks_twice() {
    let time = Time::default();
    smooths(time.clone(), time.store()).await;
    smooths(time.clone(), Gated::open(time.store())).await;
}

#[tokio::test(start_paused = true)]
async fn who_would_wait_too_long_is_refused_at_once_and_charged_nothing() {
    let (time, counters) = (Time::default(), Counters::new());
    let store = time.store();
    let layer = layer(Quota::per_second(1), secs(2), store.clone()).count(&counters);
    let mut service = layer.expose_decision().layer(Strict::default());
    passes(&mut begin(&mut service, get("/")).await);
    let mut waiting = [begin(&mut service, get("/")).await, begin(&mut service, get("/")).await];
    waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    for _ in 0..5 {
        let refused = ask(&mut service, get("/")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(refused.headers(), "retry-after"), "3");
    }
    time.pass(secs(2)).await;
    for (asking, wait) in waiting.iter_mut().zip([1, 2]) {
        let response = assert_ready_ok!(asking.poll());
        let decision = response.extensions().get::<Decision>().expect("exposed");
        assert_eq!((decision.is_allowed(), decision.wait()), (true, secs(wait)));
    }
    time.pass(secs(1)).await;
    passes(&mut begin(&mut service, get("/")).await);
    let counts = counters.read();
    assert_eq!((counts.allowed, counts.delayed, counts.denied), (4, 2, 5));
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait_and_others_hear_when_they_would_pass() {
    let time = Time::default();
    let store = Counting::new(time.store());
    let layer = layer(Quota::per_second(1), secs(60), store.clone()).max_waiters(2);
    let (mut service, mut other) = (layer.layer(Strict::default()), layer.layer(Strict::default()));
    passes(&mut begin(&mut service, get("/")).await);
    let mut second = begin(&mut service, get("/")).await;
    let mut third = begin(&mut other, get("/")).await;
    for service in [&mut service, &mut other] {
        let refused = ask(service, get("/")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(refused.headers(), "retry-after"), "3");
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

/// All three were asked for before the first had answered: the last finds the queue full only then.
#[tokio::test(start_paused = true)]
async fn who_finds_the_queue_full_after_his_decision_gives_his_place_back() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let counting = Counting::new(gated.clone());
    let layer = layer(Quota::per_second(1), secs(60), counting.clone()).max_waiters(1);
    let mut service = layer.expose_decision().layer(Strict::default());
    let mut asking = Vec::new();
    for _ in 0..3 {
        asking.push(begin(&mut service, get("/")).await);
    }
    asking.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    gated.admit(4);
    passes(&mut asking[0]);
    assert_pending!(asking[1].poll());
    let refused = assert_ready_ok!(asking[2].poll());
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after"), "2");
    let decision = refused.extensions().get::<Decision>().expect("exposed");
    assert_eq!((decision.is_allowed(), decision.retry_after()), (false, Some(secs(2))));
    assert_eq!(counting.given_back(), 1);
    time.pass(secs(1)).await;
    passes(&mut asking[1]);
    let mut next = begin(&mut service, get("/")).await;
    assert_pending!(next.poll());
    time.pass(secs(1)).await;
    passes(&mut next);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_gives_its_place_to_the_next() {
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
async fn a_request_whose_deadline_comes_before_its_place_is_refused_at_once() {
    let time = Time::default();
    let mut service = layer(FIVE, secs(2), time.store()).layer(Strict::default());
    let by = |time| {
        let mut request = get("/");
        request.extensions_mut().insert(Deadline(time));
        request
    };
    passes(&mut begin(&mut service, get("/")).await);
    let mut both = with(&[("grpc-timeout", "1S")]);
    both.extensions_mut().insert(Deadline(millis(150)));
    for hurried in [with(&[("grpc-timeout", "199m")]), by(STEP - Duration::from_nanos(1)), both] {
        let refused = ask(&mut service, hurried).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    let mut grpc = with(&[("content-type", "application/grpc"), ("grpc-timeout", "1m")]);
    (*grpc.method_mut(), *grpc.version_mut()) = (Method::POST, Version::HTTP_2);
    assert_eq!(header(ask(&mut service, grpc).await.headers(), "grpc-status"), "8");
    // the refused took no place; what is there in time waits, and garbage is no deadline
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
    // and a long deadline does not make the rule more patient
    let mut queue = Vec::new();
    for _ in 0..10 {
        queue.push(begin(&mut service, by(secs(60))).await);
    }
    queue.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    assert_eq!(ask(&mut service, by(secs(60))).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn of_several_rules_the_longest_wait_counts_and_one_that_cannot_wait_refuses_for_all() {
    let time = Time::default();
    let store = time.store();
    let slow = Quota::per_minute(60).burst(1);
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
