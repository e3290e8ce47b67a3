//! Policies that decide without accounts.

use std::{sync::Arc, time::Duration};

use super::{Fallback, Policy};
use crate::{
    decision::{Decision, Outcome, Source},
    name::RuleName,
    store::{Charge, Op},
};

/// Policy that allows requests without a charge.
///
/// No limit applies during an outage. This suits a public read API with other protection, but not a
/// login. The [source](Decision::source) of a decision during an outage is [`Source::FailedOpen`].
///
/// Charges that the inner store does not [support](crate::Store::supports) are a mistake of the
/// configuration, not an outage. Such requests are denied, as by [`FailClosed`].
#[derive(Clone, Copy, Debug)]
pub struct FailOpen(pub(crate) ());

/// Policy that denies requests.
///
/// The response is a 503 with a `Retry-After`, or gRPC status 14. The limit is never exceeded, but
/// an outage of the store is an outage of the service. The [source](Decision::source) of a decision
/// during an outage is [`Source::FailedClosed`].
///
/// A request whose rules are all [report-only](crate::Rule::report_only) is allowed without a charge,
/// and its decision reports the [denial](Decision::would_deny).
#[derive(Clone, Copy, Debug)]
pub struct FailClosed {
    retry_after: Duration,
}

impl FailClosed {
    pub(crate) const POLICY: Self = Self { retry_after: Duration::from_secs(1) };
}

impl<S> Fallback<S, FailClosed> {
    /// Sets the `Retry-After` of rejections. Defaults to 1 s.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { policy: Arc::new(FailClosed { retry_after }), ..self }
    }
}

impl Policy for FailOpen {
    const NAME: &'static str = "fail_open";
    const EFFECT: &'static str = "requests are allowed without a limit";
    const SOURCE: Source = Source::FailedOpen;

    fn decide(&self, op: Op<'_>, is_supported: bool) -> (&'static str, Decision) {
        let limits = |it: &Charge<'_>| it.cost() > 0 && !it.quotas().is_empty();
        match op {
            Op::Take(charges) | Op::Peek(charges)
                if !is_supported && charges.iter().any(|it| limits(it) && !it.is_report_only()) =>
            {
                FailClosed::POLICY.decide(op, is_supported)
            }
            _ => (Self::EFFECT, Decision::allow().with_source(Self::SOURCE)),
        }
    }
}

impl Policy for FailClosed {
    const NAME: &'static str = "fail_closed";
    const EFFECT: &'static str = "requests are rejected with 503";
    const SOURCE: Source = Source::FailedClosed;

    fn decide(&self, op: Op<'_>, _: bool) -> (&'static str, Decision) {
        const REPORTED: &str = "requests are allowed, because their rules are report-only";
        let charges = op.charges();
        let denying = charges.iter().find(|it| !it.is_report_only()).or(charges.first());
        let rule = denying.map_or_else(RuleName::default, Charge::rule);
        let decides = matches!(op, Op::Take(_) | Op::Peek(_));
        let report_only = decides && denying.is_some_and(Charge::is_report_only);
        let (effect, decision) = match report_only {
            true => (REPORTED, Decision::allow()),
            false => (Self::EFFECT, Decision::deny()),
        };
        let outcome =
            Outcome::unknown(rule, 0, Some(self.retry_after)).with_report_only(report_only);
        (effect, decision.with_source(Self::SOURCE).with_outcome(outcome))
    }
}
