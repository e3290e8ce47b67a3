//! The queue of a layer is bounded per key, so that a few keys cannot fill it.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok, task::Spawn};
use tower::Layer;
use tower_sluice::{Quota, RateLimitLayer, Rule, Store, key::HeaderKey, store::CannotFail};

use crate::support::{
    Strict,
    driven::{Counting, Time, begin, secs},
    with,
};

/// One at once, then one per second.
const MINUTE: Quota = Quota::per_minute(60).with_burst(1);

fn layer<S: Store<Error: CannotFail>>(store: S) -> RateLimitLayer<Rule<HeaderKey>, S> {
    let rule = Rule::new("user", HeaderKey::new("x-user"), MINUTE);
    RateLimitLayer::rules(rule.max_wait(Duration::from_secs(3_600)), store)
}

fn of(user: &str) -> Request<()> {
    with(&[("x-user", user)])
}

fn passes(asking: &mut Spawn<impl Future<Output = Result<Response<String>, Infallible>>>) {
    assert_eq!(assert_ready_ok!(asking.poll()).status(), StatusCode::OK);
}

/// 18 users with 60 requests each filled all 1 024 positions of the default queue.
#[tokio::test(start_paused = true)]
async fn eighteen_invented_users_do_not_fill_the_queue() {
    let time = Time::default();
    let store = Counting::new(time.store());
    let mut service = layer(store.clone()).layer(Strict::default());
    let (mut waiting, mut denied) = (Vec::new(), 0);
    for user in 0..18 {
        for request in 0..60 {
            let mut asking = begin(&mut service, of(&format!("invented {user}"))).await;
            match asking.poll() {
                std::task::Poll::Pending => waiting.push(asking),
                std::task::Poll::Ready(answer) => {
                    let status = answer.expect("infallible").status();
                    let first = request == 0;
                    let expected =
                        if first { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
                    assert_eq!(status, expected);
                    denied += usize::from(!first);
                }
            }
        }
    }
    // 1/64 of 1 024 for each user
    assert_eq!((waiting.len(), denied), (18 * 16, 18 * (60 - 1 - 16)));
    assert_eq!(store.given_back(), 0, "the others were decided without queueing");
    passes(&mut begin(&mut service, of("alice")).await);
    let mut alice = begin(&mut service, of("alice")).await;
    assert_pending!(alice.poll());
    time.pass(secs(1)).await;
    passes(&mut alice);
}

#[tokio::test(start_paused = true)]
async fn an_explanation_includes_the_queue_bound_of_a_key() {
    let time = Time::default();
    let layer = layer(time.store()).max_waiters_per_key(1);
    let mut service = layer.layer(Strict::default());
    passes(&mut begin(&mut service, of("alice")).await);
    let (head, ()) = of("alice").into_parts();
    assert!(layer.explain(&head).await.is_allowed(), "it may wait");
    let mut waiting = begin(&mut service, of("alice")).await;
    assert_pending!(waiting.poll());
    assert!(!layer.explain(&head).await.is_allowed());
    let (head, ()) = of("bob").into_parts();
    assert!(layer.explain(&head).await.is_allowed());
}
