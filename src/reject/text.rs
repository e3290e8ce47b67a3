//! Bodies of rejections: plain text or problem+json (RFC 9457).

use std::{
    any::Any,
    mem,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::Full;

use super::Rejection;
use crate::{
    advice::warn_of_response_body,
    decision::Cause,
    head::Quotes,
    key::{KeyError, RequestHead},
    log,
};

/// Plain texts are cached for waits below this number of seconds.
const COMMON_WAITS: usize = 4_096;
/// The maximum number of media ranges to read per request.
const MAX_RANGES: usize = 32;
/// The maximum number of bytes to read per request.
const MAX_BYTES: usize = 4_096;
// The problem types are from the IETF draft of the `RateLimit` fields.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

const JSON_TYPES: [&[u8]; 2] = [b"application/json", b"application/problem+json"];
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Returns the response with a text or problem+json, without the fields that the layer adds to both.
#[inline(always)]
pub(super) fn response<B: Default + 'static>(
    why: &Rejection<'_>,
    head: &RequestHead<'_>,
    status: StatusCode,
) -> Response<B> {
    let is_json = accepts_json(head.headers);
    let is_head = head.method == Method::HEAD;
    if is_json || is_head {
        return special_response(why, status, is_json, is_head);
    }
    let Some(body) = body(plain_text(why)) else {
        return unfilled(status);
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Mark in the extensions of a response whose body has a type that is not known, and that is empty.
#[derive(Clone, Copy)]
pub(super) struct Unfilled;

/// Returns a response with an empty body of a type that is not known.
#[cold]
fn unfilled<B: Default + 'static>(status: StatusCode) -> Response<B> {
    warn_of_response_body::<B>();
    let mut response = Response::new(B::default());
    *response.status_mut() = status;
    response.extensions_mut().insert(Unfilled);
    response
}

/// Returns a response with problem+json, or without a body.
#[inline(never)]
fn special_response<B: Default + 'static>(
    why: &Rejection<'_>,
    status: StatusCode,
    is_json: bool,
    is_head: bool,
) -> Response<B> {
    let text = if is_json {
        problem(why, status).into()
    } else {
        plain_text(why)
    };
    let length = text.len();
    let Some(body) = body(text) else {
        return unfilled(status);
    };
    let mut response = Response::new(if is_head { B::default() } else { body });
    *response.status_mut() = status;
    // The layer adds the fields of a plain text.
    if is_json {
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
    }
    if is_head {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response
}

/// Returns `true` if `Accept` contains JSON with a quality above 0.
///
/// A client that sends only `*/*` gets text.
#[inline]
fn accepts_json(headers: &HeaderMap) -> bool {
    headers.contains_key(ACCEPT) && has_json_range(headers)
}

#[inline(never)]
fn has_json_range(headers: &HeaderMap) -> bool {
    media_ranges(headers).any(is_json)
}

/// Returns `true` for a media range of JSON with a quality above 0.
fn is_json(range: &[u8]) -> bool {
    let mut parts = split(range, b';').map(<[u8]>::trim_ascii);
    let kind = parts.next().unwrap_or_default();
    if !JSON_TYPES
        .iter()
        .any(|json| kind.eq_ignore_ascii_case(json))
    {
        return false;
    }
    let quality = parts.find_map(|part| part.strip_prefix(b"q=").or(part.strip_prefix(b"Q=")));
    quality.is_none_or(is_positive)
}

fn is_positive(quality: &[u8]) -> bool {
    let text = str::from_utf8(quality).unwrap_or_default();
    text.trim().parse::<f32>().is_ok_and(|number| number > 0.0)
}

/// Splits text at a separator outside of quoted strings.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut quotes = Quotes::default();
    text.split(move |byte| quotes.read(*byte) && *byte == separator)
}

/// Returns the media ranges of `Accept`, up to [`MAX_RANGES`] and [`MAX_BYTES`].
fn media_ranges(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let mut left = MAX_BYTES;
    let lines = headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    let lines = lines.map(|line| &line[..line.len().min(MAX_BYTES + 1)]);
    let ranges = lines.flat_map(|line| split(line, b','));
    // A truncated range ends the list, because its quality is unknown.
    ranges.take(MAX_RANGES).take_while(move |range| {
        let fits = range.len() <= left;
        left = left.saturating_sub(range.len() + 1);
        fits
    })
}

/// Returns the text of a plain-text rejection.
#[inline]
fn plain_text(why: &Rejection<'_>) -> Bytes {
    // A line feed at the end, as in a text file: the prompt of a shell then starts a line.
    static COMMON: [OnceLock<Bytes>; COMMON_WAITS] = [const { OnceLock::new() }; COMMON_WAITS];
    let seconds = why.retry_after().map(|wait| wait.as_secs());
    if let Some(n) = seconds
        && why.cause == Cause::Quota
        && !why.template.has_unregistered_unit()
        && let Some(text) = usize::try_from(n).ok().and_then(|n| COMMON.get(n))
    {
        // A static text has no counter that all threads change.
        let text = text.get_or_init(|| {
            let line = limited("", n) + "\n";
            Bytes::from_static(line.leak().as_bytes())
        });
        return text.clone();
    }
    Bytes::from(detail(why) + "\n")
}

/// Returns the problem+json text.
///
/// The member `violated-policies` is spelled as in the IETF draft of the `RateLimit` fields.
fn problem(why: &Rejection<'_>, status: StatusCode) -> String {
    let (kind, title) = kind_and_title(why.cause, status);
    let title = json_string(title);
    let detail = json_string(&detail(why));
    let status = status.as_u16();
    let mut json =
        format!("{{\"type\":\"{kind}\",\"title\":{title},\"status\":{status},\"detail\":{detail}");
    let names: Vec<_> = why.violated().map(json_string).collect();
    if !names.is_empty() {
        json += &format!(",\"violated-policies\":[{}]", names.join(","));
    }
    json + "}"
}

fn kind_and_title(cause: Cause, status: StatusCode) -> (&'static str, &'static str) {
    match cause {
        Cause::Unkeyed => (
            "about:blank",
            status.canonical_reason().unwrap_or("Rejected"),
        ),
        Cause::KeyBlocked => (ABNORMAL_USAGE, "Abnormal Usage Detected"),
        Cause::FailedClosed | Cause::Busy | Cause::Overload => {
            (REDUCED_CAPACITY, "Temporary Reduced Capacity")
        }
        _ => (QUOTA_EXCEEDED, "Quota Exceeded"),
    }
}

pub(super) fn detail(why: &Rejection<'_>) -> String {
    let seconds = why.retry_after().map(|wait| wait.as_secs());
    let left = unregistered_units(why).unwrap_or_default();
    match (why.cause, seconds) {
        (Cause::Unkeyed, _) => unkeyed(why.key_error()),
        (Cause::TooCostly, _) => "This request costs more than its quota ever allows.".into(),
        (Cause::KeyBlocked, Some(n)) => format!("Access is blocked; retry in {n} s."),
        (Cause::KeyBlocked | Cause::QuotaBlocked, _) => "Access is blocked.".into(),
        (Cause::FailedClosed | Cause::Busy, Some(n)) => {
            format!("Requests cannot be admitted right now; retry in {n} s.")
        }
        (Cause::FailedClosed | Cause::Busy, None) => {
            "Requests cannot be admitted right now.".into()
        }
        (Cause::Overload, Some(n)) => format!("The service is overloaded; retry in {n} s."),
        (Cause::Overload, None) => "The service is overloaded.".into(),
        (_, Some(n)) => limited(&left, n),
        (_, None) => format!("Quota exhausted{left}; retry later."),
    }
}

fn unkeyed(error: Option<&KeyError>) -> String {
    match error {
        Some(error) if !error.is_no_peer() => format!("Request rejected: {error}."),
        // The fix is for the operator, not for the client.
        Some(error) if is_first_without_log() => {
            format!("The rate limiter found {error}. This text is sent once, in debug builds.")
        }
        _ => "The rate limiter found no peer address; the server log shows the fix.".into(),
    }
}

fn limited(left: &str, seconds: u64) -> String {
    format!("Quota exhausted{left}; retry in {seconds} s.")
}

/// Returns the numbers of the decisive quota, if the parameter `qu` cannot name its unit and the store knows
/// them.
fn unregistered_units(why: &Rejection<'_>) -> Option<String> {
    let (outcome, unit) = why.template.unregistered_unit(why.decision()?)?;
    outcome.snapshot().is_known().then(|| {
        format!(
            ": {} of {} {unit} left",
            outcome.remaining(),
            outcome.limit()
        )
    })
}

/// Returns `true` once per process, in a debug build in which nothing receives log lines.
fn is_first_without_log() -> bool {
    static IS_SENT: AtomicBool = AtomicBool::new(false);
    cfg!(debug_assertions) && !log::is_received() && !IS_SENT.swap(true, Relaxed)
}

/// Creates a response body from `text`, or returns `None` for an unknown type.
///
/// The type is tested at run time, because tonic's body has no `From<Bytes>`.
fn body<B: Default + 'static>(mut text: Bytes) -> Option<B> {
    let mut made = B::default();
    let filled = fill(&mut made, || mem::take(&mut text))
        || fill(&mut made, || Full::new(mem::take(&mut text)))
        || fill(&mut made, || Vec::from(mem::take(&mut text)))
        || fill(&mut made, || String::from_utf8_lossy(&text).into_owned());
    // Plain requests to a tonic server need this type. A gRPC rejection has no body.
    #[cfg(feature = "tonic")]
    let filled = filled
        || fill(&mut made, || {
            tonic::body::Body::new(Full::new(mem::take(&mut text)))
        });
    #[cfg(feature = "axum")]
    let filled = filled || fill(&mut made, || axum::body::Body::from(mem::take(&mut text)));
    filled.then_some(made)
}

/// Replaces a body if it has the type of `new`.
fn fill<T: 'static>(body: &mut dyn Any, new: impl FnOnce() -> T) -> bool {
    body.downcast_mut().map(|body| *body = new()).is_some()
}

/// Returns `text` as a JSON string.
fn json_string(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json += &format!("\\u{:04x}", u32::from(c)),
            c => json.push(c),
        }
    }
    json + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "application/json";

    fn accept(lines: &[&str]) -> HeaderMap {
        let line = |line: &&str| (ACCEPT, line.parse().expect("a value"));
        lines.iter().map(line).collect()
    }

    fn accepts(lines: &[&str]) -> bool {
        accepts_json(&accept(lines))
    }

    #[test]
    fn no_more_than_32_ranges_and_4_kib_are_read() {
        let hostile = [
            vec![",".repeat(400_000)],
            vec!["x".repeat(400_000)],
            vec!["a/b,".repeat(100_000)],
            vec![format!("a/b{}", ";".repeat(400_000))],
            vec![format!("a/b;q={}", "9".repeat(400_000))],
            vec![String::new(); 1_000],
            vec!["x".repeat(1_000); 100],
        ];
        for lines in hostile {
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            let headers = accept(&lines);
            let read: Vec<_> = media_ranges(&headers).map(<[u8]>::len).collect();
            assert!(
                read.len() <= 32 && read.iter().sum::<usize>() <= 4_096,
                "{:.20}",
                lines[0]
            );
            assert!(!accepts_json(&headers));
        }
    }

    #[test]
    fn json_is_found_up_to_the_bounds_and_not_beyond() {
        let behind = |n: usize| format!("{}{JSON}", "a/b,".repeat(n));
        assert!(accepts(&[&behind(31)]) && !accepts(&[&behind(32)]));
        assert!(accepts(&[&vec!["a/b"; 31].join(","), JSON]));
        assert!(!accepts(&[&vec!["a/b"; 32].join(","), JSON]));
        assert!(!accepts(&[&format!("{}{JSON}", ",".repeat(400_000))]));
        let long = |bytes: usize| format!("{},{JSON}", "x".repeat(bytes - 1 - JSON.len()));
        assert!(accepts(&[&long(4_096)]) && !accepts(&[&long(4_097)]));
    }

    #[test]
    fn quoted_text_is_part_of_a_parameter() {
        for (line, expected) in [
            (r#"text/plain;x="a,application/json,b""#, false),
            (r#"text/plain;x="a\",application/json,b""#, false),
            (r#"text/plain;x="a\\",application/json"#, true),
            (r#"text/plain;x="a", application/json"#, true),
            (r#"application/json;x=",";q=0"#, false),
            (r#"application/json;x=";q=0";q=1"#, true),
            (r#"application/json;x="a;q=1";q=0"#, false),
            (r#"text/plain;x="a,application/json"#, false),
        ] {
            assert_eq!(accepts(&[line]), expected, "{line}");
        }
    }

    #[test]
    fn a_truncated_range_ends_the_list() {
        let padded = "x".repeat(4_096 - 1 - JSON.len());
        assert!(accepts(&[&format!("{padded},{JSON}")]));
        assert!(!accepts(&[&format!("{padded},{JSON};q=0")]));
        assert!(!accepts(&[&format!("{JSON};v={padded};q=0")]));
        assert!(accepts(&[&format!("{JSON},{padded}{padded}")]));
    }

    #[test]
    fn a_range_with_opaque_bytes_is_skipped() {
        let mut headers = accept(&[]);
        let line = HeaderValue::from_bytes(b"\xff\xfe, application/json").expect("opaque bytes");
        headers.append(ACCEPT, line);
        assert!(accepts_json(&headers));
    }
}
