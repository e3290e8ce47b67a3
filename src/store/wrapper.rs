//! Code that several wrappers share: their future, the methods that they forward, the start of a
//! request, and outcomes for another cost.

use std::{
    cell::Cell,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{Answer, Charge, Op, Store};
use crate::{
    algorithm::{Demand, gcra::Gcra},
    decision::{Decision, Outcome},
};

/// The state of a wrapper's call to its inner store `S`.
pub trait WrapperCall<S: Store> {
    /// The error of the wrapper.
    type Error;

    /// Converts the answer of the inner store to the answer of the wrapper.
    fn finish(self, answer: Result<Decision, S::Error>) -> Result<Decision, Self::Error>;
}

pin_project! {
    /// Future of a wrapper: the future of its inner store, and the state of the call.
    #[derive(Debug)]
    pub struct WrapperFuture<S: Store, C> {
        #[pin]
        pub(crate) inner: S::Future,
        call: Option<C>,
    }
}

impl<S: Store, C: WrapperCall<S>> WrapperFuture<S, C> {
    pub(super) fn new(inner: S::Future, call: C) -> Self {
        Self { inner, call: Some(call) }
    }

    /// Converts an immediate answer of the inner store, or wraps its future.
    pub(super) fn of(answer: Answer<S::Future>, call: C) -> Answer<Self> {
        match answer {
            Answer::Now(answer) => Answer::Now(call.finish(answer)),
            Answer::Later(inner) => Answer::Later(Self::new(inner, call)),
        }
    }
}

impl<S: Store, C: WrapperCall<S>> Future for WrapperFuture<S, C> {
    type Output = Result<Decision, C::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        match this.call.take() {
            Some(call) => Poll::Ready(call.finish(answer)),
            None => panic!("an answer was polled after it completed"),
        }
    }
}

/// Forwards `supports`, `register` and `failure_domains` to an inner store.
macro_rules! forward {
    ($self:ident => $inner:expr) => {
        fn supports(&$self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
            $inner.supports(charges)
        }

        fn register(&$self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
            $inner.register(charges)
        }

        fn failure_domains(&$self, op: Op<'_>) -> Vec<$crate::store::FailureDomain> {
            $inner.failure_domains(op)
        }
    };
}

pub(super) use forward;

// A `Timeout` counts from the start of a request, so that all calls and waits of the request
// share one budget.
thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the start of the current request, if a wrapper has set the start.
pub(super) fn request_start() -> Option<Instant> {
    START.get()
}

/// Calls a store for a request that started at `start`.
pub(super) fn call_since<S: Store>(store: &S, start: Instant, op: Op<'_>) -> Answer<S::Future> {
    struct Restore(Option<Instant>);

    impl Drop for Restore {
        fn drop(&mut self) {
            START.set(self.0);
        }
    }

    let _restore = Restore(START.replace(Some(start)));
    store.call(op)
}

/// Returns `outcome` for the demand `ask`. An outcome of another algorithm than GCRA is unchanged.
pub(super) fn recompute(outcome: &Outcome, charge: &Charge<'_>, ask: Demand) -> Outcome {
    let gcra = charge.quotas().get(outcome.quota_index()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(outcome.reset_ns(), 0, ask);
        Outcome::with(outcome.rule(), outcome.quota_index(), step.snapshot)
    })
}
