//! Waiters, which the layer passes through all wrappers to any store.

use std::{
    convert::Infallible,
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tower::{BoxError, Layer};
use tower_sluice::{
    Decision, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::Everyone,
    middleware::HoldUntil,
    store::{
        Answer, BoxFuture, CannotFail, Charge, Context, DynStore, Never, Op, Timeout, Unsupported,
    },
};

use crate::support::{Strict, ask, get};

const ONE: Quota = Quota::concurrent(1);
const SECOND: Duration = Duration::from_secs(1);

fn layer<S: Store<Error: CannotFail>>(store: S) -> RateLimitLayer<Rule<Everyone>, S> {
    let rule = Rule::new("api", Everyone, ONE).max_wait(SECOND);
    RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head)
}

/// A store that notes if each call has a waiter, and allows it or fails.
#[derive(Clone, Debug, Default)]
struct Noting {
    waiters: Arc<Mutex<Vec<bool>>>,
    is_late: bool,
    fails: bool,
}

impl Noting {
    fn note(&self, op: Op<'_>, context: &Context<'_>) {
        if matches!(op, Op::Take(_)) {
            self.waiters.lock().expect("no panic").push(context.waiter.is_some());
        }
    }

    fn noted(&self) -> Vec<bool> {
        self.waiters.lock().expect("no panic").clone()
    }
}

impl Store for Noting {
    type Error = BoxError;
    type Future = BoxFuture<Result<Decision, BoxError>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.note(op, context);
        let answer = if self.fails { Err("down".into()) } else { Ok(Decision::allow()) };
        if self.is_late { Answer::Later(Box::pin(ready(answer))) } else { Answer::Now(answer) }
    }

    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }
}

/// The local store of a fallback.
struct Local(Noting);

impl Store for Local {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        self.0.note(op, context);
        Answer::Now(Ok(Decision::allow()))
    }

    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }
}

type Wrapped = Arc<DynStore<Infallible>>;

/// Returns the store in each wrapper.
fn wrapped(store: &Noting) -> Vec<(&'static str, Wrapped)> {
    let new = || store.clone();
    let local = || LocalStore::with_capacity(64);
    let leaked: &'static Noting = Box::leak(Box::new(new()));
    let all = new().timeout(Timeout::DEFAULT).breaker().deny_cache().leases(5);
    vec![
        ("reference", leaked.fail_closed().boxed()),
        ("box", Box::new(new()).fail_closed().boxed()),
        ("arc", Arc::new(new()).fail_closed().boxed()),
        ("boxed", new().boxed().fail_closed().boxed()),
        ("timeout", new().timeout(Timeout::DEFAULT).fail_closed().boxed()),
        ("breaker", new().breaker().fail_closed().boxed()),
        ("deny cache", new().deny_cache().fail_closed().boxed()),
        ("leases", new().leases(5).fail_closed().boxed()),
        ("fail open", new().fail_open().boxed()),
        ("fallback", new().fallback(local(), 1).boxed()),
        ("all", all.fallback(local(), 1).boxed()),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_wrapper_passes_the_waiter_on() {
    for is_late in [false, true] {
        let store = Noting { is_late, ..Noting::default() };
        for (at, (name, wrapped)) in wrapped(&store).into_iter().enumerate() {
            let mut service = layer(wrapped).layer(Strict::default());
            assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK, "{name}");
            assert_eq!(store.noted(), vec![true; at + 1], "{name}, late: {is_late}");
        }
        let failing = Noting { is_late, fails: true, ..Noting::default() };
        let local = Noting::default();
        let fallback = failing.clone().fallback(Local(local.clone()), 1);
        let mut service = layer(fallback).layer(Strict::default());
        assert_eq!(ask(&mut service, get("/")).await.status(), StatusCode::OK);
        assert_eq!((failing.noted(), local.noted()), (vec![true], vec![true]), "late: {is_late}");
    }
}
