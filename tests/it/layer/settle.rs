//! Charges that are adjusted by the head of the response.

use std::{convert::Infallible, mem};

use http::{Request, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Decision, Key, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::Everyone,
    middleware::Adjustment,
    store::{Answer, BoxFuture, Context, Op},
    testing::FakeClock,
};

use crate::support::{
    Gated, Strict, ask,
    driven::{handler, left, limiter},
    get,
    shaky::Shaky,
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
    let layer = RateLimitLayer::rules(logins, store).adjust(|response| match response.status {
        StatusCode::UNAUTHORIZED => Adjustment::Keep,
        _ => Adjustment::Refund,
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
async fn the_head_of_the_response_keeps_refunds_or_sets_the_charge() {
    for (status, expected) in [(200, 6), (304, 10), (500, 10), (503, 10), (206, 3), (202, 9)] {
        let store = store();
        let layer = layer(store.clone()).adjust(|response| match response.status.as_u16() {
            304 | 500..=599 => Adjustment::Refund,
            206 => Adjustment::Charge(7),
            202 => Adjustment::Charge(1),
            _ => Adjustment::Keep,
        });
        ask(&mut layer.layer(handler(move |_| status)), get("/")).await;
        assert_eq!(has(&store), expected, "{status}");
    }
}

#[tokio::test]
async fn an_inner_error_keeps_the_charge() {
    let store = store();
    let failing = service_fn(async |_: Request<()>| Err::<http::Response<String>, _>("no backend"));
    let service = layer(store.clone()).adjust(|_| Adjustment::Refund).layer(failing);
    assert_eq!(service.oneshot(get("/")).await.err(), Some("no backend"));
    assert_eq!(has(&store), 6);
}

#[tokio::test]
async fn a_plain_layer_adds_nothing_to_the_request_and_at_most_seven_words_to_its_future() {
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
async fn a_store_that_answers_later_adjusts_after_the_response() {
    let accounts = store();
    let gated = Gated::shut(accounts.clone());
    gated.admit(1);
    let layer = layer(gated.clone()).adjust(|_| Adjustment::Charge(9));
    let mut service = layer.layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    assert_eq!(has(&accounts), 6, "the response does not wait for it");
    gated.admit(1);
    while has(&accounts) == 6 {
        tokio::task::yield_now().await;
    }
    assert_eq!(has(&accounts), 1);
}

#[tokio::test]
async fn a_charge_that_stays_as_it_is_takes_no_call() {
    let shaky = Shaky::new(store());
    let rule = || Rule::new("api", Everyone, TEN).cost(4);
    for (settle, calls) in
        [(Adjustment::Keep, 1), (Adjustment::Charge(4), 2), (Adjustment::Charge(5), 4)]
    {
        let layer = RateLimitLayer::rules(rule(), shaky.clone().fail_open());
        let mut service = layer.adjust(move |_| settle).layer(Strict::default());
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
        assert_eq!((shaky.calls(), shaky.given_back()), (calls, 0), "{settle:?}");
        drop(limiter("api", shaky.store.clone()).reset(Key::everyone(), &TEN).now());
    }
}

/// A store whose takes fail, as in an outage, and whose adjustments work, as after it.
#[derive(Clone, Debug)]
struct Recovering(LocalStore);

impl Store for Recovering {
    type Error = std::io::Error;
    type Future = BoxFuture<Result<Decision, std::io::Error>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(match op {
            Op::Take(_) => Err(std::io::Error::other("down")),
            _ => Ok(self.0.call(op, context).now()),
        })
    }
}

#[tokio::test]
async fn uncharged_requests_in_an_outage_are_not_refunded_after_it() {
    let accounts = store();
    let store = Recovering(accounts.clone()).fail_open();
    drop(limiter("api", accounts.clone()).take(Key::everyone(), &TEN, 10).now());
    let mut service = layer(store).adjust(|_| Adjustment::Refund).layer(Strict::default());
    assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    assert_eq!(has(&accounts), 0);
}
