//! The rate limited service.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::Service;

use super::{
    admission::{Admission, Shared},
    future::{Parked, ResponseFuture},
};
use crate::{
    head::RequestHead,
    reject::{Reject, TooManyRequests},
    rule::Rules,
    store::{CannotFail, Store},
};

/// Service that limits the rate of an inner service.
///
/// Created by a [`RateLimitLayer`](crate::RateLimitLayer). Clones share their limits.
///
/// A rejection is a response, not an error. The inner service must be `Clone`, because a request
/// that waits keeps a service of its own.
pub struct RateLimit<I, K, S, R = TooManyRequests> {
    inner: I,
    shared: Arc<Shared<K, S, R>>,
}

impl<I, K, S, R> RateLimit<I, K, S, R> {
    pub(super) fn new(inner: I, shared: Arc<Shared<K, S, R>>) -> Self {
        Self { inner, shared }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &I {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut I {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> I {
        self.inner
    }
}

impl<I, K, S, R, B, C> Service<Request<B>> for RateLimit<I, K, S, R>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    C: 'static,
{
    type Response = Response<C>;
    type Error = I::Error;
    type Future = ResponseFuture<I, K, S, R, B>;

    /// Waits until the inner service is ready.
    ///
    /// A request that will be denied therefore waits as well. See [where the layer
    /// goes](crate::guide::choosing#where-does-the-layer-go).
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let readiness = Readiness(&mut self.inner);
        let admission = self.shared.decider(&RequestHead::from(&request)).admit();
        mem::forget(readiness);
        match admission {
            // Apart from `Some`, because moving an `Option` of this size is slow even if it is `None`.
            Admission::Admitted(None) => ResponseFuture::running(self.inner.call(request), None),
            Admission::Admitted(Some(context)) => {
                context.attach(&mut request);
                ResponseFuture::running(self.inner.call(request), Some(context))
            }
            Admission::Rejected(response) => {
                // `poll_ready` may have reserved a permit, which an idle connection must not hold.
                self.inner = self.inner.clone();
                ResponseFuture::rejected(response)
            }
            step @ (Admission::Queued(_) | Admission::Waiting(_) | Admission::Deciding(_)) => {
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                let shared = self.shared.clone();
                ResponseFuture::parked(Parked { inner, is_ready: true, shared, request, step })
            }
        }
    }
}

/// Guard that replaces the inner service with a fresh clone if the decision panics.
///
/// `poll_ready` may have reserved a permit. If the server catches the panic, an idle connection
/// must not hold that permit.
struct Readiness<'a, I: Clone>(&'a mut I);

impl<I: Clone> Drop for Readiness<'_, I> {
    fn drop(&mut self) {
        *self.0 = self.0.clone();
    }
}

impl<I: Clone, K, S, R> Clone for RateLimit<I, K, S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

impl<I: fmt::Debug, K, S: fmt::Debug, R> fmt::Debug for RateLimit<I, K, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}
