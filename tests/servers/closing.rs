//! The end of all waits of a layer on Redis, at the shutdown of a service.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response, StatusCode};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Key, Quota, RateLimitLayer, RedisStore, Rule, StoreExt,
    key::Everyone,
    middleware::{HoldUntil, QueueHandle},
};

use crate::{
    accounts::{Account, connect, rule},
    servers::{Flavour, PATIENCE, Server, eventually},
    slots::{held, until_held},
};

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const WAITING: u32 = 30;
/// One at once, then one every ten seconds.
const RATE: Quota = Quota::per_minute(6).with_burst(1);
const TEN_SECONDS: Duration = Duration::from_secs(10);
const ONE: Quota = Quota::concurrent(1);

/// Returns a service whose requests wait, and the handle of its queue.
fn serve(
    quota: Quota,
    store: &RedisStore,
) -> (
    impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
    + use<>,
    QueueHandle,
) {
    let rule = Rule::new("api", Everyone, quota).max_wait(Duration::from_secs(3_600));
    let layer = RateLimitLayer::rules(rule, store.clone().fail_closed());
    let layer = layer.hold_until(HoldUntil::Head);
    let queue = layer.queue_handle();
    let handler = service_fn(async |_: Request<()>| Ok(Response::new(String::new())));
    (layer.layer(handler), queue)
}

fn account(quota: Quota) -> Account {
    Account { rule: rule("api"), ..Account::new(Key::everyone(), quota) }
}

/// Sends requests, and waits until all of them wait.
async fn send<S>(service: &S, requests: u32) -> Vec<JoinHandle<StatusCode>>
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let mut sent = Vec::new();
    for _ in 0..requests {
        let service = service.clone();
        sent.push(tokio::spawn(async move {
            let response = service.oneshot(Request::new(())).await.expect("infallible");
            response.status()
        }));
    }
    sleep(Duration::from_millis(300)).await;
    assert!(sent.iter().all(|asking| !asking.is_finished()), "all of them wait");
    sent
}

async fn all_denied_at_once(sent: Vec<JoinHandle<StatusCode>>) {
    for asking in sent {
        let status = timeout(PATIENCE, asking).await.expect("no wait for an hour");
        assert_eq!(status.expect("no panic"), DENIED);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_charges_come_back_on_redis() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = connect(&server.url()).await;
        let (service, queue) = serve(RATE, &store);
        let first = service.clone().oneshot(Request::new(())).await.expect("infallible");
        assert_eq!(first.status(), OK);
        let sent = send(&service, WAITING).await;
        let account = account(RATE);
        let full_in = async || {
            let look = account.take(&store, 0).await.expect("a decision");
            look.outcomes()[0].reset_after()
        };
        assert!(full_in().await > TEN_SECONDS * WAITING);
        queue.close();
        all_denied_at_once(sent).await;
        let is_back = async || (full_in().await <= TEN_SECONDS).then_some(());
        eventually("only the first is charged", is_back).await;
        let later = service.oneshot(Request::new(())).await.expect("infallible");
        assert_eq!(later.status(), DENIED, "it does not wait");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_a_slot_on_redis_are_denied_at_once() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (service, queue) = serve(ONE, &store);
    let account = account(ONE);
    let running = account.take(&store, 1).await.expect("a decision");
    let sent = send(&service, WAITING).await;
    queue.close();
    all_denied_at_once(sent).await;
    assert_eq!(held(&store, &account).await, 1);
    let later = service.clone().oneshot(Request::new(())).await.expect("infallible");
    assert_eq!(later.status(), DENIED, "it does not wait");
    drop(running);
    until_held(&store, &account, 0).await;
    let passes = async || {
        let response = service.clone().oneshot(Request::new(())).await.expect("infallible");
        (response.status() == OK).then_some(())
    };
    eventually("no mark keeps the free slot", passes).await;
}
