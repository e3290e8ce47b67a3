//! Rejections for gRPC clients: HTTP 200 with the gRPC status in the headers.
//!
//! The headers must end the stream, because some clients lose the status if an empty frame follows.
//! The body must therefore report its end immediately.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{
    HeaderName, HeaderValue, Method, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, CONTENT_TYPE, TE},
};

use super::{Rejection, text};
use crate::{key::RequestHead, store::millis};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Returns `true` for a `POST` with the gRPC content type, over HTTP/2 or later.
///
/// Other requests with this content type get a plain response, so that caches and logs see a 429, except for
/// those that are [translated](is_translated) under [`grpc_web`](super::TooManyRequests::grpc_web).
pub(crate) fn is_call(head: &RequestHead<'_>) -> bool {
    head.version >= Version::HTTP_2 && has_grpc_type(head)
}

/// Returns `true` for an HTTP/1.1 call that was translated by `tonic_web::GrpcWebLayer`.
pub(super) fn is_translated(head: &RequestHead<'_>) -> bool {
    head.version == Version::HTTP_11
        && head.headers.get(TE).is_some_and(|te| te == "trailers")
        && !head.headers.contains_key(CONTENT_LENGTH)
        && has_grpc_type(head)
}

/// Returns `true` for a `POST` with the gRPC content type.
fn has_grpc_type(head: &RequestHead<'_>) -> bool {
    let Some(kind) = head.headers.get(CONTENT_TYPE) else {
        return false;
    };
    let Some(rest) = kind.as_bytes().strip_prefix(b"application/grpc") else {
        return false;
    };
    matches!(rest.first(), None | Some(b'+' | b';')) && head.method == Method::POST
}

pub(super) fn response<B: Default>(why: &Rejection<'_>, status: StatusCode) -> Response<B> {
    let code = why.cause.grpc(status);
    let message = text::detail(why);
    let details = STANDARD_NO_PAD.encode(status_message(code, &message, why));
    let fields = [
        ("grpc-status", Some(code.into())),
        (
            "grpc-message",
            HeaderValue::try_from(percent_encoded(&message)).ok(),
        ),
        (
            "grpc-status-details-bin",
            HeaderValue::try_from(details).ok(),
        ),
        ("grpc-retry-pushback-ms", pushback(why).map(Into::into)),
    ];
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    for (name, value) in fields {
        if let Some(value) = value {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns the wait in milliseconds, or a negative number to forbid a retry (gRFC A6). With `None`,
/// the client decides when to retry.
fn pushback(why: &Rejection<'_>) -> Option<i64> {
    match why.wait {
        Some(wait) => Some(i64::try_from(millis(wait)).unwrap_or(i64::MAX)),
        None => why.cause.forbids_retry().then_some(-1),
    }
}

/// Percent-encodes `%` and all bytes outside printable ASCII.
fn percent_encoded(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
            _ => text.push(byte.into()),
        }
    }
    text
}

/// Encodes `google.rpc.Status { code, message, details }`.
fn status_message(code: u16, message: &str, why: &Rejection<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    number(&mut out, 1, code.into());
    bytes(&mut out, 2, message.as_bytes());
    if let Some(wait) = why.wait.map(millis) {
        any(&mut out, "google.rpc.RetryInfo", &retry_info(wait));
    }
    let failure = quota_failure(why);
    if !failure.is_empty() {
        any(&mut out, "google.rpc.QuotaFailure", &failure);
    }
    out
}

/// Encodes `google.rpc.RetryInfo { retry_delay }`, for a wait in milliseconds.
fn retry_info(wait: u64) -> Vec<u8> {
    let mut delay = Vec::new();
    let mut info = Vec::new();
    number(&mut delay, 1, wait / 1_000);
    number(&mut delay, 2, wait % 1_000 * 1_000_000);
    bytes(&mut info, 1, &delay);
    info
}

/// Encodes `google.rpc.QuotaFailure { violations }`.
fn quota_failure(why: &Rejection<'_>) -> Vec<u8> {
    let mut failure = Vec::new();
    for name in why.violated() {
        let mut violation = Vec::new();
        bytes(&mut violation, 1, format!("policy:{name}").as_bytes());
        bytes(&mut violation, 2, b"quota exhausted");
        bytes(&mut failure, 1, &violation);
    }
    failure
}

/// Appends field 3 of `Status`: `google.protobuf.Any { type_url, value }`.
fn any(out: &mut Vec<u8>, kind: &str, value: &[u8]) {
    let mut any = Vec::new();
    bytes(
        &mut any,
        1,
        format!("type.googleapis.com/{kind}").as_bytes(),
    );
    bytes(&mut any, 2, value);
    bytes(out, 3, &any);
}

/// Appends a varint field, unless its value is 0.
fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        out.push(field << 3);
        varint(out, value);
    }
}

/// Appends a length-delimited field.
fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}
