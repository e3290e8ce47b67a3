//! Spans and log lines through the `tracing` facade.

use tracing::{
    Level, Span,
    field::{Field, display},
    level_filters::LevelFilter,
};

use super::Verdict;
use crate::{decision::Decision, fingerprint::Fingerprint, name::RuleName};

/// Fills the `ratelimit.*` fields of the current span, and logs denials.
///
/// Denials are logged at level debug, because there may be many.
#[inline]
pub(super) fn trace(
    decision: &Decision,
    verdict: Verdict,
    who: impl Fn(RuleName) -> Option<Fingerprint>,
) {
    if LevelFilter::current() != LevelFilter::OFF {
        record_denial(decision, verdict, who);
    }
}

#[inline(never)]
fn record_denial(
    decision: &Decision,
    verdict: Verdict,
    who: impl Fn(RuleName) -> Option<Fingerprint>,
) {
    let span = Span::current();
    if let Some(result) = span.field("ratelimit.result") {
        record(&span, &result, decision, verdict);
        if let Some(key) = key(decision, &who) {
            span.record("ratelimit.key", display(key));
        }
    }
    if !decision.is_allowed() && tracing::enabled!(Level::DEBUG) {
        tracing::debug!(
            policy = policy(decision),
            result = verdict.as_str(),
            retry_after_ms = retry_after(decision),
            store = decision.source().as_str(),
            ratelimit.key = key(decision, &who).map(display),
            "denied"
        );
    }
}

#[cold]
fn record(span: &Span, result: &Field, decision: &Decision, verdict: Verdict) {
    span.record(result, verdict.as_str());
    span.record("ratelimit.store", decision.source().as_str());
    if let Some(policy) = policy(decision) {
        span.record("ratelimit.policy", policy);
    }
    if let Some(remaining) = decision.remaining() {
        span.record("ratelimit.remaining", remaining);
    }
    if let Some(wait) = retry_after(decision) {
        span.record("ratelimit.retry_after_ms", wait);
    }
}

/// Returns the rule of the decisive quota.
fn policy(decision: &Decision) -> Option<&'static str> {
    decision.binding().map(|outcome| outcome.rule().as_str())
}

/// Returns the fingerprint of the key under the rule of the decisive quota.
fn key(decision: &Decision, who: &impl Fn(RuleName) -> Option<Fingerprint>) -> Option<Fingerprint> {
    who(decision.binding()?.rule())
}

/// Returns the wait of a denial in milliseconds, rounded up.
fn retry_after(decision: &Decision) -> Option<u64> {
    let wait = decision.expected_wait().filter(|_| !decision.is_allowed())?;
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).ok()
}
