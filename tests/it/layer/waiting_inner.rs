//! Queued requests, which hold no permit of the inner service.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready_ok, task, task::Spawn};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};
use tower_sluice::{Quota, RateLimitLayer, Rule, Store, key::Everyone, store::CannotFail};

use crate::support::{
    Gated,
    driven::{Time, begin, held, secs},
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
