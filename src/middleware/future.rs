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
    queue::QueuedCharge,
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
        Running { #[pin] future: I::Future, context: Option<ResponseContext> },
        Guarded { guarded: Pin<Box<Guarded<I, K, S, R, B>>> },
        Ready { response: Option<I::Response> },
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
    /// A running request whose slots the store may lose.
    struct Guarded<I, K, S, R, B>
    where
        I: Service<Request<B>>,
    {
        #[pin]
        future: I::Future,
        context: Option<ResponseContext>,
        shared: Arc<Shared<K, S, R>>,
        head: Request<()>,
    }
}

/// A waiting request, with the service that will run it.
pub(super) struct Parked<I, K, S, R, B> {
    pub(super) inner: I,
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
        Self { state: State::Ready { response: Some(response) } }
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
            Admission::Admitted(context) => parked.run(context),
            Admission::Rejected(response) => Self::Ready { response: Some(response) },
            Admission::Queued(queued) => {
                // The service holds no permit during the queue time.
                parked.inner = parked.inner.clone();
                let sleep = tokio::time::sleep(queued.wait());
                let parked = Some((queued, parked));
                Self::Queued { queued: Box::pin(Queued { sleep, parked }) }
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
                StateProj::Guarded { guarded } => ready!(guarded.as_mut().poll_running(cx))?,
                StateProj::Ready { response } => match response.take() {
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
        let context = parked.shared.dequeue(queued);
        Poll::Ready(Ok(parked.run(context)))
    }
}

impl<I, K, S, R, B> Guarded<I, K, S, R, B>
where
    I: Service<Request<B>>,
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Runs the request. Ends it with a rejection if its slots are lost.
    fn poll_running<C>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<State<I, K, S, R, B>, I::Error>>
    where
        I: Service<Request<B>, Response = Response<C>>,
        R: Reject<C>,
        C: 'static,
    {
        let this = self.project();
        let lost = this.context.as_mut().is_some_and(|context| context.lost_slots(cx));
        let rejection =
            if lost { this.shared.reject_lost(&RequestHead::from(&*this.head)) } else { None };
        let response = match rejection {
            Some(response) => response,
            None => {
                let response = ready!(this.future.poll(cx))?;
                match this.context.take() {
                    Some(context) => context.apply(response),
                    None => response,
                }
            }
        };
        Poll::Ready(Ok(State::Ready { response: Some(response) }))
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
        if !context.as_ref().is_some_and(ResponseContext::may_lose_slots) {
            return State::Running { future: self.inner.call(self.request), context };
        }
        let head = copy_head(&self.request);
        let (future, shared) = (self.inner.call(self.request), self.shared);
        State::Guarded { guarded: Box::pin(Guarded { future, context, shared, head }) }
    }
}

/// Copies the head of a request, for a rejection after the request was passed on.
fn copy_head<B>(request: &Request<B>) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head.extensions_mut().clone_from(request.extensions());
    head
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
            State::Running { .. } => "running",
            State::Guarded { .. } => "running",
            State::Ready { .. } => "ready",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
