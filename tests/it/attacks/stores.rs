//! Answers of a store of another crate, and adjustments by extreme numbers.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    time::Duration,
};

use http::{Request, Response, Version};
use tokio_test::{assert_pending, task};
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_sluice::{
    Decision, Key, Limiter, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::{Outcome, Source},
    key::Everyone,
    middleware::Overcommit,
    rule::RuleName,
    store::{Answer, Charge, Context, Op},
    testing::FakeClock,
};

use crate::support::ALGORITHMS;

/// A store that gives the same answer to every operation.
#[derive(Clone)]
struct Fixed(Decision);

impl Store for Fixed {
    type Error = Infallible;
    type Future = Ready<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.clone()))
    }
}

fn layer(answer: Decision) -> RateLimitLayer<Rule<Everyone>, Fixed> {
    RateLimitLayer::new(Everyone, Quota::per_second(5), Fixed(answer))
}

/// Returns the statuses of the requests that are answered at once, and the number of the others.
async fn send(layer: &RateLimitLayer<Rule<Everyone>, Fixed>, requests: usize) -> (Vec<u16>, usize) {
    let handler = |_| ready(Ok::<_, Infallible>(Response::new(String::new())));
    let mut service = layer.layer(service_fn(handler));
    let (mut statuses, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..requests {
        service.ready().await.expect("infallible");
        let mut call = task::spawn(service.call(Request::new(())));
        match call.poll() {
            std::task::Poll::Ready(response) => {
                statuses.push(response.expect("infallible").status().as_u16());
            }
            std::task::Poll::Pending => waiting.push(call),
        }
        tokio::task::yield_now().await;
    }
    for call in &mut waiting {
        assert_pending!(call.poll());
        tokio::task::yield_now().await;
    }
    (statuses, waiting.len())
}

#[tokio::test]
async fn a_store_that_does_not_know_how_to_decide_denies() {
    let unsupported = || layer(Decision::deny().with_source(Source::Unsupported));
    assert_eq!(send(&unsupported(), 2).await, (vec![429; 2], 0));
    let overcommitted = unsupported().overcommit(Overcommit::when(|| true));
    assert_eq!(send(&overcommitted, 2).await, (vec![429; 2], 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_queues_everything_forever_fills_the_queue_and_no_more() {
    let forever = Decision::allow().with_wait(Duration::MAX);
    assert_eq!(send(&layer(forever.clone()), 1_100).await, (vec![429; 76], 1_024));
    assert_eq!(send(&layer(forever).max_waiters(3), 5).await, (vec![429; 2], 3));
}

#[test]
fn adjustments_by_extreme_numbers_give_no_more_than_the_limit() {
    let limit = 5_u32;
    for algorithm in ALGORITHMS {
        let clock = FakeClock::new();
        let store = clock.store(64);
        let limiter = Limiter::named("default", store.clone());
        let quota = Quota::per_minute(limit).with_algorithm(algorithm);
        let (key, quotas) = (Key::from("key"), [quota]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        for units in [i64::MAX, i64::MIN, 1, i64::MIN, i64::MAX, i64::MAX, -1, i64::MIN, i64::MIN] {
            let left = store.adjust(&charge, units).now().remaining();
            assert!(left.is_some_and(|left| left <= limit), "{algorithm:?} {units}: {left:?}");
            clock.advance(Duration::from_millis(1));
        }
        let allowed = (0..20).filter(|_| limiter.take("key", &quota, 1).now().is_allowed()).count();
        assert_eq!(allowed, 5, "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_denial_with_an_unknown_wait_reports_no_wait() {
    let outcome = Outcome::full(RuleName::default(), 0, 5)
        .with_remaining(0)
        .with_estimated_retry_after(Duration::ZERO);
    let denied = layer(Decision::deny().with_outcome(outcome));
    let handler = |_| ready(Ok::<_, Infallible>(Response::new(String::new())));
    let call =
        Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
    let call = call.body(()).expect("a request");
    let response = denied.layer(service_fn(handler)).oneshot(call).await.expect("infallible");
    let fields = response.headers();
    assert_eq!(fields["grpc-status"], "8");
    assert!(!fields.contains_key("retry-after") && !fields.contains_key("grpc-retry-pushback-ms"));
}
