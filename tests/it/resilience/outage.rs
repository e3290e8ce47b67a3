//! Responses while the store fails.

use std::time::Duration;

use http::{StatusCode, header::RETRY_AFTER};
use tower_sluice::{
    Cost, Decision, Quota, RateLimitLayer, Rule, StoreExt, decision::Source, key::Everyone,
    rule::Rules,
};

use crate::support::{Broken, answer, get, lines, with};

#[tokio::test]
async fn fail_closed_is_a_503_byte_for_byte() {
    let quotas = || Quota::per_second(5).with_name("burst");
    for broken in [Broken::Now, Broken::Later] {
        let layer = RateLimitLayer::new(Everyone, quotas(), broken.fail_closed());
        let response = answer(&layer, with(&[("accept", "application/json")])).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let expected =
            ["cache-control: no-store", "content-type: application/problem+json", "retry-after: 1"];
        assert_eq!(lines(response.headers()), expected);
        let body = concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-"#,
            r#"capacity","title":"Temporary Reduced Capacity","status":503,"detail":"Requests "#,
            r#"cannot be admitted right now; retry in 1 s."}"#
        );
        assert_eq!((response.body().as_str(), body.len()), (body, 199));
        for (millis, reported) in [(4_001, "5"), (1, "1")] {
            let store = broken.fail_closed().retry_after(Duration::from_millis(millis));
            let layer = RateLimitLayer::new(Everyone, quotas(), store);
            assert_eq!(answer(&layer, get("/")).await.headers()[RETRY_AFTER], reported);
        }
    }
}

#[tokio::test]
async fn fail_open_passes_and_reports_it() {
    for broken in [Broken::Now, Broken::Later] {
        let layer = RateLimitLayer::new(Everyone, Quota::per_second(5), broken.fail_open());
        let response = answer(&layer.expose_decision(), get("/")).await;
        assert_eq!((response.status(), lines(response.headers())), (StatusCode::OK, vec![]));
        let decision = response.extensions().get::<Decision>().expect("exposed");
        assert_eq!(decision.source(), Source::FailedOpen);
    }
}

/// A cost of 0 is always allowed, as by a store that works.
#[tokio::test]
async fn fail_closed_allows_a_cost_of_0() {
    const FIVE: Quota = Quota::per_second(5);
    async fn decision(rules: impl Rules, broken: Broken) -> Decision {
        let layer = RateLimitLayer::rules(rules, broken.fail_closed()).expose_decision();
        let response = answer(&layer, get("/")).await;
        let decision = response.extensions().get::<Decision>().expect("exposed").clone();
        let status = if decision.is_allowed() { 200 } else { 503 };
        assert_eq!((response.status().as_u16(), decision.source()), (status, Source::FailedClosed));
        decision
    }
    let free = || Rule::new("free", Everyone, FIVE).cost(Cost::from_fn(|_| 0));
    let second = || Rule::new("second", Everyone, FIVE.with_name("second"));
    for broken in [Broken::Now, Broken::Later] {
        let trial = second().report_only(true);
        for (decision, allowed, would_deny) in [
            (decision(free(), broken).await, true, false),
            (decision((free(), trial.clone()), broken).await, true, true),
            (decision((free(), second()), broken).await, false, false),
            (decision((free().report_only(true), second()), broken).await, false, false),
            (decision(trial.cost(Cost::from_fn(|_| 0)), broken).await, true, false),
        ] {
            assert_eq!((decision.is_allowed(), decision.would_deny()), (allowed, would_deny));
            let rules: Vec<_> = decision.outcomes().iter().map(|it| it.rule().as_str()).collect();
            assert_eq!(rules, ["second"][..usize::from(!allowed || would_deny)]);
        }
    }
}
