//! The default rejection with a body of any type.

use std::fmt;

use bytes::Bytes;
use http::Response;

use super::{Reject, Rejection, TooManyRequests};
use crate::key::RequestHead;

/// [`TooManyRequests`] with bodies from a closure. Created by [`TooManyRequests::with_body`].
#[derive(Clone, Copy)]
#[must_use]
pub struct WithBody<F> {
    inner: TooManyRequests,
    body: F,
}

impl TooManyRequests {
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
    pub const fn with_body<F, B>(self, body: F) -> WithBody<F>
    where
        F: Fn(Bytes) -> B,
    {
        WithBody { inner: self, body }
    }
}

impl<F, B> Reject<B> for WithBody<F>
where
    F: Fn(Bytes) -> B,
{
    fn reject(&self, why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<B> {
        Reject::<Bytes>::reject(&self.inner, why, head).map(&self.body)
    }

    fn respond(&self, why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<B> {
        Reject::<Bytes>::respond(&self.inner, why, head).map(&self.body)
    }
}

impl<F> fmt::Debug for WithBody<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithBody").field("inner", &self.inner).finish_non_exhaustive()
    }
}
