//! Responses while the store fails.

use std::time::Duration;

use http::{StatusCode, header::RETRY_AFTER};
use tower_sluice::{Decision, Quota, RateLimitLayer, StoreExt, decision::Source, key::Everyone};

use crate::support::{Broken, answer, get, lines, with};

#[tokio::test]
async fn fail_closed_is_a_503_byte_for_byte() {
    let quotas = || Quota::per_second(5).named("burst");
    for broken in [Broken::Now, Broken::Later] {
        let layer = RateLimitLayer::new(Everyone, quotas(), broken.fail_closed());
        let response = answer(&layer, with(&[("accept", "application/json")])).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let expected =
            ["cache-control: no-store", "content-type: application/problem+json", "retry-after: 1"];
        assert_eq!(lines(response.headers()), expected);
        let body = concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-"#,
            r#"capacity","title":"Rate limiter unavailable","status":503,"detail":"Requests "#,
            r#"cannot be admitted right now; retry in 1 s.","violated-policies":["burst"]}"#
        );
        assert_eq!((response.body().as_str(), body.len()), (body, 227));
        for (millis, reported) in [(4_001, "5"), (0, "1")] {
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
