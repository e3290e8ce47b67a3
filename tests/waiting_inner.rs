//! Who waits for his place holds none of the inner service's: it is asked whether it is ready once
//! the wait is over.

mod support;

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use support::{
    Gated,
    driven::{Time, begin, held, left, secs},
    get,
};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task, task::Spawn};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};
use tower_sluice::{Key, Quota, RateLimitLayer, Rule, Store, key::Everyone, store::CannotFail};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).burst(1);
const STEP: Duration = Duration::from_millis(200);

fn layer<S: Store<Error: CannotFail>>(store: S) -> RateLimitLayer<Rule<Everyone>, S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, FIVE).max_wait(secs(2)), store)
}

fn passes(asking: &mut Spawn<impl Future<Output = Result<Response<String>, Infallible>>>) {
    assert_eq!(assert_ready_ok!(asking.poll()).status(), StatusCode::OK);
}

fn is_free<I>(service: &I) -> bool
where
    I: Service<Request<()>, Response = Response<String>> + Clone,
{
    task::spawn(service.clone().ready()).poll().is_ready()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_holds_no_place_of_the_inner_service_and_asks_for_one_after_the_wait() {
    async fn holds_none<S: Store<Error: CannotFail>>(time: &Time, store: S) {
        let door = Arc::new(Semaphore::new(1));
        let one = ConcurrencyLimit::new(held(&door), 1);
        let mut service = layer(store).layer(one.clone());
        passes(&mut begin(&mut service, get("/")).await);
        let mut waiting = begin(&mut service, get("/")).await;
        assert_pending!(waiting.poll());
        assert!(is_free(&one) && is_free(&service));
        let mut holder = one.clone();
        let mut running = begin(&mut holder, get("/")).await;
        assert_pending!(running.poll());
        time.pass(STEP).await;
        assert_pending!(waiting.poll());
        door.add_permits(2);
        assert_ready_ok!(running.poll());
        drop(running);
        assert!(waiting.is_woken());
        passes(&mut waiting);
    }
    let time = Time::default();
    holds_none(&time, time.store()).await;
    holds_none(&time, Gated::open(time.store())).await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_inner_service_meanwhile_passes_and_the_place_is_given_back() {
    let time = Time::default();
    let store = time.store();
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<String>>();
    handle.allow(2);
    let mut service = layer(store.clone()).layer(inner);
    let first = begin(&mut service, get("/")).await;
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    assert_eq!(left(&store, "api", Key::everyone(), &FIVE), 0);
    handle.send_error("no backend");
    time.pass(STEP).await;
    let error = assert_ready!(waiting.poll()).expect_err("no backend");
    assert_eq!(error.to_string(), "no backend");
    // at once, though the future lives on
    assert_eq!(left(&store, "api", Key::everyone(), &FIVE), 1);
    drop((first, waiting));
    assert_eq!(left(&store, "api", Key::everyone(), &FIVE), 1);
}
