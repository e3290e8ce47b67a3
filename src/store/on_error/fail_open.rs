//! Allows requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::outage_log::{Attempt, OutageLog};
use crate::{
    decision::{Decision, Source},
    store::{Answer, BoxError, BoxFuture, Charge, Health, Op, Store, Unsupported},
};

/// Store that allows requests without a charge while its inner store fails.
///
/// No limit applies during an outage. This suits a public read API with other protection, but not a
/// login. The [source](Decision::source) of the decision is [`Source::FailedOpen`].
///
/// With feature `tracing`, an outage is logged: its beginning at warn level and its end at info
/// level.
#[derive(Clone, Debug)]
pub struct FailOpen<S> {
    inner: S,
    outage: OutageLog,
}

impl<S: Store> FailOpen<S> {
    pub(crate) fn new(inner: S) -> Self {
        let outage = OutageLog::new(&inner, "requests are allowed without a limit");
        Self { inner, outage }
    }
}

fn allowed() -> Decision {
    Decision::allow().from_source(Source::FailedOpen)
}

/// Returns the decision of the inner store, or an allowed decision if the store failed.
///
/// `attempt` is `None` for operations whose errors do not mean an outage.
fn decision<E: Into<BoxError>>(
    answer: Result<Decision, E>,
    attempt: Option<Attempt<&OutageLog>>,
) -> Decision {
    match attempt {
        Some(attempt) => attempt.finish(answer),
        None => answer.ok(),
    }
    .unwrap_or_else(allowed)
}

impl<S: Store> Store for FailOpen<S> {
    type Error = Infallible;
    type Future = FailOpenFuture<S::Future>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let attempt = op.is_take().then(|| self.outage.start());
        match self.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(decision(answer, attempt))),
            Answer::Later(inner) => {
                Answer::Later(FailOpenFuture { inner, attempt: attempt.map(Attempt::into_owned) })
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != Source::FailedOpen {
            self.inner.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.supports(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.register(charges)
    }

    fn health(&self) -> BoxFuture<Health> {
        self.outage.health("fail_open", self.inner.health())
    }
}

pin_project! {
    /// Future of a [`FailOpen`].
    #[derive(Debug)]
    pub struct FailOpenFuture<F> {
        #[pin]
        inner: F,
        attempt: Option<Attempt<OutageLog>>,
    }
}

impl<F, E> Future for FailOpenFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Decision, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        Poll::Ready(Ok(decision(answer, this.attempt.as_ref().map(Attempt::by_ref))))
    }
}
