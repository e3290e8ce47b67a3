//! What to answer instead of the service: refusals as responses.
//!
//! A refusal is decided by the store; how it is said is a [`Reject`]. The default,
//! [`TooManyRequests`], answers plain text, problem+json (RFC 9457) where the client accepts JSON,
//! nothing to HEAD, and a gRPC status to gRPC. The layer adds `Retry-After` and the
//! [`Headers`](crate::Headers) to whatever a `Reject` returns.
//!
//! A closure enters through [`reject_fn`]. It answers *every* refusal, also those of a missing key
//! or of a store that failed, so it takes its status from the [`Rejection`]; and nothing but the
//! fields above is added, so that `Cache-Control: no-store`, which the default sends, is its own.
//!
//! ```
//! use http::Response;
//! use tower_sluice::{PeerIp, LocalStore, Quota, RateLimitLayer, reject_fn};
//!
//! let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), LocalStore::new())
//!     .reject(reject_fn(|why, _parts| {
//!         let name = why.violated().next().unwrap_or("limit");
//!         let mut response = Response::new(format!("slow down ({name})"));
//!         *response.status_mut() = why.status();
//!         response
//!     }));
//! ```
//!
//! # gRPC
//!
//! A request is a gRPC call if it is a `POST` over HTTP/2 or later with the content type
//! `application/grpc`, with `+proto`, `+json` or `;…` behind it. A request that only claims the
//! content type gets the plain answer, 429 as a rule. The rejection of a call is what a handler's own
//! status would be, never a bare 429, which clients take for `UNAVAILABLE` and retry at once: HTTP 200
//! and one block of headers that ends the stream, with
//!
//! | field | |
//! |---|---|
//! | `content-type`, `cache-control` | always `application/grpc` and `no-store` |
//! | `grpc-status` | 8 `RESOURCE_EXHAUSTED`; 14 `UNAVAILABLE` for a store that failed, 7 for a blocked quota, 3, 13 or 16 for a request without a usable key |
//! | `grpc-message` | the text that others read |
//! | `grpc-status-details-bin` | `google.rpc.RetryInfo` with the wait to the millisecond, unless waiting does not help; `QuotaFailure` with `policy:<name>` for each quota that refused |
//! | `grpc-retry-pushback-ms` | the same wait; -1 says not to retry ([gRFC A6]) |
//! | `retry-after`, `ratelimit`, … | as for everybody |
//!
//! A client obeys the pushback if its service config has a retry policy that names the code; to
//! others it means nothing:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {
//!     "maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
//!     "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! A client of tonic has no such policy: it reads `Status::get_details_retry_info` of `tonic-types`.
//!
//! A stream, of either side or both, is charged once, when it opens. What is sent in it is neither
//! counted nor refused, and a stream that is open stays open: its handler can charge a
//! [`Limiter`](crate::Limiter) per message. A refused stream ends at once; a client that is still
//! sending is told to stop (`RST_STREAM` with `NO_ERROR`).
//!
//! gRPC-Web is another protocol: put the limiter *inside* the layer that translates it
//! (`tonic_web::GrpcWebLayer`, the first layer of a server of tonic is the outermost), which then
//! translates rejections as well. Outside of it a rejection is 429 with text. A translated request keeps
//! its version, so browsers that speak HTTP/1.1 need [`TooManyRequests::grpc_web`]. A browser shows a
//! script only the fields that the CORS layer exposes: `grpc-status`, `grpc-message` and
//! `grpc-status-details-bin`, beside [`EXPOSED_HEADERS`](crate::EXPOSED_HEADERS).
//!
//! The metadata of a call are header fields, so that [`Header`](crate::key::Header) reads them, and
//! [`PeerIp`](crate::PeerIp) knows the peer from a server of tonic with the feature `tonic`. With
//! one store and the same rules gRPC and plain HTTP share their accounts: see the example `grpc`.
//!
//! [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md

mod body;
mod grpc;
mod text;

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use crate::{
    decision::{Decision, Source},
    explain::Explanation,
    fingerprint::Secret,
    headers::{Template, retry_seconds},
    key::KeyError,
    rule::Rules,
};

/// Answers a refused request.
pub trait Reject<B> {
    /// The response to the request with this head. The inner service is not called.
    fn reject(&self, why: &Rejection<'_>, parts: &Parts) -> Response<B>;
}

const _: Option<&dyn Reject<()>> = None;

/// A [`Reject`] made of a closure.
pub fn reject_fn<F, B>(f: F) -> RejectFn<F>
where
    F: Fn(&Rejection<'_>, &Parts) -> Response<B>,
{
    RejectFn(f)
}

/// The [`Reject`] of [`reject_fn`].
#[derive(Clone, Copy)]
pub struct RejectFn<F>(F);

impl<F, B> Reject<B> for RejectFn<F>
where
    F: Fn(&Rejection<'_>, &Parts) -> Response<B>,
{
    fn reject(&self, why: &Rejection<'_>, parts: &Parts) -> Response<B> {
        (self.0)(why, parts)
    }
}

impl<F> fmt::Debug for RejectFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectFn({})", std::any::type_name::<F>())
    }
}

/// Why a request is refused.
#[derive(Clone, Copy)]
pub struct Rejection<'a> {
    why: Why<'a>,
    retry_after: Option<Duration>,
    template: &'a Arc<Template>,
    again: Again<'a>,
    /// Whether the layer's own fields were written already.
    told: &'a Cell<bool>,
}

/// What is asked again for an explanation.
#[derive(Clone, Copy)]
pub(crate) struct Again<'a> {
    pub(crate) rules: &'a dyn Rules,
    pub(crate) secret: Option<&'a Secret>,
}

#[derive(Clone, Copy, Debug)]
enum Why<'a> {
    Decision(&'a Decision),
    Key(&'a KeyError),
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A quota is used up; waiting helps.
    Limited,
    /// The request costs more than a quota ever has; waiting does not help.
    TooCostly,
    /// A quota is [blocked](crate::Quota::blocked).
    Blocked,
    /// The store failed and says no.
    Unavailable,
    /// The request has no usable key.
    Unkeyed,
}

impl<'a> Rejection<'a> {
    pub(crate) fn denied(
        decision: &'a Decision,
        retry_after: Option<Duration>,
        template: &'a Arc<Template>,
        again: Again<'a>,
        told: &'a Cell<bool>,
    ) -> Self {
        Self { why: Why::Decision(decision), retry_after, template, again, told }
    }

    pub(crate) fn unkeyed(
        error: &'a KeyError,
        template: &'a Arc<Template>,
        again: Again<'a>,
        told: &'a Cell<bool>,
    ) -> Self {
        Self { why: Why::Key(error), retry_after: None, template, again, told }
    }

    /// All fields of an answer in plain text, with those that the layer adds to any answer.
    fn fields(&self) -> Option<HeaderMap> {
        let fields = self.template.refusal(self.decision()?, self.retry_after?)?;
        self.told.set(true);
        Some(fields)
    }

    /// The refusal in words, with its arithmetic, for logs and operators: the rules are asked again
    /// for quotas, costs and keys, and no store is. The wait is the decision's, without jitter.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sluice::{PeerIp, LocalStore, Quota, RateLimitLayer, reject_fn};
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), LocalStore::new())
    ///     .reject(reject_fn(|why, parts| {
    ///         if parts.headers.contains_key("x-debug") {
    ///             eprint!("{}", why.explain(parts));
    ///         }
    ///         let mut response = Response::new(String::new());
    ///         *response.status_mut() = why.status();
    ///         response
    ///     }));
    /// ```
    pub fn explain(&self, parts: &Parts) -> Explanation {
        let explanation = match self.why {
            Why::Decision(decision) => decision.explain().rules(self.again.rules, parts),
            Why::Key(error) => Explanation::unkeyed(error.clone()),
        };
        explanation.told_by(self.again.secret)
    }

    /// What kind of refusal this is.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let Why::Decision(decision) = self.why else { return Reason::Unkeyed };
        match decision.binding() {
            _ if decision.source() == Source::FailedClosed => Reason::Unavailable,
            Some(outcome) if outcome.is_known() && outcome.limit() == 0 => Reason::Blocked,
            Some(_) if decision.retry_after().is_none() => Reason::TooCostly,
            _ => Reason::Limited,
        }
    }

    /// The status that says so: 429 for a quota, 403 for one that is blocked, 503 for a store that
    /// failed, and the key error's own for a request without a usable key.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        TooManyRequests::new().status(self)
    }

    /// The store's decision; `None` when the request had no usable key.
    #[must_use]
    pub fn decision(&self) -> Option<&'a Decision> {
        match self.why {
            Why::Decision(decision) => Some(decision),
            Why::Key(_) => None,
        }
    }

    /// Why the request has no usable key.
    #[must_use]
    pub fn key_error(&self) -> Option<&'a KeyError> {
        match self.why {
            Why::Key(error) => Some(error),
            Why::Decision(_) => None,
        }
    }

    /// The wait to tell the client, jitter included; `None` when waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The same in whole seconds, as `Retry-After` has it: rounded up, and at least 1.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(retry_seconds)
    }

    /// The names of the quotas that refused, as in the header fields.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let template = self.template;
        let outcomes = self.decision().map_or(&[][..], Decision::outcomes);
        outcomes.iter().filter(|outcome| outcome.is_denied()).map(|outcome| template.name(outcome))
    }
}

impl fmt::Debug for Rejection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Rejection");
        debug
            .field("why", &self.why)
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

/// The default answer: 429 with text, problem+json or a gRPC status, as the request asks.
///
/// It answers for every body type that has a `Default`. Types it can fill (`String`, `Vec<u8>`,
/// `Bytes`, `http_body_util::Full<Bytes>` and, with the features `axum` and `tonic`, the `Body` of
/// each) get the text; others stay empty, with every header in place. For those write a
/// [`reject_fn`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct TooManyRequests {
    blocked: StatusCode,
    too_costly: StatusCode,
    grpc_web: bool,
}

impl TooManyRequests {
    /// 429 for a used-up quota, 403 for a blocked one, 503 for a store that failed.
    pub const fn new() -> Self {
        let too_costly = StatusCode::TOO_MANY_REQUESTS;
        Self { blocked: StatusCode::FORBIDDEN, too_costly, grpc_web: false }
    }

    /// The status for a [blocked](crate::Quota::blocked) quota; 403 unless set.
    pub const fn blocked_status(self, status: StatusCode) -> Self {
        Self { blocked: status, ..self }
    }

    /// The status for a request that costs more than its quota ever has; 429 unless set.
    pub const fn too_costly_status(self, status: StatusCode) -> Self {
        Self { too_costly: status, ..self }
    }

    /// Answers in gRPC also to calls over HTTP/1.1 as `tonic_web::GrpcWebLayer` hands them on: a
    /// `POST` with a gRPC content type and `te: trailers`, without `content-length`. Set it on a
    /// limiter inside of that layer whose browsers speak HTTP/1.1. Defaults to HTTP/2 and later only.
    ///
    /// # Limitations
    ///
    /// Any client of HTTP/1.1 can write such a request. It then reads status 200 with
    /// `grpc-status: 8` for its own denied call, so count denials by the layer's counters, not by
    /// HTTP status.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, TooManyRequests};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .reject(TooManyRequests::new().grpc_web());
    /// ```
    pub const fn grpc_web(self) -> Self {
        Self { grpc_web: true, ..self }
    }

    fn status(self, why: &Rejection<'_>) -> StatusCode {
        match why.reason() {
            Reason::Limited => StatusCode::TOO_MANY_REQUESTS,
            Reason::TooCostly => self.too_costly,
            Reason::Blocked => self.blocked,
            Reason::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Unkeyed => why.key_error().map_or(StatusCode::BAD_REQUEST, KeyError::status),
        }
    }
}

impl Default for TooManyRequests {
    fn default() -> Self {
        Self::new()
    }
}

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

impl<B: Default + 'static> Reject<B> for TooManyRequests {
    fn reject(&self, why: &Rejection<'_>, parts: &Parts) -> Response<B> {
        let status = self.status(why);
        if grpc::is_call(parts) || self.grpc_web && grpc::is_translated(parts) {
            return grpc::response(why, status);
        }
        let json = text::accepts_json(&parts.headers);
        let text = if json { text::problem(why, status).into() } else { text::plain(why) };
        let length = text.len();
        let head = parts.method == Method::HEAD;
        let mut response = Response::new(if head { B::default() } else { body::of(text) });
        *response.status_mut() = status;
        let headers = response.headers_mut();
        match why.fields() {
            Some(fields) if !json => *headers = fields,
            fields => {
                *headers = fields.unwrap_or_default();
                let kind = if json { PROBLEM } else { PLAIN };
                headers.insert(header::CONTENT_TYPE, kind);
                headers.insert(header::CACHE_CONTROL, NO_STORE);
            }
        }
        if head {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
        response
    }
}
