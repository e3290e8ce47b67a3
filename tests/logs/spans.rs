//! Spans and log lines hold everything about a decision except the key.

use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::HeaderKey};
use tracing::{Instrument, Level, Span, debug_span, field::Empty};

use crate::{
    alone,
    log::Log,
    support::{answer, with},
};

/// Sends three requests, of which two pass, within such spans, and writes a line in each. Returns the lines
/// of this level and above, which begin with the fields of their spans.
async fn logged(level: Level, span: impl Fn() -> Span) -> Vec<String> {
    let (log, _guard) = Log::start(level);
    let rule = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(2));
    let layer = RateLimitLayer::rules(rule, LocalStore::new());
    for _ in 0..3 {
        async {
            answer(&layer, with(&[("x-user", "alice")])).await;
            tracing::info!("answered");
        }
        .instrument(span())
        .await;
    }
    let lines = log.read();
    assert!(!lines.concat().contains("alice"), "{lines:?}");
    lines
}

fn declared() -> Span {
    debug_span!(
        "request",
        ratelimit.result = Empty,
        ratelimit.store = Empty,
        ratelimit.policy = Empty,
        ratelimit.remaining = Empty,
        ratelimit.retry_after_ms = Empty,
    )
}

#[tokio::test]
async fn a_span_has_its_declared_fields_and_a_denial_is_logged_at_debug() {
    let _turn = alone();
    let lines = logged(Level::DEBUG, declared).await;
    let [first, second, denial, third] = &lines[..] else { panic!("{lines:?}") };
    for (line, result, left) in
        [(first, "allowed", 1), (second, "allowed", 0), (third, "limited", 0)]
    {
        let fields = format!(
            "request{{ratelimit.result=\"{result}\" ratelimit.store=\"local\" \
             ratelimit.policy=\"user\" ratelimit.remaining={left}"
        );
        assert!(line.contains(&fields), "{fields} in {line}");
        assert_eq!(line.contains("ratelimit.retry_after_ms"), result == "limited", "{line}");
    }
    let half_an_hour = ["retry_after_ms=1799", "retry_after_ms=1800000"];
    assert!(half_an_hour.iter().any(|wait| third.contains(wait)), "{third}");
    assert!(denial.contains(" DEBUG ") && denial.contains("policy=\"user\""), "{denial}");

    let quiet = logged(Level::INFO, declared).await;
    assert_eq!(quiet.len(), 3, "a denial logs nothing above debug: {quiet:?}");
    let bare = logged(Level::DEBUG, || debug_span!("request")).await;
    assert!(!bare.concat().contains("ratelimit."), "undeclared fields are not recorded: {bare:?}");
}
