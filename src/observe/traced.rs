//! Spans and log lines through the `tracing` facade.

use tracing::{Level, Span, field::display};

use super::DecisionEvent;

/// Fills the `ratelimit.*` fields of the current span, and logs denials.
///
/// Denials are logged at level debug, because there may be many.
pub(crate) fn record(event: &DecisionEvent<'_>) {
    let Ok(decision) = event.decision else { return };
    let span = Span::current();
    let field = span.field("ratelimit.result");
    let is_logged = !decision.is_allowed() && tracing::enabled!(Level::DEBUG);
    if field.is_none() && !is_logged {
        return;
    }
    let result = event.result();
    let store = decision.source().as_str();
    let policy = event.rule();
    let policy = policy.as_ref().map(|rule| rule.as_str());
    // The wait of a denial in milliseconds, rounded up.
    let wait = decision.expected_wait().filter(|_| !decision.is_allowed());
    let wait = wait.and_then(|it| u64::try_from(it.as_nanos().div_ceil(1_000_000)).ok());
    if let Some(field) = field {
        span.record(&field, result);
        span.record("ratelimit.store", store);
        span.record("ratelimit.policy", policy);
        span.record("ratelimit.remaining", decision.remaining());
        span.record("ratelimit.retry_after_ms", wait);
        span.record("ratelimit.key", event.fingerprint().map(display));
    }
    if is_logged {
        tracing::debug!(
            policy,
            result,
            retry_after_ms = wait,
            store,
            ratelimit.key = event.fingerprint().map(display),
            "denied"
        );
    }
}
