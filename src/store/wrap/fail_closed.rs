//! Refuses requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
    store::{Answer, Charge, Store, Unsupported},
};

/// A store that refuses whatever the inner store could not decide: 503 with a `Retry-After`, gRPC
/// status 14.
///
/// The limit is never exceeded, and an outage of the store is an outage of the service. Such a
/// decision's [source](Decision::source) is [`Source::FailedClosed`].
#[derive(Clone, Debug)]
pub struct FailClosed<S> {
    inner: S,
    retry_after: Duration,
}

impl<S> FailClosed<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, retry_after: Duration::from_secs(1) }
    }

    /// How long clients are told to stay away; one second unless set.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after, ..self }
    }

    fn mend<F, E>(&self, charges: &[Charge<'_>], answer: Answer<F>) -> Answer<FailClosedFuture<F>>
    where
        F: Future<Output = Result<Decision, E>>,
    {
        let rule = charges.first().map_or_else(RuleName::default, Charge::rule);
        let refusal = Refusal { rule, retry_after: self.retry_after };
        match answer {
            Answer::Now(Ok(decision)) => Answer::Now(Ok(decision)),
            Answer::Now(Err(_)) => Answer::Now(Ok(refusal.decision())),
            Answer::Later(inner) => Answer::Later(FailClosedFuture { inner, refusal }),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    rule: RuleName,
    retry_after: Duration,
}

impl Refusal {
    fn decision(self) -> Decision {
        let outcome = Outcome::unknown(self.rule, 0, Some(self.retry_after));
        Decision::deny().from_source(Source::FailedClosed).outcome(outcome)
    }
}

impl<S: Store> Store for FailClosed<S> {
    type Error = Infallible;
    type Future = FailClosedFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.mend(charges, self.inner.take(charges))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.unblock(charge))
    }

    fn give_back(&self, charges: &[Charge<'_>], taken: &Decision) {
        if taken.is_allowed() {
            self.inner.give_back(charges, taken);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.announce(charges)
    }
}

pin_project! {
    /// The later answer of a [`FailClosed`].
    #[derive(Debug)]
    pub struct FailClosedFuture<F> {
        #[pin]
        inner: F,
        refusal: Refusal,
    }
}

impl<F, E> Future for FailClosedFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Decision, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decision = ready!(this.inner.poll(cx));
        Poll::Ready(Ok(decision.unwrap_or_else(|_| this.refusal.decision())))
    }
}
