//! Passes requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    decision::{Decision, Source},
    store::{Answer, Charge, Store, Unsupported},
};

/// A store that allows, uncharged, whatever the inner store could not decide.
///
/// Meanwhile there is no limit at all: right for a public read API behind another line of defence,
/// wrong for a login. Such a decision's [source](Decision::source) is [`Source::FailedOpen`].
#[derive(Clone, Debug)]
pub struct FailOpen<S>(S);

impl<S> FailOpen<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self(inner)
    }
}

fn passed() -> Decision {
    Decision::allow().from_source(Source::FailedOpen)
}

fn mend<F, E>(answer: Answer<F>) -> Answer<FailOpenFuture<F>>
where
    F: Future<Output = Result<Decision, E>>,
{
    match answer {
        Answer::Now(decision) => Answer::Now(Ok(decision.unwrap_or_else(|_| passed()))),
        Answer::Later(inner) => Answer::Later(FailOpenFuture { inner }),
    }
}

impl<S: Store> Store for FailOpen<S> {
    type Error = Infallible;
    type Future = FailOpenFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        mend(self.0.take(charges))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        mend(self.0.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        mend(self.0.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        mend(self.0.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        mend(self.0.unblock(charge))
    }

    fn give_back(&self, charges: &[Charge<'_>], taken: &Decision) {
        if taken.source() != Source::FailedOpen {
            self.0.give_back(charges, taken);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.announce(charges)
    }
}

pin_project! {
    /// The later answer of a [`FailOpen`].
    #[derive(Debug)]
    pub struct FailOpenFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, E> Future for FailOpenFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Decision, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(ready!(self.project().inner.poll(cx)).unwrap_or_else(|_| passed())))
    }
}
