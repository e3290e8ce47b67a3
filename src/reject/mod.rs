//! Responses for rejected requests.
//!
//! A [`Reject`] creates the response. The default is [`TooManyRequests`]:
//!
//! - Plain text, or problem+json (RFC 9457) if the client accepts JSON.
//! - No body in the response to `HEAD`.
//! - A gRPC status in the response to a gRPC call.
//!
//! The layer adds these fields to every response of a `Reject`: the [`Headers`] and, if they are not
//! set, `Retry-After`, `Cache-Control: no-store` and a `Content-Type` of plain text. An empty body of
//! a type that [`TooManyRequests`] does not know has no `Content-Type`.
//!
//! [`reject_fn`] creates a `Reject` from a closure. The closure handles *every* rejection,
//! including a missing key or a failed store, so take the status from the [`Rejection`].
//!
//! ```
//! use http::Response;
//! use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, reject::reject_fn};
//!
//! let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), LocalStore::new())
//!     .reject(reject_fn(|why, _head| {
//!         let name = why.violated().next().unwrap_or("limit");
//!         let mut response = Response::new(format!("slow down ({name})"));
//!         *response.status_mut() = why.status();
//!         response
//!     }));
//! ```
//!
//! # gRPC
//!
//! A gRPC call is a `POST` over HTTP/2 or later with the content type `application/grpc`,
//! optionally followed by `+` or `;` and more, as `+proto`.
//!
//! The rejection of a gRPC call is HTTP 200 with a gRPC status in the headers. Clients would read a
//! plain 429 as `UNAVAILABLE` and retry immediately. The headers end the stream:
//!
//! | field | |
//! |---|---|
//! | `content-type`, `cache-control` | always `application/grpc` and `no-store` |
//! | `grpc-status` | 8 `RESOURCE_EXHAUSTED`; 14 `UNAVAILABLE` for a failed store or an overload; 7 for a block with status 403; for a request without a usable key, 3, 7, 8, 13, 14 or 16 by its status |
//! | `grpc-message` | the text of the plain response |
//! | `grpc-status-details-bin` | `google.rpc.RetryInfo` with the wait in milliseconds, unless waiting does not help or the wait is unknown; `QuotaFailure` with `policy:<name>` for each quota that denied the request |
//! | `grpc-retry-pushback-ms` | the wait in milliseconds, an estimate for slots; without a wait, -1, which forbids a retry ([gRFC A6]), but absent for an exhausted quota and a request without a usable key |
//! | `retry-after`, `ratelimit`, … | as in other responses |
//!
//! A client obeys `grpc-retry-pushback-ms` only if its service config has a retry policy for the
//! status code:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {
//!     "maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
//!     "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! Clients of tonic have no retry policy. They can read the wait with
//! `Status::get_details_retry_info` of `tonic-types`.
//!
//! A streaming call is charged once, when it opens. To limit its messages, take from a
//! [`Limiter`](crate::Limiter) in the handler. A client that is still sending when its stream is
//! rejected receives `RST_STREAM` with `NO_ERROR`.
//!
//! ## gRPC-Web
//!
//! `tonic_web::GrpcWebLayer` translates gRPC-Web calls to gRPC. Place the limiter *inside* that
//! layer, so that rejections are translated as well. In a tonic server, add the limiter after the
//! `GrpcWebLayer`.
//!
//! For browsers over HTTP/1.1, use [`TooManyRequests::grpc_web`]. In the CORS layer, expose
//! `grpc-status`, `grpc-message` and `grpc-status-details-bin` in addition to
//! [`exposed_headers()`](crate::headers::exposed_headers()).
//!
//! ## Keys
//!
//! [`HeaderKey`](crate::key::HeaderKey) reads the metadata of a call. With feature `tonic`,
//! [`PeerIp`](crate::PeerIp) works in a tonic server. gRPC and plain HTTP can share their accounts,
//! see the example `grpc`.
//!
//! [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md

mod grpc;
mod text;

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

pub(crate) use self::grpc::is_call as is_grpc_call;
pub use crate::decision::cause::Reason;
use crate::{
    decision::{Cause, Decision},
    explain::Explanation,
    fingerprint::FingerprintKey,
    headers::{Headers, Template, retry_seconds},
    key::{KeyError, RequestHead},
    quota::Quota,
    rule::Rules,
    store::Charge,
};

/// Creates the responses for rejected requests.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not create responses with the body `{B}`",
    label = "choose how the body of a rejection is created",
    note = "`TooManyRequests` creates bodies with `Default`; another body that you can create takes one line: \
            `.reject(TooManyRequests::new().with_body(|text| ..))`",
    note = "a closure needs `reject_fn(|why, head| ..)`",
    note = "the body of a layer inside, such as `TraceLayer`, cannot be created: add that layer outside \
            of the limiter, or in axum each layer by a `.layer(..)` of its own",
    note = "nobody can create hyper's `Incoming`: let the inner service box its bodies with \
            `response.map(BodyExt::boxed)`"
)]
pub trait Reject<B> {
    /// Creates the response to a rejected request.
    fn reject(&self, why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<B>;
}

const _: Option<&dyn Reject<()>> = None;

/// Creates a [`Reject`] from a closure. See the [module](self) for an example.
pub fn reject_fn<F, B>(f: F) -> RejectFn<F>
where
    F: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<B>,
{
    RejectFn(f)
}

/// [`Reject`] created by [`reject_fn`] or [`TooManyRequests::with_body`].
#[derive(Clone, Copy)]
pub struct RejectFn<F>(F);

impl<F, B> Reject<B> for RejectFn<F>
where
    F: Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<B>,
{
    fn reject(&self, why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<B> {
        (self.0)(why, head)
    }
}

impl<F> fmt::Debug for RejectFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RejectFn({})", std::any::type_name::<F>())
    }
}

/// Rejected request, with the reason and the wait.
#[derive(Clone, Copy)]
pub struct Rejection<'a> {
    decided: Result<&'a Decision, &'a KeyError>,
    cause: Cause,
    /// The wait to report, without rounding.
    wait: Option<Duration>,
    template: &'a Template,
    /// The rules of the layer, for explanations.
    rules: Option<&'a dyn Rules>,
    secret: Option<&'a FingerprintKey>,
}

impl<'a> Rejection<'a> {
    pub(crate) fn new(
        decided: Result<&'a Decision, &'a KeyError>,
        wait: Option<Duration>,
        template: &'a Template,
        rules: Option<&'a dyn Rules>,
        secret: Option<&'a FingerprintKey>,
    ) -> Self {
        let cause = Cause::of_rejection(decided.ok());
        Self {
            decided,
            cause,
            wait,
            template,
            rules,
            secret,
        }
    }

    /// Returns the response of a [`Reject`], with the header fields of the layer.
    #[inline(always)]
    pub(crate) fn response<B>(
        &self,
        reject: &impl Reject<B>,
        head: &RequestHead<'_>,
        charges: &[Charge<'_>],
    ) -> Response<B> {
        let mut response = reject.reject(self, head);
        let headers = response.headers_mut();
        self.template
            .complete(headers, self.decision(), charges, self.wait);
        let unfilled = response.extensions_mut().remove::<text::Unfilled>();
        if unfilled.is_some() {
            response.headers_mut().remove(CONTENT_TYPE);
        }
        response
    }

    /// Explains the rejection, for logs and operators.
    ///
    /// The rules are evaluated again, but the store is not called. The explained wait is the one before
    /// [`RetryAfter`](crate::middleware::RetryAfter) lengthens it.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, reject::reject_fn};
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), LocalStore::new())
    ///     .reject(reject_fn(|why, head| {
    ///         if head.headers.contains_key("x-debug") {
    ///             eprint!("{}", why.explain(head));
    ///         }
    ///         let mut response = Response::new(String::new());
    ///         *response.status_mut() = why.status();
    ///         response
    ///     }));
    /// ```
    pub fn explain<'h>(&self, head: impl Into<RequestHead<'h>>) -> Explanation {
        let mut explanation = match (self.decided, self.rules) {
            (Ok(decision), Some(rules)) => decision.explain().rules(rules, head),
            (Ok(decision), None) => decision.explain(),
            (Err(error), _) => Explanation::new(Err(error.clone().into())),
        };
        explanation.secret = self.secret.copied();
        explanation
    }

    /// Returns the reason of the rejection.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.cause.reason()
    }

    /// Returns the default status for the [reason](Rejection::reason):
    ///
    /// - 429 for a quota or a blocked key
    /// - 403 for a blocked quota
    /// - 503 for a failed store, or an overload
    /// - the status of the [`KeyError`] for a request without a usable key
    #[must_use]
    pub fn status(&self) -> StatusCode {
        TooManyRequests::new().status(self)
    }

    /// Returns the decision of the store, or `None` if the request has no usable key.
    #[must_use]
    pub fn decision(&self) -> Option<&'a Decision> {
        self.decided.ok()
    }

    /// Returns the error of a request without a usable key, or `None` for other reasons.
    #[must_use]
    pub fn key_error(&self) -> Option<&'a KeyError> {
        self.decided.err()
    }

    /// Returns the wait that `Retry-After` reports: whole seconds, rounded up and at least 1. Returns
    /// `None` if waiting does not help, or if the store did not tell a wait.
    ///
    /// [`Decision::retry_after`] is the wait without rounding.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait.map(retry_seconds).map(Duration::from_secs)
    }

    /// Returns the names of the quotas that denied the request, as in header fields. A block of the key is
    /// no quota, and a store that failed knows of none.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> {
        let template = self.template;
        let by_no_quota = self.cause == Cause::KeyBlocked || self.cause.is_unavailable();
        let decision = self.decision().filter(|_| !by_no_quota);
        let outcomes = decision.map_or(&[][..], Decision::outcomes);
        let denying = outcomes.iter().filter(|outcome| outcome.denies());
        denying.map(|outcome| template.name(outcome))
    }
}

impl fmt::Debug for Rejection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejection")
            .field("cause", &self.decided)
            .field("retry_after", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Default [`Reject`], with text, problem+json or a gRPC status, depending on the request.
///
/// Supports every body type that implements `Default`. These types receive a text:
///
/// - `String`, `Vec<u8>` and `Bytes`
/// - `http_body_util::Full<Bytes>`
/// - the `Body` of axum and tonic (features `axum` and `tonic`)
///
/// Bodies of other types are empty, without a `Content-Type`, and the log warns once. Such types come
/// from layers inside the limiter, such as a `CompressionLayer` in the same `ServiceBuilder`. Add these
/// layers outside of the limiter, or, in axum, by a `.layer(…)` of their own, because a router boxes
/// bodies. Otherwise, or for a type without `Default`, use [`with_body`](TooManyRequests::with_body).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct TooManyRequests {
    blocked: Option<StatusCode>,
    too_costly: StatusCode,
    grpc_web: bool,
}

impl TooManyRequests {
    /// Creates the default, with status 429 for a quota and 403 for a blocked quota.
    pub const fn new() -> Self {
        Self {
            blocked: None,
            too_costly: StatusCode::TOO_MANY_REQUESTS,
            grpc_web: false,
        }
    }

    /// Sets the status for a [blocked quota](crate::Quota::blocked) or a [blocked
    /// key](crate::Limiter::block). Defaults to 403 for a quota, and to 429 for a key.
    pub const fn blocked_status(self, status: StatusCode) -> Self {
        Self {
            blocked: Some(status),
            ..self
        }
    }

    /// Sets the status for a request that costs more than the limit of a quota. Defaults to 429.
    pub const fn too_costly_status(self, status: StatusCode) -> Self {
        Self {
            too_costly: status,
            ..self
        }
    }

    /// Also responds with a gRPC status to calls over HTTP/1.1, for gRPC-Web.
    ///
    /// Use this inside a `tonic_web::GrpcWebLayer` for browsers over HTTP/1.1. By default, only
    /// calls over HTTP/2 and later get a gRPC status.
    ///
    /// # Limitations
    ///
    /// Any HTTP/1.1 client can send a request that looks like a gRPC-Web call. The status of its
    /// denial is then 200, with `grpc-status: 8`. To count denials, use the counters of the layer.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer, TooManyRequests};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .reject(TooManyRequests::new().grpc_web());
    /// ```
    pub const fn grpc_web(self) -> Self {
        Self {
            grpc_web: true,
            ..self
        }
    }

    /// Creates bodies with a closure, which receives the text. The text may be empty.
    ///
    /// Use this for a body type without `Default`, or for a type that would otherwise stay empty:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use tower_sluice::{Quota, RateLimitLayer, TooManyRequests};
    ///
    /// # use http::{Request, Response};
    /// # use tower::{Layer, Service};
    /// struct OwnBody(Bytes);
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
    ///     .reject(TooManyRequests::new().with_body(|text| OwnBody(text)));
    /// # let hello = |_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(OwnBody("".into()))) };
    /// # fn is_service(_: impl Service<Request<()>>) {}
    /// # is_service(layer.layer(tower::service_fn(hello)));
    /// ```
    ///
    /// Some body types, such as hyper's `Incoming`, cannot be created from a text. Box the bodies
    /// of the inner service with `response.map(BodyExt::boxed)` of http-body-util. Box the text in
    /// the closure as well.
    ///
    /// For an empty text, the body must report its end immediately, as `Full` does. The headers of
    /// a gRPC rejection then end the stream.
    pub fn with_body<B>(
        self,
        body: impl Fn(Bytes) -> B,
    ) -> RejectFn<impl Fn(&Rejection<'_>, &RequestHead<'_>) -> Response<B>> {
        reject_fn(move |why, head| {
            let mut response = Reject::<Bytes>::reject(&self, why, head).map(&body);
            // The response to `HEAD` has the length of the text, which may not be that of the other body.
            response.headers_mut().remove(CONTENT_LENGTH);
            response
        })
    }

    fn status(self, why: &Rejection<'_>) -> StatusCode {
        if let Some(error) = why.key_error() {
            return error.status();
        }
        if why.cause == Cause::TooCostly {
            return self.too_costly;
        }
        let is_blocked = why.cause == Cause::QuotaBlocked || why.cause == Cause::KeyBlocked;
        self.blocked
            .filter(|_| is_blocked)
            .unwrap_or(why.cause.http())
    }
}

impl Default for TooManyRequests {
    fn default() -> Self {
        Self::new()
    }
}

#[diagnostic::do_not_recommend] // or errors would name `Default` instead of the fix
impl<B: Default + 'static> Reject<B> for TooManyRequests {
    #[inline(always)]
    fn reject(&self, why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<B> {
        let status = self.status(why);
        let is_grpc = grpc::is_call(head) || self.grpc_web && grpc::is_translated(head);
        if is_grpc {
            grpc::response(why, status)
        } else {
            text::response(why, head, status)
        }
    }
}

impl Decision {
    /// Creates the response to a denied request, or returns `None` if the request is allowed.
    ///
    /// Use this in a handler that calls a [`Limiter`](crate::Limiter), with the quotas of that
    /// call. The response is that of [`TooManyRequests`], with `Retry-After` and the fields of
    /// [`Headers::RateLimit`]. The handler should read the body of its request before: see
    /// [`drain`](crate::RateLimitLayer::drain).
    ///
    /// ```
    /// use http::{Response, request::Parts};
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// const INVITATIONS: Quota = Quota::per_hour(2);
    ///
    /// async fn invite(limiter: Limiter, head: Parts, recipient: String) -> Response<String> {
    ///     let decision = limiter.take(recipient, &INVITATIONS, 1).now();
    ///     if let Some(rejection) = decision.rejection(&INVITATIONS, &head) {
    ///         return rejection;
    ///     }
    ///     Response::new("sent".into())
    /// }
    /// # let head = || http::Request::new(()).into_parts().0;
    /// # let limiter = Limiter::local();
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # for status in [200, 200, 429] {
    /// #     let response = invite(limiter.clone(), head(), "bob@example.com".into()).await;
    /// #     assert_eq!(response.status(), status);
    /// # }
    /// # });
    /// ```
    ///
    /// For a response of your own, see [`Headers::write`]. After a dry run, call this method on
    /// [`Explanation::decision`](crate::explain::Explanation).
    #[must_use]
    pub fn rejection<'h, B>(
        &self,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        head: impl Into<RequestHead<'h>>,
    ) -> Option<Response<B>>
    where
        B: Default + 'static,
    {
        if self.is_allowed() {
            return None;
        }
        let template = Template::of_call(Headers::RateLimit, self, quotas.as_ref());
        let why = Rejection::new(Ok(self), self.retry_after(), &template, None, None);
        Some(why.response(&TooManyRequests::new(), &head.into(), &[]))
    }
}
