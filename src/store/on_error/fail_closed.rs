//! Denies requests while the store fails.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::outage_log::{Attempt, OutageLog};
use crate::{
    decision::{Decision, Outcome, Source},
    rule::RuleName,
    store::{Answer, BoxError, BoxFuture, Charge, Health, Op, Store, Unsupported},
};

/// Store that denies requests while its inner store fails.
///
/// The response is a 503 with a `Retry-After`, or gRPC status 14. The limit is never exceeded, but
/// an outage of the store is an outage of the service. The [source](Decision::source) of the
/// decision is [`Source::FailedClosed`].
///
/// With feature `tracing`, an outage is logged: its beginning at warn level and its end at info
/// level.
#[derive(Clone, Debug)]
pub struct FailClosed<S> {
    inner: S,
    outage: OutageLog,
    retry_after: Duration,
}

impl<S: Store> FailClosed<S> {
    pub(crate) fn new(inner: S) -> Self {
        let outage = OutageLog::new(&inner, "requests are rejected with 503");
        Self { inner, outage, retry_after: Duration::from_secs(1) }
    }

    /// Sets the `Retry-After` of rejections. Defaults to 1 s.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
struct Denial {
    rule: RuleName,
    retry_after: Duration,
}

impl Denial {
    /// Returns the decision of the inner store, or a denial if the store failed.
    ///
    /// `attempt` is `None` for operations whose errors do not mean an outage.
    fn unless_decided<E: Into<BoxError>>(
        self,
        answer: Result<Decision, E>,
        attempt: Option<Attempt<&OutageLog>>,
    ) -> Decision {
        let decision = match attempt {
            Some(attempt) => attempt.finish(answer),
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

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let attempt = op.is_take().then(|| self.outage.start());
        let rule = op.charges().first().map_or_else(RuleName::default, Charge::rule);
        let denial = Denial { rule, retry_after: self.retry_after };
        match self.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(denial.unless_decided(answer, attempt))),
            Answer::Later(inner) => {
                let attempt = attempt.map(Attempt::into_owned);
                Answer::Later(FailClosedFuture { inner, denial, attempt })
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
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
        self.outage.health("fail_closed", self.inner.health())
    }
}

pin_project! {
    /// Future of a [`FailClosed`].
    #[derive(Debug)]
    pub struct FailClosedFuture<F> {
        #[pin]
        inner: F,
        denial: Denial,
        attempt: Option<Attempt<OutageLog>>,
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
        Poll::Ready(Ok(this
            .denial
            .unless_decided(answer, this.attempt.as_ref().map(Attempt::by_ref))))
    }
}
