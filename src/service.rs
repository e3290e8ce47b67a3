//! The limited service.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, request::Parts};
use tower::Service;

use crate::{
    future::{ResponseFuture, Waiting},
    gate::{Asked, Gate, Verdict},
    pass::{Pass, Ticket},
    reject::{Reject, TooManyRequests},
    rule::Rules,
    store::{Answer, CannotFail, Store},
};

/// The service `I`, limited. Made by a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Its error is that of the inner service: a refusal is a response. Clones share their limits,
/// since accounts live in the store.
pub struct RateLimit<I, K, S, R = TooManyRequests> {
    inner: I,
    gate: Arc<Gate<K, S, R>>,
}

impl<I, K, S, R> RateLimit<I, K, S, R> {
    pub(crate) fn new(inner: I, gate: Arc<Gate<K, S, R>>) -> Self {
        Self { inner, gate }
    }
}

impl<I, K, S, R, B, C> Service<Request<B>> for RateLimit<I, K, S, R>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
{
    type Response = Response<C>;
    type Error = I::Error;
    type Future = ResponseFuture<I, K, S, R, B>;

    /// Ready when the inner service is, since the request is not known before. A denial waits for
    /// that, too: see [where the layer goes](crate::guide::choosing#where-does-the-layer-go).
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let reserved = Reserved(&mut self.inner);
        let asked = self.gate.ask(&parts);
        reserved.keep();
        let pass = match asked {
            // by itself, so that what a pass is made of is not moved where there is none
            Asked::Admitted => {
                let future = self.inner.call(Request::from_parts(parts, body));
                return ResponseFuture::running(future, Pass::default());
            }
            Asked::Passed(pass) => pass,
            Asked::Refused(response) => return self.refuse(response),
            Asked::Answered(answered) => return self.go_on(*answered, parts, body),
            Asked::Unlimited => {
                self.gate.excuse(&mut parts);
                Pass::default()
            }
        };
        ResponseFuture::running(self.inner.call(Request::from_parts(parts, body)), pass)
    }
}

impl<I: Clone, K, S, R> RateLimit<I, K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// What is left of a call that is neither simply admitted nor simply refused.
    #[inline(never)]
    fn go_on<B, C>(
        &mut self,
        (answer, ticket): (Answer<S::Future>, Ticket),
        mut parts: Parts,
        body: B,
    ) -> ResponseFuture<I, K, S, R, B>
    where
        I: Service<Request<B>, Response = Response<C>>,
        R: Reject<C>,
    {
        let decision = match answer {
            Answer::Now(decision) => decision,
            Answer::Later(answer) => {
                let fresh = self.inner.clone();
                let inner = mem::replace(&mut self.inner, fresh);
                let waiting = Waiting { inner, gate: self.gate.clone(), parts, body };
                return ResponseFuture::asking(answer, waiting, ticket);
            }
        };
        let reserved = Reserved(&mut self.inner);
        let verdict = self.gate.conclude(decision, ticket, &mut parts);
        reserved.keep();
        match verdict {
            Verdict::Pass(pass) => {
                let future = self.inner.call(Request::from_parts(parts, body));
                ResponseFuture::running(future, pass)
            }
            Verdict::Wait(place) => {
                self.inner = self.inner.clone();
                let (inner, gate) = (self.inner.clone(), self.gate.clone());
                ResponseFuture::delayed(place, Waiting { inner, gate, parts, body })
            }
            Verdict::Refuse(response) => self.refuse(response),
        }
    }

    /// `poll_ready` may have reserved a place in the inner service, such as a permit of a
    /// concurrency limit. An idle connection that was just refused must not sit on it.
    #[inline]
    fn refuse<B, C>(&mut self, response: Response<C>) -> ResponseFuture<I, K, S, R, B>
    where
        I: Service<Request<B>, Response = Response<C>>,
    {
        self.inner = self.inner.clone();
        ResponseFuture::rejected(response)
    }
}

/// A reservation that `poll_ready` made in the inner service. A panic of an extractor, a cost or a
/// [`Reject`] releases it, since a server may catch the panic and keep the connection.
struct Reserved<'a, I: Clone>(&'a mut I);

impl<I: Clone> Reserved<'_, I> {
    #[inline]
    fn keep(self) {
        mem::forget(self);
    }
}

impl<I: Clone> Drop for Reserved<'_, I> {
    fn drop(&mut self) {
        *self.0 = self.0.clone();
    }
}

impl<I: Clone, K, S, R> Clone for RateLimit<I, K, S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: self.gate.clone() }
    }
}

impl<I: fmt::Debug, K, S: fmt::Debug, R> fmt::Debug for RateLimit<I, K, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("store", &self.gate.store)
            .finish_non_exhaustive()
    }
}
