//! Queued requests, which hold no permit of the inner service.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task, task::Spawn};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};
use tower_sluice::{Key, Quota, RateLimitLayer, Rule, Store, key::Everyone, store::CannotFail};

use crate::support::{
    Gated,
    driven::{Time, begin, held, left, secs},
    get,
};

/// One at once, then one every 200 ms.
const FIVE: Quota = Quota::per_second(5).with_burst(1);
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
async fn a_queued_request_holds_no_inner_permit_and_polls_for_one_after_its_wait() {
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
async fn an_inner_error_during_the_wait_is_returned_and_the_charge_undone() {
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
    // at once, although the future still exists
    assert_eq!(left(&store, "api", Key::everyone(), &FIVE), 1);
    drop((first, waiting));
    assert_eq!(left(&store, "api", Key::everyone(), &FIVE), 1);
}

/// A service that fails to become ready while it is broken.
#[derive(Clone, Default)]
struct Fragile {
    broken: Arc<AtomicBool>,
}

impl Service<Request<()>> for Fragile {
    type Response = Response<String>;
    type Error = &'static str;
    type Future = Ready<Result<Response<String>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(if self.broken.load(Relaxed) { Err("no backend") } else { Ok(()) })
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_queued_request_that_is_kept_frees_its_position() {
    let time = Time::default();
    let inner = Fragile::default();
    let mut service = layer(time.store()).max_waiters(1).layer(inner.clone());
    assert_ready_ok!(begin(&mut service, get("/")).await.poll());
    let mut failed = begin(&mut service, get("/")).await;
    assert_pending!(failed.poll());
    let denied = assert_ready_ok!(begin(&mut service, get("/")).await.poll());
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "the queue is full");
    inner.broken.store(true, Relaxed);
    time.pass(STEP).await;
    assert!(assert_ready!(failed.poll()).is_err());
    inner.broken.store(false, Relaxed);
    let served = assert_ready_ok!(begin(&mut service, get("/")).await.poll());
    assert_eq!(served.status(), StatusCode::OK, "the unit was given back");
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    time.pass(STEP).await;
    assert_eq!(assert_ready_ok!(waiting.poll()).status(), StatusCode::OK);
    drop(failed);
}
