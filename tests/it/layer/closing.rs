//! The end of all waits of a layer, at the shutdown of a service.

use std::convert::Infallible;

use http::{Response, StatusCode};
use tokio_test::{assert_pending, task::Spawn};
use tower::Layer;
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule, Store,
    key::{Everyone, HeaderKey},
    middleware::{Counters, HoldUntil, Penalty},
    store::CannotFail,
};

use crate::support::{
    Gated, Strict, ask,
    driven::{self, Counting, Time, begin, limiter, millis, secs},
    get, with,
};

const ONE: Quota = Quota::concurrent(1);
/// One at once, then one per second.
const SECOND: Quota = Quota::per_second(1);
const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn layer<S: Store<Error: CannotFail>>(quotas: &[Quota], store: S) -> Layered<S> {
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(secs(60));
    RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head)
}

fn status(
    asking: &mut Spawn<impl Future<Output = Result<Response<String>, Infallible>>>,
) -> StatusCode {
    assert!(asking.is_woken(), "it still waits");
    driven::status(asking)
}

/// One request runs, and five wait for their turns.
async fn queued_charges_come_back<S>(time: Time, store: S)
where
    S: Store<Error: CannotFail> + Clone + Send + Sync + 'static,
{
    let (store, counters) = (Counting::new(store), Counters::new());
    let layer = layer(&[SECOND], store.clone()).on_decision(counters.clone());
    let (queue, other) = (layer.queue_handle(), layer.clone().queue_handle());
    let mut service = layer.layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), OK);
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    assert!(!queue.is_closed());
    queue.clone().close();
    assert!(other.is_closed(), "clones of the layer have one queue");
    assert_eq!(store.given_back(), 5);
    // The first that is polled is not the last that was queued.
    assert!(waiting.iter_mut().all(|asking| status(asking) == DENIED));
    assert_eq!(store.given_back(), 5, "each charge is undone once");
    assert_eq!(ask(&mut service, get("/")).await.status(), DENIED, "it does not wait");
    assert_eq!(store.takes(), 7);
    time.pass(secs(1) - millis(1)).await;
    assert_eq!(ask(&mut service, get("/")).await.status(), DENIED);
    time.pass(millis(1)).await;
    assert_eq!(ask(&mut service, get("/")).await.status(), OK, "only the first was charged");
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.delayed, counts.denied), (2, 0, 7));
    queue.close();
}

#[tokio::test(start_paused = true)]
async fn all_queued_requests_are_denied_at_once_and_their_charges_undone() {
    let time = Time::default();
    queued_charges_come_back(time.clone(), time.store()).await;
    let time = Time::default();
    queued_charges_come_back(time.clone(), Gated::open(time.store())).await;
}

/// Two requests are denied by the end of all waits, and a third one is not blocked.
async fn the_end_is_no_strike(store: LocalStore, gated: Gated) {
    let rule = Rule::new("api", HeaderKey::new("x-key"), ONE).max_wait(secs(60));
    let penalty = Penalty::after(Quota::per_hour(1)).block([secs(600)]);
    let layer = RateLimitLayer::rules(rule, gated.clone()).hold_until(HoldUntil::Head);
    let layer = layer.max_waiters_per_key(9).penalty("api", penalty);
    let queue = layer.queue_handle();
    let mut service = layer.layer(Strict::default());
    let alice = || with(&[("x-key", "alice")]);
    let running = limiter("api", store).take("alice", &ONE, 1).now();
    let mut asking = [begin(&mut service, alice()).await, begin(&mut service, alice()).await];
    asking.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    queue.close();
    gated.admit(1_000);
    assert_eq!(asking.each_mut().map(status), [DENIED; 2]);
    tokio::task::yield_now().await;
    drop(running);
    assert_eq!(ask(&mut service, alice()).await.status(), OK, "the key is not blocked");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_all_waits_is_no_strike() {
    let store = Time::default().store();
    the_end_is_no_strike(store.clone(), Gated::open(store)).await;
}

/// The queue closes between the call of the store and its denial.
#[tokio::test(start_paused = true)]
async fn a_wait_that_the_end_prevents_is_no_strike() {
    let store = Time::default().store();
    the_end_is_no_strike(store.clone(), Gated::shut(store)).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_asks_the_store_meanwhile_is_denied_uncharged() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let store = Counting::new(gated.clone());
    let layer = layer(&[SECOND], store.clone());
    let queue = layer.queue_handle();
    let mut service = layer.layer(Strict::default());
    let mut asking = [begin(&mut service, get("/")).await, begin(&mut service, get("/")).await];
    asking.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    queue.close();
    gated.admit(2);
    let answers = asking.each_mut().map(status);
    assert_eq!((answers, store.given_back()), ([OK, DENIED], 1));
}
