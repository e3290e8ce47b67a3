//! Rejections for browsers, through the layer that translates gRPC-Web.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tonic::{Status, transport::Server};
use tonic_types::StatusExt as _;
use tonic_web::GrpcWebLayer;
use tower_sluice::TooManyRequests;

use crate::support::{
    answer,
    echo::{Echo, incoming},
    header, owing, quota, with,
};

/// Returns the response to a browser's call over HTTP/1.1.
async fn call(address: std::net::SocketAddr, content_type: &str) -> (StatusCode, HeaderMap, Bytes) {
    let request = Request::post(format!("http://{address}/test.Echo/Echo"))
        .header("content-type", content_type)
        .header("x-grpc-web", "1")
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .expect("a request");
    let client = Client::builder(TokioExecutor::new()).build_http();
    let (head, body) = client.request(request).await.expect("an answer").into_parts();
    (head.status, head.headers, body.collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_rejection_inside_the_translation_reaches_the_browser() {
    let (incoming, address) = incoming();
    // the first layer is the outermost
    let server = Server::builder()
        .accept_http1(true)
        .layer(GrpcWebLayer::new())
        .layer(owing(&[quota("2/h")], 1).reject(TooManyRequests::new().grpc_web()))
        .serve_with_incoming(Echo, incoming);
    tokio::spawn(server);
    let kind = "application/grpc-web+proto";
    let (status, headers, body) = call(address, kind).await;
    assert_eq!((status, header(&headers, "content-type")), (StatusCode::OK, kind));
    assert!(body.ends_with(b"grpc-status:0\r\n"), "{body:?}");

    let (status, headers, _) = call(address, kind).await;
    assert_eq!((status, header(&headers, "content-type")), (StatusCode::OK, kind));
    let reported = Status::from_header_map(&headers).expect("a status");
    assert_eq!(reported.message(), "Quota exhausted; retry in 1800 s.");
    assert!(
        reported.get_details_retry_info().is_some()
            && reported.get_details_quota_failure().is_some()
    );
    for (field, value) in
        [("grpc-status", "8"), ("retry-after", "1800"), ("grpc-retry-pushback-ms", "1800000")]
    {
        assert_eq!(header(&headers, field), value);
    }
}

/// An HTTP/1.1 client can send the form of a translated call. It gets a plain rejection by default.
#[tokio::test]
async fn a_call_over_http_1_gets_a_grpc_rejection_only_if_configured() {
    let translated = || {
        let mut request = with(&[("content-type", "application/grpc"), ("te", "trailers")]);
        *request.method_mut() = Method::POST;
        request
    };
    for (reject, status) in [
        (TooManyRequests::new(), StatusCode::TOO_MANY_REQUESTS),
        (TooManyRequests::new().grpc_web(), StatusCode::OK),
    ] {
        let layer = owing(&[quota("1/h")], 1).reject(reject);
        answer(&layer, translated()).await;
        assert_eq!(answer(&layer, translated()).await.status(), status);
    }
    let layer = owing(&[quota("1/h")], 1).reject(TooManyRequests::new().grpc_web());
    for (field, value) in [("content-length", "5"), ("te", "deflate"), ("content-type", "text/x")] {
        let mut request = translated();
        request.headers_mut().insert(field, value.parse().expect("a value"));
        answer(&layer, with(&[])).await;
        assert_eq!(
            answer(&layer, request).await.status(),
            StatusCode::TOO_MANY_REQUESTS,
            "{field}"
        );
    }
}

#[tokio::test]
async fn a_rejection_outside_the_translation_is_429() {
    let (incoming, address) = incoming();
    let server = Server::builder()
        .accept_http1(true)
        .layer(owing(&[quota("1/h")], 1))
        .layer(GrpcWebLayer::new())
        .serve_with_incoming(Echo, incoming);
    tokio::spawn(server);
    let (status, headers, body) = call(address, "application/grpc-web+proto").await;
    assert_eq!((status, header(&headers, "grpc-status")), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert_eq!(body, "Quota exhausted; retry in 3600 s.\n");
}
