//! What a person reads: plain text, or problem+json (RFC 9457).

use std::{fmt::Write as _, sync::OnceLock};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::ACCEPT};

use super::{Reason, Rejection};
use crate::headers::push_json_string;

/// The problem types of the `RateLimit` draft.
/// Waits up to here, in seconds, are put into words once and kept.
const COMMON_WAITS: usize = 4_096;
const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

/// Whether `Accept` names JSON with a quality above 0; `*/*` reads text.
pub(super) fn accepts_json(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let json = ["application/json", "application/problem+json"];
        let quality = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        json.iter().any(|json| kind.eq_ignore_ascii_case(json))
            && quality.is_none_or(|q| q.trim().parse::<f32>().is_ok_and(|q| q > 0.0))
    })
}

/// One line; that of a common wait is made once.
pub(super) fn plain(why: &Rejection<'_>) -> Bytes {
    static COMMON: [OnceLock<Bytes>; COMMON_WAITS] = [const { OnceLock::new() }; COMMON_WAITS];
    let seconds = why.retry_after_seconds();
    if let (Reason::Limited, Some(n)) = (why.reason(), seconds)
        && let Some(text) = usize::try_from(n).ok().and_then(|n| COMMON.get(n))
    {
        return text.get_or_init(|| limited(n).into()).clone();
    }
    Bytes::from(detail(why))
}

/// `violated-policies` is the draft's name, hyphen included.
pub(super) fn problem(why: &Rejection<'_>, status: StatusCode) -> String {
    let (kind, title) = match why.reason() {
        Reason::Limited | Reason::TooCostly => ("quota-exceeded", "Too many requests"),
        Reason::Blocked => ("quota-exceeded", "Blocked"),
        Reason::Unavailable => ("temporary-reduced-capacity", "Rate limiter unavailable"),
        Reason::Unkeyed => ("", status.canonical_reason().unwrap_or("Refused")),
    };
    let mut json = String::with_capacity(256);
    match kind {
        "" => json.push_str("{\"type\":\"about:blank\",\"title\":"),
        kind => {
            let _ = write!(json, "{{\"type\":\"{TYPES}{kind}\",\"title\":");
        }
    }
    push_json_string(&mut json, title);
    let _ = write!(json, ",\"status\":{},\"detail\":", status.as_u16());
    push_json_string(&mut json, &detail(why));
    for (at, name) in why.violated().enumerate() {
        json.push_str(if at == 0 { ",\"violated-policies\":[" } else { "," });
        push_json_string(&mut json, name);
    }
    json.push_str(if why.violated().next().is_some() { "]}" } else { "}" });
    json
}

pub(super) fn detail(why: &Rejection<'_>) -> String {
    let seconds = why.retry_after_seconds();
    match (why.reason(), seconds) {
        (Reason::Limited, Some(n)) => limited(n),
        (Reason::Limited, None) => "Quota exhausted; retrying does not help.".into(),
        (Reason::TooCostly, _) => "This request costs more than its quota ever allows.".into(),
        (Reason::Blocked, _) => "Requests are not admitted here.".into(),
        (Reason::Unavailable, Some(n)) => {
            format!("Requests cannot be admitted right now; retry in {n} s.")
        }
        (Reason::Unavailable, None) => "Requests cannot be admitted right now.".into(),
        (Reason::Unkeyed, _) => match why.key_error() {
            Some(error) if !error.is_no_peer() => format!("Request refused: {error}."),
            // the fix is for the operator, not for the client
            _ => "The server's rate limiter found no peer address; its log names the fix.".into(),
        },
    }
}

fn limited(seconds: u64) -> String {
    format!("Quota exhausted; retry in {seconds} s.")
}
