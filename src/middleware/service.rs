//! The rate limited service, and the future of a request.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::{
    RateLimitLayer,
    admission::{Admission, Gate},
    context::ResponseContext,
    drain::{self, DrainConfig, Draining},
};
use crate::{
    head::RequestHead,
    headers::Lines,
    reject::{Reject, TooManyRequests},
    rule::{self, Rules},
    store::{CannotFail, Store},
};

/// Service that limits the rate of an inner service.
///
/// Created by a [`RateLimitLayer`](crate::RateLimitLayer). Clones share their limits.
///
/// A rejection is a response, not an error. The inner service must be `Clone`, because a request
/// that waits keeps a service of its own.
pub struct RateLimit<I, K, S, R = TooManyRequests> {
    pub(super) inner: I,
    pub(super) layer: Arc<RateLimitLayer<K, S, R>>,
}

impl<I, K: Rules, S, R> Layer<I> for RateLimitLayer<K, S, R> {
    type Service = RateLimit<I, K, S, R>;

    fn layer(&self, inner: I) -> Self::Service {
        self.advise();
        let mut layer = self.clone();
        layer.settings.prepare(&rule::infos(&*self.rules));
        RateLimit {
            inner,
            layer: Arc::new(layer),
        }
    }
}

impl<I, K, S, R> RateLimit<I, K, S, R> {
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
    B: 'static,
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
        let replace_on_panic = ReplaceOnPanic(&mut self.inner);
        let admission = Gate::new(&self.layer, &RequestHead::from(&request)).admit();
        // No panic: the service keeps its readiness.
        mem::forget(replace_on_panic);
        match admission {
            Admission::Admitted(lines) => ResponseFuture {
                state: State::running(&mut self.inner, request, lines),
            },
            Admission::Extended(mut context) => {
                context.begin_handler(request.extensions_mut());
                let future = self.inner.call(request);
                let context = Some(context);
                ResponseFuture {
                    state: State::Extended { future, context },
                }
            }
            Admission::Rejected(response) => {
                // `poll_ready` may have reserved a permit, which an idle connection must not hold.
                self.inner = self.inner.clone();
                let drain = &self.layer.settings.drain;
                ResponseFuture {
                    state: State::rejected(drain, request, response),
                }
            }
            step @ (Admission::Waiting(_) | Admission::Deciding(_)) => ResponseFuture {
                state: Parked::new(self, request, step).into_state(),
            },
        }
    }
}

/// Guard that replaces the inner service with a fresh clone if the decision panics.
///
/// `poll_ready` may have reserved a permit. If the server catches the panic, an idle connection
/// must not hold that permit.
struct ReplaceOnPanic<'a, I: Clone>(&'a mut I);

impl<I: Clone> Drop for ReplaceOnPanic<'_, I> {
    fn drop(&mut self) {
        *self.0 = self.0.clone();
    }
}

impl<I: Clone, K, S, R> Clone for RateLimit<I, K, S, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<I: fmt::Debug, K, S: fmt::Debug, R> fmt::Debug for RateLimit<I, K, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("store", &self.layer.store)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// Future of a [`RateLimit`](crate::RateLimit) service.
    ///
    /// Requests that wait for the store or in the queue are boxed, and so are rejections whose body is read.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<I, K, S, R, B>
    where
        I: Service<Request<B>>,
        S: Store,
    {
        #[pin]
        state: State<I, K, S, R, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<I, K, S, R, B>
    where
        I: Service<Request<B>>,
        S: Store,
    {
        Running { #[pin] future: I::Future, lines: Option<Lines> },
        Extended { #[pin] future: I::Future, context: Option<Box<ResponseContext>> },
        Rejected { response: Option<I::Response> },
        Draining { draining: Option<Box<Draining<I::Response>>> },
        Parked { parked: Option<Box<Parked<I, K, S, R, B>>> },
    }
}

impl<I, K, S, R, B, C> State<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>>,
    S: Store,
    B: 'static,
{
    /// Runs a request whose response gets these header fields, if any.
    #[inline(always)]
    fn running(inner: &mut I, request: Request<B>, lines: Option<Lines>) -> Self {
        let future = inner.call(request);
        Self::Running { future, lines }
    }

    /// Returns the state of a rejected request.
    #[inline]
    fn rejected(drain: &DrainConfig, request: Request<B>, mut response: Response<C>) -> Self {
        if drain::may_be_unread(&request) {
            match drain.read(request) {
                None => drain::close(&mut response),
                Some(reading) => {
                    let draining = Some(Box::new(Draining { response, reading }));
                    return Self::Draining { draining };
                }
            }
        }
        Self::Rejected {
            response: Some(response),
        }
    }
}

/// A request that does not run yet, with the service that will run it.
struct Parked<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    inner: I,
    /// `true` if the service is ready.
    is_ready: bool,
    layer: Arc<RateLimitLayer<K, S, R>>,
    request: Request<B>,
    /// The last step. If it admits the request, the service is not ready yet.
    step: Admission<I::Response, S>,
}

impl<I, K, S, R, B, C> Future for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    B: 'static,
    C: 'static,
{
    type Output = Result<Response<C>, I::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // The response stays as it is.
                StateProj::Running {
                    future,
                    lines: None,
                } => return future.poll(cx),
                StateProj::Running { future, lines } => {
                    let mut polled = future.poll(cx);
                    if let Poll::Ready(Ok(response)) = &mut polled {
                        take(lines).write(response.headers_mut());
                    }
                    return polled;
                }
                StateProj::Extended { future, context } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(take(context).apply(response)));
                }
                StateProj::Rejected { response } => return Poll::Ready(Ok(take(response))),
                StateProj::Draining { draining } => {
                    let Some(pending) = draining else {
                        panic!("{COMPLETED}");
                    };
                    ready!(pending.poll_rest(cx));
                    return Poll::Ready(Ok(take(draining).response));
                }
                StateProj::Parked { parked: place } => {
                    // A panic or an error drops the service and its permit, and a charge that still waits
                    // for its turn is undone.
                    let mut parked = take(place);
                    match parked.poll_step(cx)? {
                        Poll::Ready(step) => {
                            parked.step = step;
                            state.set(parked.into_state());
                        }
                        Poll::Pending => {
                            *place = Some(parked);
                            return Poll::Pending;
                        }
                    }
                }
            }
        }
    }
}

impl<I, K, S, R, B, C> Parked<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    B: 'static,
    C: 'static,
{
    /// Takes the ready service for a request that does not run yet.
    fn new(
        service: &mut RateLimit<I, K, S, R>,
        request: Request<B>,
        step: Admission<Response<C>, S>,
    ) -> Box<Self> {
        let clone = service.inner.clone();
        Box::new(Self {
            inner: mem::replace(&mut service.inner, clone),
            is_ready: true,
            layer: service.layer.clone(),
            request,
            step,
        })
    }

    /// Returns the state that begins with the current step.
    ///
    /// A rejection drops the ready service, which releases any permit of a concurrency limit, before
    /// the body is read.
    fn into_state(mut self: Box<Self>) -> State<I, K, S, R, B> {
        match self.step {
            Admission::Rejected(response) => {
                return State::rejected(&self.layer.settings.drain, self.request, response);
            }
            Admission::Admitted(lines) if self.is_ready => {
                return State::running(&mut self.inner, self.request, lines);
            }
            Admission::Extended(mut context) if self.is_ready => {
                context.begin_handler(self.request.extensions_mut());
                let future = self.inner.call(self.request);
                let context = Some(context);
                return State::Extended { future, context };
            }
            Admission::Waiting(_) => {
                // A waiting request must not hold a permit of a limit.
                self.inner = self.inner.clone();
                self.is_ready = false;
            }
            Admission::Admitted(_) | Admission::Extended(_) | Admission::Deciding(_) => {}
        }
        State::Parked { parked: Some(self) }
    }

    /// Returns the next step once the current step is complete.
    fn poll_step(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Admission<Response<C>, S>, I::Error>> {
        let head = RequestHead::from(&self.request);
        let gate = Gate::new(&self.layer, &head);
        let runs = match &mut self.step {
            Admission::Deciding(pending) => {
                return gate.resume(pending.as_mut(), cx).map(Ok);
            }
            Admission::Waiting(queued) => {
                ready!(queued.poll_wait(cx));
                queued.is_charged()
            }
            // Only the inner service is waited for.
            _ => true,
        };
        if runs {
            ready!(self.inner.poll_ready(cx))?;
            self.is_ready = true;
        }
        // The caller sets the next step.
        let step = mem::replace(&mut self.step, Admission::Admitted(None));
        Poll::Ready(Ok(match step {
            Admission::Waiting(queued) => gate.end_wait(queued),
            step => step,
        }))
    }
}

const COMPLETED: &str = "a response future was polled after completion";

fn take<T>(held: &mut Option<T>) -> T {
    match held.take() {
        Some(held) => held,
        None => panic!("{COMPLETED}"),
    }
}

impl<I, K, S, R, B> fmt::Debug for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
