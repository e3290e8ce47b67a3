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
        Deciding { deciding: Pin<Box<Deciding<I, K, S, R, B>>> },
        Queued { queued: Pin<Box<Queued<I, K, S, R, B>>> },
        Waiting { waiting: Pin<Box<Waiting<I, K, S, R, B>>> },
        Readying { readying: Option<Box<Readying<I, K, S, R, B>>> },
        Running { #[pin] future: I::Future, context: Option<ResponseContext> },
        Rejected { response: Option<I::Response> },
    }
}

pin_project! {
    /// A request during a pending store call.
    struct Deciding<I, K, S, R, B>
    where
        S: Store,
    {
        #[pin]
        decision: S::Future,
        parked: Option<(PendingCharge, Parked<I, K, S, R, B>)>,
    }
}

pin_project! {
    /// An admitted request in the queue.
    struct Queued<I, K, S, R, B>
    where
        S: Store,
    {
        #[pin]
        sleep: Sleep,
        parked: Option<(QueuedCharge<S>, Parked<I, K, S, R, B>)>,
    }
}

pin_project! {
    /// A request that waits for a slot, at most until `end`.
    struct Waiting<I, K, S, R, B> {
        #[pin]
        end: Sleep,
        parked: Option<(Waiter, Parked<I, K, S, R, B>)>,
    }
}

/// An admitted request whose service is not ready yet.
struct Readying<I, K, S, R, B> {
    parked: Parked<I, K, S, R, B>,
    context: Option<ResponseContext>,
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
        match admission {
            Admission::Admitted(context) if parked.is_ready => parked.run(context),
            Admission::Admitted(context) => {
                Self::Readying { readying: Some(Box::new(Readying { parked, context })) }
            }
            Admission::Rejected(response) => Self::Rejected { response: Some(response) },
            Admission::Queued(queued) => {
                parked.give_up_permit();
                let sleep = tokio::time::sleep(queued.wait());
                let parked = Some((queued, parked));
                Self::Queued { queued: Box::pin(Queued { sleep, parked }) }
            }
            Admission::Waiting(waiter) => {
                parked.give_up_permit();
                let end = tokio::time::sleep_until(waiter.end());
                let parked = Some((waiter, parked));
                Self::Waiting { waiting: Box::pin(Waiting { end, parked }) }
            }
            Admission::Deciding(deciding) => {
                let (decision, pending) = *deciding;
                let parked = Some((pending, parked));
                Self::Deciding { deciding: Box::pin(Deciding { decision, parked }) }
            }
        }
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
            let next = match state.as_mut().project() {
                StateProj::Deciding { deciding } => ready!(deciding.as_mut().poll_decision(cx)),
                StateProj::Queued { queued } => ready!(queued.as_mut().poll_turn(cx))?,
                StateProj::Waiting { waiting } => ready!(waiting.as_mut().poll_slot(cx)),
                StateProj::Readying { readying } => {
                    if let Some(it) = readying {
                        ready!(it.parked.inner.poll_ready(cx))?;
                    }
                    match readying.take() {
                        Some(it) => it.parked.run(it.context),
                        None => panic!("a request was polled after completion"),
                    }
                }
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
                StateProj::Rejected { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => panic!("a response future was polled after completion"),
                },
            };
            state.set(next);
        }
    }
}

impl<I, K, S, R, B> Deciding<I, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Returns the next state as soon as the store has answered.
    fn poll_decision<C>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<State<I, K, S, R, B>>
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
        R: Reject<C>,
        C: 'static,
    {
        let this = self.project();
        let mut decision = ready!(this.decision.poll(cx));
        let Some((pending, parked)) = this.parked.take() else {
            panic!("a decision was polled after completion");
        };
        let head = RequestHead::from(&parked.request);
        let admission = parked.shared.resume(&mut decision, pending, &head);
        Poll::Ready(State::new(admission, parked))
    }
}

impl<I, K, S, R, B> Queued<I, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Runs the request after its wait in the queue, once the service is ready.
    ///
    /// If the service fails or the future is dropped, the charge is undone.
    fn poll_turn(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<State<I, K, S, R, B>, I::Error>>
    where
        I: Service<Request<B>>,
    {
        let this = self.project();
        ready!(this.sleep.poll(cx));
        if let Some((_, parked)) = this.parked
            && let Err(error) = ready!(parked.inner.poll_ready(cx))
        {
            *this.parked = None;
            return Poll::Ready(Err(error));
        }
        let Some((queued, parked)) = this.parked.take() else {
            panic!("a queued request was polled after completion");
        };
        let context = parked.shared.dequeue(queued, &RequestHead::from(&parked.request));
        Poll::Ready(Ok(parked.run(context)))
    }
}

impl<I, K, S, R, B> Waiting<I, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Asks again as soon as the request is called, or at the end of its wait.
    fn poll_slot<C>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<State<I, K, S, R, B>>
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
        R: Reject<C>,
        C: 'static,
    {
        let this = self.project();
        let called = this.parked.as_mut().is_none_or(|(it, _)| it.poll_called(cx).is_ready());
        if !called {
            ready!(this.end.poll(cx));
        }
        let Some((waiter, parked)) = this.parked.take() else {
            panic!("a waiting request was polled after completion");
        };
        let head = RequestHead::from(&parked.request);
        let admission = parked.shared.ask_again(waiter, called, &head);
        Poll::Ready(State::new(admission, parked))
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
        let state = match &self.state {
            State::Deciding { .. } => "deciding",
            State::Queued { .. } => "queued",
            State::Waiting { .. } => "waiting",
            State::Readying { .. } => "readying",
            State::Running { .. } => "running",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
