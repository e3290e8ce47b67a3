//! The queue of a layer is bounded per key, so that a few keys cannot fill it.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok, task::Spawn};
use tower::Layer;
use tower_sluice::{Key, Quota, RateLimitLayer, Rule, Store, key::HeaderKey, store::CannotFail};

use crate::support::{
    Gated, Strict, ask,
    driven::{Counting, Time, begin, left, secs},
    header, with,
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

/// A request denied for a full queue is not charged, and `Retry-After` is the time at which it
/// would pass.
async fn a_key_has_its_own_bound<S: Store<Error: CannotFail> + Clone>(time: Time, store: S) {
    let store = Counting::new(store);
    let layer = layer(store.clone()).max_waiters_per_key(2);
    let (mut service, mut other) = (layer.layer(Strict::default()), layer.layer(Strict::default()));
    passes(&mut begin(&mut service, of("alice")).await);
    let mut second = begin(&mut service, of("alice")).await;
    let mut third = begin(&mut other, of("alice")).await;
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    for service in [&mut service, &mut other] {
        let denied = ask(service, of("alice")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(denied.headers(), "retry-after"), "3");
    }
    assert_eq!((store.takes(), store.given_back()), (5, 0), "they were never charged");
    passes(&mut begin(&mut service, of("bob")).await);
    let mut bob = begin(&mut service, of("bob")).await;
    assert_pending!(bob.poll());
    // a position that is served or cancelled is free for the next request
    time.pass(secs(1)).await;
    passes(&mut second);
    drop(third);
    let mut more = [begin(&mut service, of("alice")).await, begin(&mut service, of("alice")).await];
    more.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    assert_eq!(ask(&mut service, of("alice")).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_bound_of_its_key_is_denied_uncharged() {
    let time = Time::default();
    a_key_has_its_own_bound(time.clone(), time.store()).await;
    let time = Time::default();
    a_key_has_its_own_bound(time.clone(), Gated::open(time.store())).await;
}

/// All calls are pending before the first has an answer. The first holds the only position.
#[tokio::test(start_paused = true)]
async fn a_position_of_a_key_is_held_during_the_store_call() {
    let time = Time::default();
    let local = time.store();
    let gated = Gated::shut(local.clone());
    let mut service = layer(gated.clone()).max_waiters_per_key(1).layer(Strict::default());
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(begin(&mut service, of("alice")).await);
    }
    all.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    gated.admit(4);
    passes(&mut all[1]);
    assert_pending!(all[0].poll());
    for at in [3, 2] {
        let denied = assert_ready_ok!(all[at].poll());
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    let quota = MINUTE.with_burst(9);
    assert_eq!(left(&local, "user", Key::from("alice"), &quota), 7, "two are charged");
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

/// The count of a key is exact after any number of cancelled requests.
#[tokio::test(start_paused = true)]
async fn a_user_that_leaves_the_queue_holds_no_position() {
    let time = Time::default();
    let layer = layer(time.store()).max_waiters_per_key(3).max_waiters(4);
    let mut service = layer.layer(Strict::default());
    passes(&mut begin(&mut service, of("mallory")).await);
    for _ in 0..50 {
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(begin(&mut service, of("mallory")).await);
        }
        waiting.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
        let denied = ask(&mut service, of("mallory")).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    passes(&mut begin(&mut service, of("alice")).await);
    let mut alice = begin(&mut service, of("alice")).await;
    assert_pending!(alice.poll());
}
