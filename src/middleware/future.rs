//! The future of a rate limited service.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower::Service;

use super::{
    admission::{Admission, PendingCharge, Shared},
    config::ResponseContext,
    queue::{QueuedCharge, Waiter},
};
use crate::{
    head::RequestHead,
    reject::Reject,
    rule::Rules,
    store::{CannotFail, Store},
};

pin_project! {
    /// Future of a [`RateLimit`](crate::RateLimit) service.
    ///
    /// Requests that wait for the store or in the queue are boxed.
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
        Suspended { suspended: Pin<Box<Suspended<I, K, S, R, B>>> },
        Running { #[pin] future: I::Future, context: Option<ResponseContext> },
        Rejected { response: Option<I::Response> },
    }
}

pin_project! {
    /// A request that does not run yet.
    struct Suspended<I, K, S, R, B>
    where
        S: Store,
    {
        parked: Option<Parked<I, K, S, R, B>>,
        #[pin]
        step: Awaited<S>,
    }
}

pin_project! {
    /// The event that a request waits for.
    #[project = AwaitedProj]
    enum Awaited<S>
    where
        S: Store,
    {
        /// The answer of the store.
        Deciding { #[pin] decision: S::Future, pending: Option<PendingCharge> },
        /// The turn of a charged request in the queue.
        Queued { #[pin] sleep: Sleep, queued: Option<QueuedCharge<S>> },
        /// A slot, at most until `end`.
        Waiting { #[pin] end: Sleep, waiter: Option<Waiter> },
        /// The service of an admitted request.
        Readying { context: Option<ResponseContext> },
    }
}

/// A waiting request, with the service that will run it.
pub(super) struct Parked<I, K, S, R, B> {
    pub(super) inner: I,
    /// `true` if the service is ready.
    pub(super) is_ready: bool,
    pub(super) shared: Arc<Shared<K, S, R>>,
    pub(super) request: Request<B>,
}

impl<I, K, S, R, B> ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    #[inline]
    pub(super) fn running(future: I::Future, context: Option<ResponseContext>) -> Self {
        Self { state: State::Running { future, context } }
    }

    #[inline]
    pub(super) fn rejected(response: I::Response) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    /// Creates the future of a waiting request. The service in `parked` must be ready.
    pub(super) fn parked<C>(admission: Admission<C, S>, parked: Parked<I, K, S, R, B>) -> Self
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
    {
        Self { state: State::new(admission, parked) }
    }
}

impl<I, K, S, R, B> State<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    /// Creates the state that follows an admission.
    ///
    /// A rejection drops the ready service, which releases any permit of a concurrency limit.
    fn new<C>(admission: Admission<C, S>, mut parked: Parked<I, K, S, R, B>) -> Self
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
    {
        let step = match admission {
            Admission::Rejected(response) => return Self::Rejected { response: Some(response) },
            Admission::Admitted(context) if parked.is_ready => return parked.run(context),
            Admission::Admitted(context) => Awaited::Readying { context },
            Admission::Queued(queued) => {
                parked.give_up_permit();
                Awaited::Queued { sleep: tokio::time::sleep(queued.wait()), queued: Some(queued) }
            }
            Admission::Waiting(waiter) => {
                parked.give_up_permit();
                Awaited::Waiting {
                    end: tokio::time::sleep_until(waiter.end()),
                    waiter: Some(waiter),
                }
            }
            Admission::Deciding(deciding) => {
                let (decision, pending) = *deciding;
                Awaited::Deciding { decision, pending: Some(pending) }
            }
        };
        Self::Suspended { suspended: Box::pin(Suspended { parked: Some(parked), step }) }
    }
}

impl<I, K, S, R, B, C> Future for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    C: 'static,
{
    type Output = Result<Response<C>, I::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Suspended { suspended } => match ready!(suspended.as_mut().poll(cx)) {
                    Ok(next) => state.set(next),
                    Err(error) => {
                        // Undoes the charge.
                        state.set(State::Rejected { response: None });
                        return Poll::Ready(Err(error));
                    }
                },
                StateProj::Running { future, context } => {
                    if context.is_none() {
                        return future.poll(cx);
                    }
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(match context.take() {
                        Some(context) => context.apply(response),
                        None => response,
                    }));
                }
                StateProj::Rejected { response } => return Poll::Ready(Ok(take(response))),
            }
        }
    }
}

impl<I, K, S, R, B, C> Suspended<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    C: 'static,
{
    /// Returns the state after the current step. A panic drops the service and its permit.
    fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<State<I, K, S, R, B>, I::Error>> {
        let this = self.project();
        let mut parked = take(this.parked);
        let polled = parked.poll_step(this.step, cx);
        if polled.is_pending() {
            *this.parked = Some(parked);
            return Poll::Pending;
        }
        polled.map_ok(|admission| State::new(admission, parked))
    }
}

impl<I, K, S, R, B, C> Parked<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>>,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
    C: 'static,
{
    fn poll_step(
        &mut self,
        step: Pin<&mut Awaited<S>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Admission<C, S>, I::Error>> {
        let Self { inner, is_ready, shared, request } = self;
        let head = RequestHead::from(&*request);
        let decider = shared.decider(&head);
        Poll::Ready(Ok(match step.project() {
            AwaitedProj::Deciding { decision, pending } => {
                let mut decision = ready!(decision.poll(cx));
                decider.resume(&mut decision, take(pending))
            }
            AwaitedProj::Queued { sleep, queued } => {
                ready!(sleep.poll(cx));
                ready!(inner.poll_ready(cx))?;
                *is_ready = true;
                Admission::Admitted(decider.dequeue(take(queued)))
            }
            AwaitedProj::Waiting { end, waiter } => {
                let called = waiter.as_mut().is_none_or(|it| it.poll_called(cx).is_ready());
                if !called {
                    ready!(end.poll(cx));
                }
                decider.ask_again(take(waiter), called)
            }
            AwaitedProj::Readying { context } => {
                ready!(inner.poll_ready(cx))?;
                *is_ready = true;
                Admission::Admitted(context.take())
            }
        }))
    }
}

fn take<T>(held: &mut Option<T>) -> T {
    match held.take() {
        Some(held) => held,
        None => panic!("a response future was polled after completion"),
    }
}

impl<I: Clone, K, S, R, B> Parked<I, K, S, R, B> {
    /// Replaces the ready service, so that it holds no permit of a limit during a wait.
    fn give_up_permit(&mut self) {
        self.inner = self.inner.clone();
        self.is_ready = false;
    }
}

impl<I, K, S, R, B> Parked<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    fn run(mut self, context: Option<ResponseContext>) -> State<I, K, S, R, B> {
        if let Some(context) = &context {
            context.attach(&mut self.request);
        }
        State::Running { future: self.inner.call(self.request), context }
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
