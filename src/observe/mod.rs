//! Hooks that are called with each decision: metrics, log lines and spans, counters, and hooks of
//! the user.
//!
//! Labels, log lines and spans never contain a key.

mod counters;
#[cfg(feature = "metrics")]
mod metered;

use std::fmt;

#[cfg(feature = "tracing")]
use tracing::{Level, Span, field::display, level_filters::LevelFilter};

pub use self::counters::{Counters, Counts};
pub(crate) use self::metered::{
    Active, Metrics, block_denied, circuit, overflowed, set_keys, store_failed,
};
use crate::{
    decision::{Cause, Decision, Outcome},
    fingerprint::{Fingerprint, FingerprintKey},
    head::RequestHead,
    key::{Key, KeyError},
    log::{log_once, warn},
    name::RuleName,
    quota::Quota,
};

/// No-op metrics, used without the `metrics` feature.
#[cfg(not(feature = "metrics"))]
mod metered {
    pub(crate) use std::convert::Infallible as Active;
    use std::time::Instant;

    use super::{Decision, DecisionEvent, MeteredRule, Quota, RuleName};

    #[derive(Clone)]
    pub(crate) struct Metrics;

    #[expect(clippy::unused_self)]
    impl Metrics {
        pub(crate) fn new(_: impl Iterator<Item = MeteredRule>) -> Self {
            Self
        }
        pub(crate) fn answered(&self, _: &Decision, _: Instant) {}
        pub(crate) fn attempted(&self, _: u32) {}
        pub(crate) fn hold(&self, _: &mut Decision, _: RuleName, _: &[Quota], _: u32) {}
        pub(crate) fn count_waiting(
            &self,
            _: &Decision,
            _: impl Fn(RuleName) -> bool,
        ) -> Option<Active> {
            None
        }
        pub(crate) fn on_decision(&self, _: &DecisionEvent<'_>) {}
    }

    pub(crate) fn store_failed(_: &'static str) {}
    pub(crate) fn circuit(_: Option<&str>, _: u8) {}
    pub(crate) fn overflowed() {}
    pub(crate) fn block_denied() {}
    pub(crate) fn set_keys(_: usize, _: usize) {}
}

/// Hook that a layer calls with each decision.
///
/// Set by [`RateLimitLayer::on_decision`](crate::RateLimitLayer::on_decision). [`Counters`] are a
/// hook, and so is a closure:
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, middleware::DecisionEvent};
///
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).on_decision(
///     |event: &DecisionEvent<'_>| {
///         if !event.is_admitted {
///             println!("{} was denied by rule {:?}", event.head.uri(), event.rule());
///         }
///     },
/// );
/// ```
///
/// The metrics and log lines of the features `metrics` and `tracing` need no hook.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hook for decisions",
    note = "a closure needs the type of its argument: `|event: &DecisionEvent<'_>| ..`"
)]
pub trait OnDecision: Send + Sync + 'static {
    /// Handles a decision, before the request runs or its rejection is created.
    ///
    /// The request waits for the hook, so the hook must not block.
    fn on_decision(&self, event: &DecisionEvent<'_>);
}

impl<F: Fn(&DecisionEvent<'_>) + Send + Sync + 'static> OnDecision for F {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        self(event);
    }
}

/// Decision about one request, for an [`OnDecision`].
///
/// A request that bypasses the rules has no event. A request that waits has one, after its wait.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct DecisionEvent<'a> {
    /// The head of the request.
    pub head: &'a RequestHead<'a>,
    /// The decision, or the reason of a rejection without one: the request had no usable key, or was on a
    /// deny list.
    pub decision: Result<&'a Decision, &'a KeyError>,
    /// `true` if the request runs.
    ///
    /// In a report-only layer, a request runs even if its decision is a denial.
    pub is_admitted: bool,
    /// `true` if the request runs after a wait in the [queue](crate::Rule::max_wait).
    pub is_delayed: bool,
    /// Returns the charge of a rule.
    pub(crate) charged: &'a dyn Fn(RuleName) -> Option<Charged<'a>>,
    pub(crate) secret: Option<&'a FingerprintKey>,
}

/// A rule for which metrics are recorded.
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "for metrics"))]
pub(crate) struct MeteredRule {
    pub(crate) name: RuleName,
    /// `true` if the quotas are chosen for each request.
    pub(crate) is_chosen: bool,
}

/// Charge of a rule, for a hook.
#[derive(Clone, Copy)]
pub(crate) struct Charged<'a> {
    pub(crate) key: &'a Key,
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "for metrics"))]
    pub(crate) quotas: &'a [Quota],
    pub(crate) cost: u32,
}

impl<'a> DecisionEvent<'a> {
    /// Returns the rule of the [decisive quota](Decision::binding), if there is one.
    #[must_use]
    pub fn rule(&self) -> Option<RuleName> {
        self.decision.ok()?.binding().map(Outcome::rule)
    }

    /// Returns the fingerprint of the key of that [rule](DecisionEvent::rule), if the layer has
    /// [fingerprints](crate::RateLimitLayer::fingerprint).
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.key(self.rule()?).map(|(_, fingerprint)| fingerprint)
    }

    /// Returns the key that a rule charges, and its fingerprint.
    pub(crate) fn key(&self, rule: RuleName) -> Option<(&'a Key, Fingerprint)> {
        let key = (self.charged)(rule)?.key;
        Some((key, key.fingerprint(self.secret?)))
    }

    /// Returns the result of a [decision](DecisionEvent::decision), as in the metric
    /// `ratelimit.decisions`, such as `allowed`, `limited` or `shadow_limited`.
    #[must_use]
    pub fn result(&self) -> Option<&'static str> {
        Some(self.overall(self.decision.ok()?).label(self.is_admitted))
    }

    /// Returns the cause of the decision as a whole.
    fn overall(&self, decision: &Decision) -> Cause {
        if self.is_admitted && !decision.is_allowed() {
            return Cause::Reported;
        }
        self.cause_without_denial(decision)
    }

    /// Returns the cause of the decision under a rule that did not deny the request.
    fn cause_without_denial(&self, decision: &Decision) -> Cause {
        let cause = decision.cause();
        // Such a request passes because nothing is charged for it, or its rules only report.
        if self.is_admitted && cause.is_unavailable() {
            Cause::Quota
        } else {
            cause
        }
    }

    /// Returns the cause of the result under a rule. A denial has one under the rules that denied it.
    ///
    /// If no single rule decided, such as in an outage, each rule has the cause.
    #[cfg(any(feature = "admin", feature = "metrics"))]
    pub(crate) fn cause(&self, rule: RuleName) -> Option<Cause> {
        let decision = self.decision.ok()?;
        if decision.outcomes().is_empty() {
            return Some(self.overall(decision));
        }
        let mut its = decision
            .outcomes()
            .iter()
            .filter(|outcome| outcome.rule() == rule && !outcome.is_passed_over());
        let is_report_only = its.clone().next()?.is_report_only();
        // A request beyond the limit that is admitted by `Overcommit` has an allowed decision.
        let is_reported = is_report_only || self.is_admitted && !decision.is_allowed();
        let is_denied = its.any(Outcome::is_denied);
        if is_denied && is_reported {
            return Some(Cause::Reported);
        }
        (is_denied || self.is_admitted).then(|| self.cause_without_denial(decision))
    }
}

impl fmt::Debug for DecisionEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionEvent")
            .field("decision", &self.decision)
            .field("is_admitted", &self.is_admitted)
            .finish_non_exhaustive()
    }
}

/// Returns `true` if a subscriber receives spans or log lines.
#[inline]
pub(crate) fn has_subscriber() -> bool {
    #[cfg(feature = "tracing")]
    return LevelFilter::current() != LevelFilter::OFF;
    #[cfg(not(feature = "tracing"))]
    false
}

/// Logs the first charge that was cut at `max_debt`.
pub(crate) fn late_charge_cut(quota: &Quota) {
    let limit = quota.limit();
    let debt = quota.max_debt_units();
    log_once!(warn!(
        "a late charge exceeds the max_debt of quota {quota}: {limit} units and a debt of {debt} are \
         charged already, and the excess is dropped; reserve more, or raise Quota::with_max_debt \
         (logged once)"
    ));
}

/// Logs the first late charge that the store did not make.
pub(crate) fn late_charge_lost(rule: RuleName) {
    log_once!(warn!(
        "a late charge of rule {rule} has no effect: the store failed, or does not support late \
         charges; reserve the highest cost instead (logged once)"
    ));
}

/// Fills the `ratelimit.*` fields of the current span, and logs denials.
///
/// Denials are logged at level debug, because there may be many.
#[cfg(feature = "tracing")]
pub(crate) fn record(event: &DecisionEvent<'_>) {
    let Ok(decision) = event.decision else { return };
    record_span(event, decision);
    if !decision.is_allowed() && tracing::enabled!(Level::DEBUG) {
        tracing::debug!(
            policy = event.rule().map(|rule| rule.as_str()),
            result = event.result(),
            retry_after_ms = wait_millis(decision),
            store = decision.source().as_str(),
            ratelimit.key = event.fingerprint().map(display),
            "denied"
        );
    }
}

#[cfg(feature = "tracing")]
fn record_span(event: &DecisionEvent<'_>, decision: &Decision) {
    let span = Span::current();
    let Some(field) = span.field("ratelimit.result") else {
        return;
    };
    span.record(&field, event.result());
    span.record("ratelimit.store", decision.source().as_str());
    let policy = event.rule().map(|rule| rule.as_str());
    span.record("ratelimit.policy", policy);
    span.record("ratelimit.remaining", decision.remaining());
    span.record("ratelimit.retry_after_ms", wait_millis(decision));
    span.record("ratelimit.key", event.fingerprint().map(display));
}

/// Returns the wait of a denial in milliseconds, rounded up.
#[cfg(feature = "tracing")]
fn wait_millis(decision: &Decision) -> Option<u64> {
    let wait = decision.retry_after().filter(|_| !decision.is_allowed())?;
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).ok()
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn record(_: &DecisionEvent<'_>) {}
