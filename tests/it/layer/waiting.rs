//! Requests that wait instead of being denied (`max_wait`).

use std::{convert::Infallible, time::Duration};

use http::{Method, Response, StatusCode, Version};
use tokio_test::{assert_pending, assert_ready_ok, task::Spawn};
use tower::Layer;
use tower_sluice::{
    Decision, Quota, RateLimitLayer, Rule, Store, key::Everyone, middleware::Counters,
    rule::RequestDeadline, store::CannotFail,
};

use crate::support::{
    Strict, ask,
    driven::{Counting, Time, begin, millis, secs},
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
