//! Refuses requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::outage::{Asked, Outage};
use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
    store::{Answer, BoxError, BoxFuture, Charge, Condition, Store, Unsupported},
};

/// A store that refuses whatever the inner store could not decide: 503 with a `Retry-After`, gRPC
/// status 14.
///
/// The limit is never exceeded, and an outage of the store is an outage of the service. Such a
/// decision's [source](Decision::source) is [`Source::FailedClosed`].
///
/// With the feature `tracing` a line at warn says when the store begins to fail.
#[derive(Clone, Debug)]
pub struct FailClosed<S> {
    inner: S,
    outage: Outage,
    retry_after: Duration,
}

impl<S> FailClosed<S> {
    pub(crate) fn new(inner: S) -> Self {
        let outage = Outage::new("requests are refused with 503");
        Self { inner, outage, retry_after: Duration::from_secs(1) }
    }

    /// How long clients are told to stay away; one second unless set.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after, ..self }
    }

    fn mend<F, E>(
        &self,
        charges: &[Charge<'_>],
        answer: Answer<F>,
        asked: Option<Asked<&Outage>>,
    ) -> Answer<FailClosedFuture<F>>
    where
        F: Future<Output = Result<Decision, E>>,
        E: Into<BoxError>,
    {
        let rule = charges.first().map_or_else(RuleName::default, Charge::rule);
        let refusal = Refusal { rule, retry_after: self.retry_after };
        match answer {
            Answer::Now(answer) => Answer::Now(Ok(refusal.unless(answer, asked))),
            Answer::Later(inner) => {
                Answer::Later(FailClosedFuture { inner, refusal, asked: asked.map(Asked::kept) })
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    rule: RuleName,
    retry_after: Duration,
}

impl Refusal {
    /// The inner store's decision, or the refusal. Only a take tells of an outage: what a store does
    /// not do is none.
    fn unless<E: Into<BoxError>>(
        self,
        answer: Result<Decision, E>,
        asked: Option<Asked<&Outage>>,
    ) -> Decision {
        let decision = match asked {
            Some(asked) => asked.answered(answer),
            None => answer.ok(),
        };
        decision.unwrap_or_else(|| self.decision())
    }

    fn decision(self) -> Decision {
        let outcome = Outcome::unknown(self.rule, 0, Some(self.retry_after));
        Decision::deny().from_source(Source::FailedClosed).outcome(outcome)
    }
}

impl<S: Store> Store for FailClosed<S> {
    type Error = Infallible;
    type Future = FailClosedFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        let asked = self.outage.ask();
        self.mend(charges, self.inner.take(charges), Some(asked))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.settle(charge, units), None)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.reset(charge), None)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.block(charge, time), None)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.mend(&[*charge], self.inner.unblock(charge), None)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
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
        self.outage.health("fail_closed", self.inner.health())
    }
}

pin_project! {
    /// The later answer of a [`FailClosed`].
    #[derive(Debug)]
    pub struct FailClosedFuture<F> {
        #[pin]
        inner: F,
        refusal: Refusal,
        asked: Option<Asked<Outage>>,
    }
}

impl<F, E> Future for FailClosedFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Decision, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        Poll::Ready(Ok(this.refusal.unless(answer, this.asked.as_ref().map(Asked::lent))))
    }
}
