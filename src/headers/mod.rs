//! Decisions as header fields. Seconds exist here and nowhere else, and are always rounded up.

mod digits;
mod item;
mod kept;
mod lines;
mod template;

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName, header::RETRY_AFTER};

use self::digits::number;
pub(crate) use self::{
    item::{Item, Items},
    lines::Lines,
    template::Template,
};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Ours: the request passed beyond its quota.
const OVERAGE: HeaderName = HeaderName::from_static("x-ratelimit-overage");
const TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Every header field a layer may set, for a CORS layer's `Access-Control-Expose-Headers`: without
/// it scripts in a browser cannot read them.
///
/// The CORS layer belongs outside the limiter, or refusals lack its headers.
///
/// ```
/// use tower_http::cors::CorsLayer;
/// use tower_sluice::EXPOSED_HEADERS;
///
/// let cors = CorsLayer::new().expose_headers(EXPOSED_HEADERS);
/// ```
pub const EXPOSED_HEADERS: [HeaderName; 10] = [
    RETRY_AFTER,
    RATELIMIT,
    POLICY,
    OVERAGE,
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Which header fields tell a client how much is left. `Retry-After` is sent on refusals whatever
/// the choice, because it is the one field every client obeys.
///
/// With the feature `serde`: `"draft11"`, `"draft07"`, `"draft06"`, `"x-ratelimit"`,
/// `"x-ratelimit-delta"` or `"none"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit: "default";r=4;t=1` and `RateLimit-Policy: "default";q=5;w=1`, one item per
    /// quota: Internet-Draft `draft-ietf-httpapi-ratelimit-headers`, revision 11.
    ///
    /// `q` is the most at once (the burst) and `w` the seconds in which that many come back, so that
    /// 50 a minute with a burst of 100 is `q=100;w=120`. `r` is left now, and `t` are the seconds until
    /// more is; a full account has no `t`.
    #[default]
    Draft11,
    /// `RateLimit: limit=5, remaining=4, reset=1` and `RateLimit-Policy: 5;w=1`: revision 07.
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` (seconds from now) and
    /// `RateLimit-Policy`: revision 06.
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, the last as Unix time in seconds, as
    /// GitHub sends it and most parsers read it.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit"))]
    XRateLimit,
    /// The same with `-Reset` in seconds from now, which some parsers read as a date in 1970.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit-delta"))]
    XRateLimitDelta,
    /// None of them.
    None,
}

/// Sets `Retry-After` unless it is there: at least 1, because clients retry at once on 0.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.entry(RETRY_AFTER).or_insert_with(|| number(retry_seconds(wait)));
}

/// Whether the field is there that would be added a second time.
pub(crate) fn has_list(headers: &HeaderMap) -> bool {
    headers.contains_key(RATELIMIT)
}

/// The wait of a refusal in whole seconds.
pub(crate) fn retry_seconds(wait: Duration) -> u64 {
    seconds(wait).max(1)
}

fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add((time.subsec_nanos() > 0).into())
}

/// `"a", "b"` in JSON: the names are printable ASCII, so that only two characters need a bar.
pub(crate) fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
