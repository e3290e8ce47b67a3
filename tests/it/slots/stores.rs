//! Waiters, which the layer passes through all wrappers to any store.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use tokio_test::{assert_pending, task::Spawn};
use tower::{BoxError, Layer};
use tower_sluice::{
    Decision, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::Outcome,
    key::Everyone,
    middleware::HoldUntil,
    store::{
        Answer, BoxFuture, Call, CannotFail, Charge, Context, DynStore, Never, Op, Timeout,
        Unsupported,
    },
};

use crate::support::{
    Strict, ask,
    driven::{begin, status},
    get,
};

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

/// A store of one slot, whose requests get the slot in the order of arrival.
#[derive(Clone, Default)]
struct OneSlot(Arc<Mutex<SlotState>>);

#[derive(Default)]
struct SlotState {
    is_held: bool,
    /// The requests that wait. A call is `None` once it was made.
    waiting: BTreeMap<u64, Option<Call>>,
}

impl OneSlot {
    /// Changes the state, then calls the first request if the slot is free.
    fn change(&self, change: impl FnOnce(&mut SlotState)) {
        let mut state = self.0.lock().expect("no panic");
        change(&mut state);
        let is_free = !state.is_held;
        let first = state.waiting.values_mut().next().filter(|_| is_free);
        let call = first.and_then(Option::take);
        drop(state);
        drop(call);
    }
}

impl Store for OneSlot {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let Op::Take([charge]) = op else { panic!("one charge") };
        let number = context.waiter.map_or(u64::MAX, |waiter| waiter.number());
        let mut state = self.0.lock().expect("no panic");
        let is_first = state.waiting.keys().all(|other| *other >= number);
        if is_first && !state.is_held {
            state.is_held = true;
            state.waiting.remove(&number);
            let store = self.clone();
            let free = move || store.change(|state| state.is_held = false);
            return Answer::Now(Ok(Decision::allow().with_slot(free)));
        }
        if let Some(waiter) = context.waiter {
            let store = self.clone();
            let leave = move || store.change(|state| drop(state.waiting.remove(&number)));
            let call = waiter.wait(0, charge.max_wait, leave);
            state.waiting.insert(number, Some(call));
        }
        let held = Outcome::slots(charge.rule, 0, 1, 1).with_estimated_retry_after(SECOND);
        Answer::Now(Ok(Decision::deny().with_outcome(held)))
    }

    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_of_your_own_lets_requests_wait_for_its_slots() {
    let store = OneSlot::default();
    let layer = layer(store.clone());
    let mut service = layer.layer(Strict::default());
    store.change(|state| state.is_held = true);
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(begin(&mut service, get("/")).await);
        assert_pending!(waiting.last_mut().expect("one").poll());
    }
    drop(waiting.remove(1));
    store.change(|state| state.is_held = false);
    assert_eq!(waiting.iter().map(Spawn::is_woken).collect::<Vec<_>>(), [true, false, false]);
    // It leaves although it was called.
    drop(waiting.remove(0));
    assert_eq!(waiting.iter().map(Spawn::is_woken).collect::<Vec<_>>(), [true, false]);
    assert_eq!(status(&mut waiting[0]), StatusCode::OK);
    assert!(waiting[1].is_woken(), "the slot is free at the head of the response");
    assert_eq!(status(&mut waiting[1]), StatusCode::OK);
    store.change(|state| state.is_held = true);
    let mut last = begin(&mut service, get("/")).await;
    assert_pending!(last.poll());
    tokio::time::advance(SECOND + Duration::from_millis(10)).await;
    assert_eq!(status(&mut last), StatusCode::TOO_MANY_REQUESTS, "max_wait has passed");
    drop(last);
    assert!(store.0.lock().expect("no panic").waiting.is_empty());
}
