//! Passes requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::outage::{Asked, Outage};
use crate::{
    decision::{Decision, Source},
    store::{Answer, BoxError, BoxFuture, Charge, Condition, Store, Unsupported},
};

/// A store that allows, uncharged, whatever the inner store could not decide.
///
/// Meanwhile there is no limit at all: right for a public read API behind another line of defence,
/// wrong for a login. Such a decision's [source](Decision::source) is [`Source::FailedOpen`].
///
/// With the feature `tracing` a line at warn says when the store begins to fail.
#[derive(Clone, Debug)]
pub struct FailOpen<S> {
    inner: S,
    outage: Outage,
}

impl<S> FailOpen<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, outage: Outage::new("requests pass without a limit") }
    }
}

fn passed() -> Decision {
    Decision::allow().from_source(Source::FailedOpen)
}

fn mend<F, E>(answer: Answer<F>, asked: Option<Asked<&Outage>>) -> Answer<FailOpenFuture<F>>
where
    F: Future<Output = Result<Decision, E>>,
    E: Into<BoxError>,
{
    match answer {
        Answer::Now(answer) => Answer::Now(Ok(decision(answer, asked))),
        Answer::Later(inner) => {
            Answer::Later(FailOpenFuture { inner, asked: asked.map(Asked::kept) })
        }
    }
}

/// Only a take tells of an outage: what a store does not do is none.
fn decision<E: Into<BoxError>>(
    answer: Result<Decision, E>,
    asked: Option<Asked<&Outage>>,
) -> Decision {
    match asked {
        Some(asked) => asked.answered(answer),
        None => answer.ok(),
    }
    .unwrap_or_else(passed)
}

impl<S: Store> Store for FailOpen<S> {
    type Error = Infallible;
    type Future = FailOpenFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        let asked = self.outage.ask();
        mend(self.inner.take(charges), Some(asked))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        mend(self.inner.settle(charge, units), None)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        mend(self.inner.reset(charge), None)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        mend(self.inner.block(charge, time), None)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        mend(self.inner.unblock(charge), None)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != Source::FailedOpen {
            self.inner.undo(charges, taken, units);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        self.outage.health("fail_open", self.inner.health())
    }
}

pin_project! {
    /// The later answer of a [`FailOpen`].
    #[derive(Debug)]
    pub struct FailOpenFuture<F> {
        #[pin]
        inner: F,
        asked: Option<Asked<Outage>>,
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
        Poll::Ready(Ok(decision(ready!(this.inner.poll(cx)), this.asked.as_ref().map(Asked::lent))))
    }
}
