//! What a request really cost is settled by the head of its response; a layer that settles nothing
//! pays nothing for it.

mod support;

use std::{convert::Infallible, mem, time::Duration};

use http::{Request, StatusCode};
use support::{
    Gated, Strict, ask,
    driven::{handler, left, limiter},
    get,
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Answer, Charge, Decision, Key, LocalStore, Quota, RateLimitLayer, Rule, Settle, Store,
    key::Everyone, store::BoxFuture, testing::FakeClock,
};

const TEN: Quota = Quota::per_hour(10);

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn layer<S: Store<Error = Infallible>>(store: S) -> Layered<S> {
    RateLimitLayer::rules(Rule::new("api", Everyone, TEN).cost(4), store)
}

fn has(store: &LocalStore) -> u32 {
    left(store, "api", Key::everyone(), &TEN)
}

#[tokio::test]
async fn only_failed_logins_count() {
    let store = store();
    let logins = Rule::new("login", Everyone, Quota::per_hour(3));
    let layer = RateLimitLayer::rules(logins, store).settle(|response| match response.status {
        StatusCode::UNAUTHORIZED => Settle::Keep,
        _ => Settle::Refund,
    });
    let login = handler(|request| if request.uri().path() == "/right" { 200 } else { 401 });
    let mut service = layer.layer(login);
    for path in ["/right", "/wrong", "/right", "/wrong", "/right", "/right", "/wrong"] {
        let status = ask(&mut service, get(path)).await.status();
        assert_eq!(status, if path == "/right" { 200 } else { 401 });
    }
    assert_eq!(ask(&mut service, get("/right")).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn the_head_of_the_response_keeps_refunds_or_names_the_cost() {
    for (status, expected) in [(200, 6), (304, 10), (500, 10), (503, 10), (206, 3), (202, 9)] {
        let store = store();
        let layer = layer(store.clone()).settle(|response| match response.status.as_u16() {
            304 | 500..=599 => Settle::Refund,
            206 => Settle::Charge(7),
            202 => Settle::Charge(1),
            _ => Settle::Keep,
        });
        ask(&mut layer.layer(handler(move |_| status)), get("/")).await;
        assert_eq!(has(&store), expected, "{status}");
    }
}

#[tokio::test]
async fn an_inner_error_is_no_response_and_keeps_the_charge() {
    let store = store();
    let failing = service_fn(async |_: Request<()>| Err::<http::Response<String>, _>("no backend"));
    let service = layer(store.clone()).settle(|_| Settle::Refund).layer(failing);
    assert_eq!(service.oneshot(get("/")).await.err(), Some("no backend"));
    assert_eq!(has(&store), 6);
}

#[tokio::test]
async fn a_plain_layer_adds_nothing_to_a_request_and_a_few_words_to_its_future() {
    let inner = handler(|request| {
        assert!(request.extensions().is_empty());
        200
    });
    let mut service = layer(store()).layer(inner.clone());
    let alone = mem::size_of_val(&inner.clone().call(get("/")));
    let future = service.ready().await.expect("ready").call(get("/"));
    let (more, word) = (mem::size_of_val(&future) - alone, mem::size_of::<usize>());
    assert!(more <= 7 * word, "{more} bytes more than the inner future");
    assert_eq!(future.await.expect("an answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn a_store_that_answers_later_settles_after_the_response() {
    let (accounts, settled) = (store(), |_: &_| Settle::Charge(9));
    let gated = Gated::shut(accounts.clone());
    gated.admit(1);
    let layer = layer(gated.clone()).settle(settled);
    let mut service = layer.layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    assert_eq!(has(&accounts), 6, "nobody waits for it");
    gated.admit(1);
    while has(&accounts) == 6 {
        tokio::task::yield_now().await;
    }
    assert_eq!(has(&accounts), 1);
}

/// Fails to take, as in an outage, and settles, as after it.
#[derive(Clone, Debug)]
struct Recovering(LocalStore);

impl Store for Recovering {
    type Error = std::io::Error;
    type Future = BoxFuture<Result<Decision, std::io::Error>>;

    fn take(&self, _: &[Charge<'_>]) -> Answer<Self::Future> {
        Answer::Now(Err(std::io::Error::other("down")))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.settle(charge, units).now()))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.reset(charge).now()))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.block(charge, time).now()))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.unblock(charge).now()))
    }
}

#[tokio::test]
async fn what_passed_uncharged_in_an_outage_is_not_refunded_after_it() {
    let accounts = store();
    let store = Recovering(accounts.clone()).fail_open();
    limiter("api", accounts.clone()).take(Key::everyone(), &TEN, 10).now();
    let mut service = layer(store).settle(|_| Settle::Refund).layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    assert_eq!(has(&accounts), 0);
}
