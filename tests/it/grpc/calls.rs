//! Rejections for gRPC clients: a status with details.

use std::{convert::Infallible, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode, Version};
use tonic::{Code, Status, transport::Server};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, Service};
use tower_sluice::{
    KeyExtractor, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, StoreExt,
    key::{Everyone, HeaderKey, KeyError},
    rule::OnMissingKey,
};

use crate::support::{
    self, Broken, Strict,
    echo::{Echo, connect, echo, incoming},
    header, lines, owing, quota,
};

fn pushback(status: &Status) -> i64 {
    let value = status.metadata().get("grpc-retry-pushback-ms").expect("pushback");
    value.to_str().expect("text").parse().expect("a number")
}

#[tokio::test]
async fn a_tonic_client_gets_the_retry_delay() {
    let (incoming, address) = incoming();
    let server = Server::builder()
        .layer(RateLimitLayer::per_ip(Quota::per_hour(2)))
        .serve_with_incoming(Echo, incoming);
    tokio::spawn(server);
    let mut client = connect(address).await;
    for _ in 0..2 {
        assert_eq!(echo(&mut client).await.expect("admitted"), "hello");
    }
    let status = echo(&mut client).await.expect_err("denied");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let retry = status.get_details_retry_info().expect("RetryInfo").retry_delay.expect("a delay");
    assert!(Duration::from_secs(1_700) < retry && retry <= Duration::from_secs(1_800), "{retry:?}");
    assert_eq!(u128::try_from(pushback(&status)), Ok(retry.as_millis()));
    let failure = status.get_details_quota_failure().expect("QuotaFailure");
    assert_eq!(failure.violations[0].subject, "policy:default");
}

/// Returns the response of `layer` to a request with this content type.
async fn answer<L>(layer: &L, content_type: &str) -> Response<String>
where
    L: Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    let request = Request::post("/test.Echo/Echo").version(Version::HTTP_2);
    let request = request.header("content-type", content_type).body(()).expect("a request");
    support::answer(layer, request).await
}

fn status(headers: &HeaderMap) -> Status {
    Status::from_header_map(headers).expect("a status")
}

#[tokio::test]
async fn a_rejection_is_a_trailers_only_response_byte_for_byte() {
    let layer = owing(&[quota("2/3s"), quota("2/h")], 2);
    let (head, body) = answer(&layer, "application/grpc+proto").await.into_parts();
    assert_eq!(body, "");
    assert_eq!(head.status, StatusCode::OK);
    let message = "Quota exhausted; retry in 1800 s.";
    let mut details = ErrorDetails::with_retry_info(Some(Duration::from_secs(1_800)));
    details.add_quota_failure_violation("policy:api-3s", "quota exhausted");
    details.add_quota_failure_violation("policy:api-1h", "quota exhausted");
    let expected = Status::with_error_details(Code::ResourceExhausted, message, details);
    assert_eq!(status(&head.headers).details(), expected.details());

    let mut headers = head.headers;
    let details = headers.remove("grpc-status-details-bin").expect("details");
    assert!(!details.to_str().expect("text").contains('='), "unpadded");
    let expected = [
        "cache-control: no-store",
        "content-type: application/grpc",
        "grpc-message: Quota exhausted; retry in 1800 s.",
        "grpc-retry-pushback-ms: 1800000",
        "grpc-status: 8",
        r#"ratelimit-policy: "api-3s";q=2;w=3, "api-1h";q=2;w=3600"#,
        r#"ratelimit: "api-3s";r=0;t=2, "api-1h";r=0;t=1800"#,
        "retry-after: 1800",
    ];
    assert_eq!(lines(&headers), expected);
}

#[tokio::test]
async fn waits_are_reported_in_milliseconds_rounded_up() {
    let table = [("1/1500ms", 1_500), ("1/1000001us", 1_001), ("1/ns", 1), ("1/h", 3_600_000)];
    for (text, millis) in table {
        let response = answer(&owing(&[quota(text)], 1), "application/grpc").await;
        let status = status(response.headers());
        assert_eq!(pushback(&status), millis, "{text}");
        let retry = status.get_details_retry_info().expect("RetryInfo").retry_delay;
        assert_eq!(retry.expect("a delay").as_millis(), u128::try_from(millis).expect("positive"));
    }
}

#[tokio::test]
async fn only_grpc_requests_get_a_grpc_rejection() {
    for grpc in ["application/grpc", "application/grpc+json", "application/grpc;charset=utf-8"] {
        let response = answer(&owing(&[quota("1/h")], 1), grpc).await;
        assert_eq!(header(response.headers(), "content-type"), "application/grpc", "{grpc}");
        assert_eq!(header(response.headers(), "grpc-status"), "8");
    }
    let web = ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"];
    for other in web.into_iter().chain(["application/grpcish", "application/json", ""]) {
        let response = answer(&owing(&[quota("1/h")], 1), other).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{other}");
        assert_eq!(header(response.headers(), "grpc-status"), "", "{other}");
    }
}

/// An extractor that always fails.
struct Failing(fn() -> KeyError);

impl KeyExtractor for Failing {
    fn extract(
        &self,
        _: &tower_sluice::RequestHead<'_>,
    ) -> Result<Option<tower_sluice::Key>, KeyError> {
        Err((self.0)())
    }
}

#[tokio::test]
async fn every_rejection_has_its_code() {
    let store = || LocalStore::with_capacity(16);
    let five = Quota::per_second(5);
    let summary = |response: Response<String>| {
        assert_eq!(response.status(), StatusCode::OK);
        let pushback = header(response.headers(), "grpc-retry-pushback-ms").to_owned();
        let status = status(response.headers());
        let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
        (status.code(), pushback, retry)
    };
    let none = |code| (code, String::new(), None);

    let missing = RateLimitLayer::new(HeaderKey::new("x-api-key"), five, store());
    assert_eq!(summary(answer(&missing, "application/grpc").await), none(Code::InvalidArgument));
    let rule = Rule::new("user", HeaderKey::new("x-api-key"), five);
    let rule = rule.on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED));
    let unknown = RateLimitLayer::rules(rule, store());
    assert_eq!(summary(answer(&unknown, "application/grpc").await), none(Code::Unauthenticated));
    let down: fn() -> KeyError = || KeyError::unusable(StatusCode::SERVICE_UNAVAILABLE, "no users");
    let busy = || KeyError::unusable(StatusCode::TOO_MANY_REQUESTS, "too many names");
    for (error, code) in [(down, Code::Unavailable), (busy, Code::ResourceExhausted)] {
        let unusable = RateLimitLayer::new(Failing(error), five, store());
        assert_eq!(summary(answer(&unusable, "application/grpc").await), none(code));
    }
    let lost = RateLimitLayer::new(PeerIp::new(), five, store());
    assert_eq!(summary(answer(&lost, "application/grpc").await), none(Code::Internal));
    let blocked = RateLimitLayer::new(Everyone, Quota::blocked(), store());
    let never = (Code::PermissionDenied, "-1".to_owned(), None);
    assert_eq!(summary(answer(&blocked, "application/grpc").await), never);
    for broken in [Broken::Now, Broken::Later] {
        let closed = RateLimitLayer::new(Everyone, five, broken.fail_closed());
        let soon = (Code::Unavailable, "1000".to_owned(), Some(Duration::from_secs(1)));
        assert_eq!(summary(answer(&closed, "application/grpc").await), soon);
    }
}

#[tokio::test]
async fn messages_are_percent_encoded() {
    let failing = Failing(|| KeyError::missing("caf\u{e9} 100%\n"));
    let layer = RateLimitLayer::new(failing, Quota::per_second(5), LocalStore::with_capacity(16));
    let response = answer(&layer, "application/grpc").await;
    let sent = header(response.headers(), "grpc-message");
    assert_eq!(sent, "Request rejected: missing caf%C3%A9 100%25%0A.");
    let read = status(response.headers());
    assert_eq!(read.message(), "Request rejected: missing caf\u{e9} 100%\n.");
}
