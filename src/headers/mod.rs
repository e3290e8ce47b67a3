//! Header fields that report decisions to clients.
//!
//! All times in header fields are whole seconds, rounded up, except for
//! [`retry-after-ms`](crate::RateLimitLayer::retry_after_ms). [`Headers`] describes the fields.
//!
//! # Fields that a response already has
//!
//! The inner service may have set some of these fields, for example by a limiter of its own. The
//! layer keeps what such a field says, unless it can hold only one quota:
//!
//! - The fields of [`Headers::RateLimit`] are lists. The layer appends its quotas.
//! - The fields of [`Headers::ByUnit`] for a unit report one quota, as those of the families below.
//! - The fields of all other families report one quota, the one with the fewest units left. If that
//!   is a quota of the layer, the layer replaces all fields of the family, including the policy.
//!   Otherwise, all stay. Fields without a readable number of units left are replaced.
//! - An existing `Retry-After` stays. `X-RateLimit-Overage` is set if either allowed the request
//!   beyond a quota.
//!
//! Fields that a [`Reject`](crate::Reject) has set are treated in the same way.

mod item;
mod lines;
mod recent;
mod render;
mod template;

use http::{HeaderMap, HeaderName, header::RETRY_AFTER};

pub(crate) use self::{
    lines::{Lines, retry_seconds},
    template::{Template, check_names},
};
use crate::{decision::Decision, fingerprint::FingerprintKey, quota::Quota};

static RATELIMIT: [HeaderName; 1] = [HeaderName::from_static("ratelimit")];
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// A field of this crate, sent if the request was allowed beyond a quota.
const OVERAGE: HeaderName = HeaderName::from_static("x-ratelimit-overage");
/// The wait of a denial in milliseconds, for clients that read it.
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_TRIPLET: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
/// The fields of [`Headers::ByUnit`] for the units of language models.
static BY_UNIT: [HeaderName; 6] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Returns all header fields that a layer may set, for `Access-Control-Expose-Headers`.
///
/// The fields of [`Headers::ByUnit`] are those for requests and tokens.
///
/// Browser scripts can read only exposed fields. Place the CORS layer outside the limiter, so that
/// rejections also get CORS headers.
///
/// ```
/// use tower_http::cors::CorsLayer;
/// use tower_sluice::headers::exposed_headers;
///
/// let cors = CorsLayer::new().expose_headers(exposed_headers());
/// ```
#[must_use]
pub fn exposed_headers() -> Vec<HeaderName> {
    let others = [RETRY_AFTER, RETRY_AFTER_MS, POLICY, OVERAGE];
    [&others, &RATELIMIT[..], &TRIPLET, &X_TRIPLET, &BY_UNIT].concat()
}

/// Family of header fields that report quotas to clients.
///
/// `Retry-After` is sent with every family.
///
/// With feature `serde`, the values are `"ratelimit"`, `"draft07"`, `"draft06"`, `"x-ratelimit"`,
/// `"x-ratelimit-delta"`, `"by-unit"` and `"none"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit: "default";r=4;t=1` and `RateLimit-Policy: "default";q=5;w=1`, per quota.
    ///
    /// These are the fields of the Internet-Draft `draft-ietf-httpapi-ratelimit-headers`, revision 11.
    ///
    /// - `q` is the burst.
    /// - `qu` is the [unit](crate::Quota::with_unit), if it is not a request. A
    ///   [concurrent](crate::Quota::concurrent) quota has `qu="concurrent-requests"`, and no `w` or
    ///   `t`.
    /// - `w` is the number of seconds in which a whole burst is refilled. For example, 50 units per
    ///   minute with a burst of 100 is `q=100;w=120`.
    /// - `r` is the number of units left. A quota that denied a request may have some, if the request
    ///   costs more, or must leave units to others.
    /// - `t` is the number of seconds in which the client may use `r` units. It is long enough for
    ///   the next unit to arrive, and `r` per `t` never exceeds `q` per `w`. In a denial, only an
    ///   exhausted quota that denied the request has a `t`: the number of seconds until the next unit.
    /// - `pk` identifies the key, see [`partition_key`](Headers::partition_key).
    ///
    /// A quota with a unit that the draft does not know, such as tokens, is in neither field. An
    /// [adaptive](crate::rule::Adaptive) limit is in `RateLimit` only, because it is no policy.
    ///
    /// [`ByUnit`](Headers::ByUnit) adds fields to these. All other families report one quota, in the same
    /// numbers. A denial without `t` has the seconds of `Retry-After` as its reset, or 0 without them. They
    /// know no units, so they report quotas of requests only.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "ratelimit"))]
    RateLimit,
    /// `RateLimit: limit=5, remaining=4, reset=1` and `RateLimit-Policy: 5;w=1` (revision 07).
    Draft07,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now) and `-Policy` (revision 06).
    Draft06,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with the reset in Unix time.
    ///
    /// GitHub sends this form, and most parsers expect it.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit"))]
    XRateLimit,
    /// Like [`XRateLimit`](Headers::XRateLimit), with the reset in seconds from now.
    ///
    /// Parsers that expect Unix time read this reset as a date in 1970.
    #[cfg_attr(feature = "serde", serde(rename = "x-ratelimit-delta"))]
    XRateLimitDelta,
    /// The fields of [`RateLimit`](Headers::RateLimit), and `X-RateLimit-Limit-`, `-Remaining-` and
    /// `-Reset-` with the name of a unit, for clients of language models.
    ///
    /// ```text
    /// x-ratelimit-limit-requests: 60
    /// x-ratelimit-remaining-requests: 59
    /// x-ratelimit-reset-requests: 1s
    /// x-ratelimit-limit-tokens: 150000
    /// x-ratelimit-remaining-tokens: 149984
    /// x-ratelimit-reset-tokens: 7ms
    /// ```
    ///
    /// This is the form of `OpenAI`, section [Rate limits in headers][openai]. A quota without a
    /// [unit](crate::Quota::with_unit) counts requests. Any unit whose name may be part of a field name
    /// has fields. The reset is the time until all units are available again, rounded up: milliseconds
    /// below one second (`120ms`), and seconds from there (`1s`, `6m0s`, `1h0m0s`).
    ///
    /// The fields of a unit with several quotas report the decisive one. Slots have no such fields.
    ///
    /// ```
    /// use tower_sluice::{Headers, Limiter, Quota};
    ///
    /// const TOKENS: Quota = Quota::per_minute(150_000).with_unit("tokens");
    /// let decision = Limiter::local().take("alice", &TOKENS, 16).now();
    /// let mut response = http::Response::new("answer");
    /// Headers::ByUnit.write(&decision, &TOKENS, response.headers_mut());
    /// assert_eq!(response.headers()["x-ratelimit-remaining-tokens"], "149984");
    /// assert_eq!(response.headers()["x-ratelimit-reset-tokens"], "7ms");
    /// ```
    ///
    /// [openai]: https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
    ByUnit,
    /// No quota fields.
    None,
}

impl Headers {
    /// Returns `true` if the family has the lists of [`RateLimit`](Headers::RateLimit).
    fn has_lists(self) -> bool {
        matches!(self, Self::RateLimit | Self::ByUnit)
    }

    /// Returns `true` if the family has a policy field.
    fn has_policy(self) -> bool {
        self.has_lists() || matches!(self, Self::Draft06 | Self::Draft07)
    }

    /// Sends the fields with rejections only.
    ///
    /// ```
    /// use tower_sluice::{Headers, Quota, RateLimitLayer};
    ///
    /// let headers = Headers::RateLimit.only_when_denied();
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).headers(headers);
    /// ```
    pub fn only_when_denied(self) -> HeaderPolicy {
        HeaderPolicy {
            only_denied: true,
            ..self.into()
        }
    }

    /// Adds the partition key `pk` to the fields, so that a client with several keys knows which
    /// quota is whose.
    ///
    /// The value is the [fingerprint](crate::Key::fingerprint) of the key: eight bytes, in Base64.
    /// Nobody can compute the key from it without the secret. Only the lists of
    /// [`RateLimit`](Headers::RateLimit) have this parameter.
    ///
    /// ```
    /// use tower_sluice::{Headers, Quota, RateLimitLayer, fingerprint::FingerprintKey};
    ///
    /// let secret = FingerprintKey::new("correct horse battery staple")?; // from configuration
    /// let headers = Headers::RateLimit.partition_key(secret);
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).headers(headers);
    /// # Ok::<(), tower_sluice::fingerprint::FingerprintKeyError>(())
    /// ```
    pub fn partition_key(self, secret: impl Into<FingerprintKey>) -> HeaderPolicy {
        HeaderPolicy::from(self).partition_key(secret)
    }

    /// Adds the fields for a decision of a [`Limiter`](crate::Limiter) to `headers`.
    ///
    /// `quotas` are the quotas that were passed to the limiter. A denial also gets `Retry-After`,
    /// if waiting helps. [`Decision::rejection`] creates a whole response to a denial.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sluice::{Headers, Limiter, Quota};
    ///
    /// const SEARCHES: Quota = Quota::per_minute(30);
    /// let searches = Limiter::local();
    ///
    /// let decision = searches.take("alice", &SEARCHES, 1).now();
    /// let mut response = Response::new("found");
    /// Headers::RateLimit.write(&decision, &SEARCHES, response.headers_mut());
    /// assert_eq!(response.headers()["ratelimit"], "\"default\";r=29;t=58");
    /// ```
    pub fn write(
        self,
        decision: &Decision,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        headers: &mut HeaderMap,
    ) {
        let wait = decision.retry_after().filter(|_| !decision.is_allowed());
        let template = Template::of_call(self, decision, quotas.as_ref());
        template.add_to(headers, Some(decision), &[], wait);
    }
}

/// Header fields of a layer, for [`RateLimitLayer::headers`](crate::RateLimitLayer::headers).
///
/// Created from [`Headers`], by [`Headers::only_when_denied`] or by [`Headers::partition_key`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct HeaderPolicy {
    family: Headers,
    only_denied: bool,
    /// The secret of partition keys, if they are enabled.
    secret: Option<FingerprintKey>,
}

impl HeaderPolicy {
    /// Adds the [partition key](Headers::partition_key) to the fields.
    pub fn partition_key(self, secret: impl Into<FingerprintKey>) -> Self {
        Self {
            secret: Some(secret.into()),
            ..self
        }
    }
}

impl From<Headers> for HeaderPolicy {
    fn from(family: Headers) -> Self {
        Self {
            family,
            ..Self::default()
        }
    }
}
