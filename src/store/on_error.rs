//! Stores that decide without accounts while the inner store fails.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    outage_state::OutageState,
    wrapper::{WrapperCall, WrapperFuture, forward},
};
use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
    store::{Answer, BoxError, BoxFuture, Charge, Health, Op, Store, Unsupported},
};

const UNLIMITED: &str = "requests are allowed without a limit";
const REJECTED: &str = "requests are rejected with 503";
const REPORTED: &str = "requests are allowed, because their rules are report-only";
/// The default `Retry-After` of rejections.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Store that allows requests without a charge while its inner store fails.
///
/// No limit applies during an outage. This suits a public read API with other protection, but not a
/// login. The [source](Decision::source) of a decision during an outage is [`Source::FailedOpen`].
///
/// Charges that the inner store does not [support](Store::supports) are a mistake of the
/// configuration, not an outage. Such requests are denied, as by [`FailClosed`].
///
/// With feature `tracing`, an outage is logged: its beginning at warn level and its end at info
/// level.
#[derive(Clone, Debug)]
pub struct FailOpen<S> {
    inner: S,
    outages: Arc<OutageState>,
}

impl<S: Store> FailOpen<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { outages: Arc::default(), inner }
    }
}

impl<S: Store> Store for FailOpen<S> {
    type Error = Infallible;
    type Future = WrapperFuture<S, OutageCall>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let limits = |charge: &Charge<'_>| {
            charge.cost() > 0 && !charge.quotas().is_empty() && !charge.is_report_only()
        };
        if let Op::Take(charges) | Op::Peek(charges) = op
            && let Some(charge) = charges.iter().find(|charge| limits(charge))
            && let Err(unsupported) = self.inner.supports(charges)
        {
            let (rule, retry_after) = (charge.rule(), RETRY_AFTER);
            let denial = Substitute::Deny { rule, retry_after, report_only: false };
            let epoch = Some(self.outages.epoch());
            let attempt = Attempt { epoch, is_partial: false, substitute: denial };
            return Answer::Now(Ok(attempt.finish(&self.outages, Err(unsupported))));
        }
        call(&self.inner, &self.outages, op, Substitute::Allow)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() && taken.source() != Source::FailedOpen {
            self.inner.undo(charges, taken, units);
        }
    }

    fn health(&self) -> BoxFuture<Health> {
        self.outages.health("fail_open", self.inner.health(), UNLIMITED.to_owned())
    }

    forward!(self => self.inner);
}

/// Store that denies requests while its inner store fails.
///
/// The response is a 503 with a `Retry-After`, or gRPC status 14. The limit is never exceeded, but
/// an outage of the store is an outage of the service. The [source](Decision::source) of a decision
/// during an outage is [`Source::FailedClosed`].
///
/// A request whose rules are all [report-only](crate::Rule::report_only) is allowed without a charge,
/// and its decision reports the [denial](Decision::would_deny).
///
/// With feature `tracing`, an outage is logged: its beginning at warn level and its end at info
/// level.
#[derive(Clone, Debug)]
pub struct FailClosed<S> {
    inner: S,
    outages: Arc<OutageState>,
    retry_after: Duration,
}

impl<S: Store> FailClosed<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, outages: Arc::default(), retry_after: RETRY_AFTER }
    }

    /// Sets the `Retry-After` of rejections. Defaults to 1 s.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after, ..self }
    }
}

impl<S: Store> Store for FailClosed<S> {
    type Error = Infallible;
    type Future = WrapperFuture<S, OutageCall>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let charges = op.charges();
        let denying = charges.iter().find(|charge| !charge.is_report_only()).or(charges.first());
        let denial = Substitute::Deny {
            rule: denying.map_or_else(RuleName::default, Charge::rule),
            retry_after: self.retry_after,
            report_only: matches!(op, Op::Take(_) | Op::Peek(_))
                && denying.is_some_and(Charge::is_report_only),
        };
        call(&self.inner, &self.outages, op, denial)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() && taken.source() != Source::FailedClosed {
            self.inner.undo(charges, taken, units);
        }
    }

    fn health(&self) -> BoxFuture<Health> {
        self.outages.health("fail_closed", self.inner.health(), REJECTED.to_owned())
    }

    forward!(self => self.inner);
}

/// The decision that replaces the answer of a failed call.
#[derive(Clone, Copy, Debug)]
enum Substitute {
    Allow,
    /// Denies the request, or reports the denial if all rules are report-only.
    Deny {
        rule: RuleName,
        retry_after: Duration,
        report_only: bool,
    },
}

/// The state of one call to the inner store.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// The epoch at the start of a `Take`. `None` for other operations, which never mean an outage.
    epoch: Option<u64>,
    /// `true` if other servers of the store may fail.
    is_partial: bool,
    substitute: Substitute,
}

/// The call of a [`FailOpen`] or [`FailClosed`].
#[derive(Debug)]
pub struct OutageCall {
    outages: Arc<OutageState>,
    attempt: Attempt,
}

fn call<S: Store>(
    inner: &S,
    outages: &Arc<OutageState>,
    op: Op<'_>,
    substitute: Substitute,
) -> Answer<WrapperFuture<S, OutageCall>> {
    let epoch = matches!(op, Op::Take(_)).then(|| outages.epoch());
    let is_partial = outages.is_failing() && !inner.failure_domains(op).is_empty();
    let attempt = Attempt { epoch, is_partial, substitute };
    match inner.call(op) {
        Answer::Now(answer) => Answer::Now(Ok(attempt.finish(outages, answer))),
        Answer::Later(inner) => {
            let call = OutageCall { outages: outages.clone(), attempt };
            Answer::Later(WrapperFuture::new(inner, call))
        }
    }
}

impl<S: Store> WrapperCall<S> for OutageCall {
    type Error = Infallible;

    fn finish(self, answer: Result<Decision, S::Error>) -> Result<Decision, Infallible> {
        Ok(self.attempt.finish(&self.outages, answer))
    }
}

impl Attempt {
    /// Records the result of the call. Returns its decision, or the substitute for an error.
    fn finish<E: Into<BoxError>>(
        self,
        outages: &OutageState,
        answer: Result<Decision, E>,
    ) -> Decision {
        let error = match answer {
            Ok(decision) => {
                if let Some(epoch) = self.epoch.filter(|_| !decision.source().is_known()) {
                    outages.record_success(epoch, || self.is_partial);
                }
                return decision;
            }
            Err(error) => error,
        };
        let (effect, decision) = match self.substitute {
            Substitute::Allow => (UNLIMITED, Decision::allow().with_source(Source::FailedOpen)),
            Substitute::Deny { rule, retry_after, report_only } => {
                let (effect, decision) = if report_only {
                    (REPORTED, Decision::allow())
                } else {
                    (REJECTED, Decision::deny())
                };
                let outcome =
                    Outcome::unknown(rule, 0, Some(retry_after)).with_report_only(report_only);
                (effect, decision.with_source(Source::FailedClosed).with_outcome(outcome))
            }
        };
        if let Some(epoch) = self.epoch {
            outages.record_failure(epoch, effect, error);
        }
        decision
    }
}
