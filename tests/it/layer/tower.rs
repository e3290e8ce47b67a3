//! The contract of Tower: readiness, cancellation and errors, with other layers around.

use std::{
    convert::Infallible,
    fmt,
    future::Ready,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
};

use http::{Request, Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{
    Layer, Service, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit, load_shed::LoadShed,
    service_fn,
};
use tower_sluice::{
    AccessList, Cost, Decision, LocalStore, Quota, RateLimit, RateLimitLayer, Reject, Rule, Store,
    key::Everyone,
    key_fn,
    reject::{Rejection, reject_fn},
    rule::Rules,
    store::{Answer, CannotFail, Context, Op},
};

use crate::support::{Gated, Strict, ask, get};

const TWO: Quota = Quota::per_hour(2);

type Limited<I, S> = RateLimit<I, Rule<Everyone>, S>;

fn limit<I, S: Store<Error: CannotFail>>(inner: I, store: S) -> Limited<I, S> {
    RateLimitLayer::new(Everyone, TWO, store).layer(inner)
}

fn store() -> LocalStore {
    LocalStore::with_capacity(64)
}

fn is_ready<S: Service<Request<()>>>(service: &mut S) -> bool {
    matches!(task::spawn(service.ready()).poll(), Poll::Ready(Ok(_)))
}

/// After a rejection the service lives on, as on an idle connection, and so does the future.
/// `inner` has one permit, and a clone must find it free.
async fn refusal_frees_its_place<I, S>(inner: I, store: S)
where
    I: Service<Request<()>, Response = Response<String>, Error: fmt::Debug> + Clone,
    S: Store<Error: CannotFail>,
{
    let mut service = limit(inner, store);
    for _ in 0..2 {
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
    }
    let mut denied = task::spawn(service.ready().await.expect("ready").call(get("/")));
    let response = assert_ready_ok!(denied.poll());
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(is_ready(&mut service.clone()));
}

#[tokio::test]
async fn a_rejection_frees_the_inner_permit() {
    let one = || ConcurrencyLimit::new(Strict::default(), 1);
    refusal_frees_its_place(one(), store()).await;
    refusal_frees_its_place(one(), Gated::open(store())).await;
    refusal_frees_its_place(Buffer::new(Strict::default(), 1), store()).await;
    refusal_frees_its_place(Buffer::new(Strict::default(), 1), Gated::open(store())).await;
}

#[derive(Debug)]
struct Panics;

impl Store for Panics {
    type Error = Infallible;
    type Future = Ready<Result<Decision, Infallible>>;

    fn call(&self, _: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        panic!("no decision")
    }
}

/// A server may catch a panic and keep the connection, and with it the service.
#[tokio::test]
async fn a_panic_while_deciding_frees_the_inner_permit() {
    type One = ConcurrencyLimit<Strict>;

    fn frees<K: Rules, S, R>(what: &str, layer: &RateLimitLayer<K, S, R>)
    where
        S: Store<Error: CannotFail>,
        R: Reject<String>,
    {
        let mut one: One = ConcurrencyLimit::new(Strict::default(), 1);
        let mut service = layer.layer(one.clone());
        assert!(is_ready(&mut service) && !is_ready(&mut one), "{what}: a permit is held");
        let mut asking = None;
        let asked = catch_unwind(AssertUnwindSafe(|| {
            assert_ready_ok!(asking.insert(task::spawn(service.call(get("/")))).poll())
        }));
        assert!(asked.is_err(), "{what}");
        // the service and the future are kept
        assert!(is_ready(&mut one), "{what}");
        drop(one);
        assert!(is_ready(&mut service), "{what}: the service still works");
    }
    fn no_answer(_: &Rejection<'_>, _: &tower_sluice::RequestHead<'_>) -> Response<String> {
        panic!("no answer")
    }
    let no_key = || key_fn(|_| -> Option<&str> { panic!("no key") });
    let blocked = || RateLimitLayer::new(Everyone, Quota::blocked(), store());

    frees("an extractor", &RateLimitLayer::new(no_key(), TWO, store()));
    let cost = Rule::new("api", Everyone, TWO).cost(Cost::from_fn(|_| panic!("no cost")));
    frees("a cost", &RateLimitLayer::rules(cost, store()));
    frees("a list", &blocked().allow(AccessList::from_fn(|_| panic!("no list"))));
    frees("a list of keys", &blocked().deny(AccessList::keys(no_key(), ["alice"])));
    frees("a rejection", &blocked().reject(reject_fn(no_answer)));
    frees("after the decision", &blocked().expose_decision().reject(reject_fn(no_answer)));
    frees("a store", &RateLimitLayer::new(Everyone, TWO, Panics));
    let later = RateLimitLayer::new(Everyone, Quota::blocked(), Gated::open(store()));
    frees("later", &later.reject(reject_fn(no_answer)));
}

#[test]
fn the_inner_call_starts_after_the_decision_and_on_the_instance_that_was_ready() {
    let (inner, gated) = (Strict::default(), Gated::shut(store()));
    let calls = inner.calls();
    // a clone of `LoadShed` that was not polled sheds, and a clone of `Strict` panics
    let mut service = limit(LoadShed::new(inner), gated.clone());
    assert!(is_ready(&mut service));
    let mut first = task::spawn(service.call(get("/")));
    assert!(is_ready(&mut service));
    let mut second = task::spawn(service.call(get("/")));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_eq!(calls(), 0);
    gated.admit(2);
    assert!(first.is_woken());
    assert_ready_ok!(first.poll());
    assert_ready_ok!(second.poll());
    assert_eq!(calls(), 2);
}

#[tokio::test]
async fn readiness_and_its_errors_are_those_of_the_inner_service() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<String>>();
    let mut service = task::spawn(limit(inner, store()));
    let mut poll = || service.enter(|cx, mut service| service.poll_ready(cx));
    handle.allow(0);
    assert_pending!(poll());
    handle.allow(1);
    assert_ready_ok!(poll());
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<String>>();
    handle.send_error("no backend");
    let error = limit(inner, store()).ready().await.expect_err("an error");
    assert_eq!(error.to_string(), "no backend");
}

#[tokio::test]
async fn the_inner_error_passes_unchanged() {
    #[derive(Debug, PartialEq)]
    struct Teapot(u8);
    let inner = || service_fn(|_: Request<()>| async { Err::<Response<String>, _>(Teapot(7)) });
    let now = limit(inner(), store()).oneshot(get("/")).await;
    let later = limit(inner(), Gated::open(store())).oneshot(get("/")).await;
    assert_eq!((now.err(), later.err()), (Some(Teapot(7)), Some(Teapot(7))));
}
