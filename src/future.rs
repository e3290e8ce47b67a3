//! The response of a limited service.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower::Service;

use tokio::time::Sleep;

use crate::{
    gate::{Gate, Verdict},
    pass::{Pass, Place, Ticket},
    reject::Reject,
    rule::Rules,
    store::{CannotFail, Store},
};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service.
    ///
    /// A request admitted or refused at once carries a few words more than the inner future; only
    /// one that has to wait, for its decision or for its place, is boxed.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<I, K, S, R, B>
    where
        I: Service<Request<B>>,
        S: Store,
    {
        #[pin]
        state: State<
            I::Future,
            I::Response,
            Pin<Box<Asking<I, K, S, R, B>>>,
            Pin<Box<Delayed<I, K, S, R, B>>>,
        >,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, Res, A, D> {
        Asking { asking: A },
        Delayed { delayed: D },
        Running { #[pin] future: F, pass: Pass },
        Rejected { response: Option<Res> },
    }
}

pin_project! {
    /// A request whose decision is on its way, with the service that is ready for it.
    pub(crate) struct Asking<I, K, S, R, B>
    where
        S: Store,
    {
        #[pin]
        answer: S::Future,
        waiting: Option<(Waiting<I, K, S, R, B>, Ticket)>,
    }
}

pin_project! {
    /// An admitted request whose place has not come up.
    pub(crate) struct Delayed<I, K, S, R, B>
    where
        S: Store,
    {
        #[pin]
        sleep: Sleep,
        waiting: Option<(Waiting<I, K, S, R, B>, Place<S>)>,
    }
}

/// A request and the service it will go to.
pub(crate) struct Waiting<I, K, S, R, B> {
    pub(crate) inner: I,
    pub(crate) gate: Arc<Gate<K, S, R>>,
    pub(crate) parts: Parts,
    pub(crate) body: B,
}

impl<I, K, S, R, B> ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    #[inline]
    pub(crate) fn running(future: I::Future, pass: Pass) -> Self {
        Self { state: State::Running { future, pass } }
    }

    #[inline]
    pub(crate) fn rejected(response: I::Response) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    /// `waiting` has the service that is ready.
    pub(crate) fn asking(
        answer: S::Future,
        waiting: Waiting<I, K, S, R, B>,
        ticket: Ticket,
    ) -> Self {
        let waiting = Some((waiting, ticket));
        Self { state: State::Asking { asking: Box::pin(Asking { answer, waiting }) } }
    }

    /// `waiting` has a service that has yet to become ready: a place inside it is not held
    /// meanwhile.
    pub(crate) fn delayed(place: Place<S>, waiting: Waiting<I, K, S, R, B>) -> Self {
        Self { state: State::Delayed { delayed: Delayed::new(place, waiting) } }
    }
}

impl<I, K, S, R, B, C> Future for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
{
    type Output = Result<Response<C>, I::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Asking { asking } => ready!(asking.as_mut().poll_decision(cx)),
                StateProj::Delayed { delayed } => ready!(delayed.as_mut().poll_place(cx))?,
                StateProj::Running { future, pass } => {
                    if pass.is_empty() {
                        return future.poll(cx);
                    }
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(mem::take(pass).stamp(response)));
                }
                StateProj::Rejected { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => panic!("a response future was polled after it had resolved"),
                },
            };
            state.set(next);
        }
    }
}

impl<I, K, S, R, B> Asking<I, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// The decision turned into the next state. A refusal drops the inner service, and with it the
    /// readiness that was reserved there.
    fn poll_decision<C, A>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Next<I, K, S, R, B, A>>
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
        R: Reject<C>,
    {
        let this = self.project();
        let decision = ready!(this.answer.poll(cx));
        let Some((mut waiting, ticket)) = this.waiting.take() else {
            panic!("a decision was polled after it had been made");
        };
        Poll::Ready(match waiting.gate.conclude(decision, ticket, &mut waiting.parts) {
            Verdict::Pass(pass) => waiting.run(pass),
            Verdict::Wait(place) => {
                let fresh = waiting.inner.clone();
                waiting.inner = fresh;
                State::Delayed { delayed: Delayed::new(place, waiting) }
            }
            Verdict::Refuse(response) => State::Rejected { response: Some(response) },
        })
    }
}

impl<I, K, S, R, B> Delayed<I, K, S, R, B>
where
    S: Store,
{
    fn new(place: Place<S>, waiting: Waiting<I, K, S, R, B>) -> Pin<Box<Self>> {
        let sleep = tokio::time::sleep(place.wait());
        Box::pin(Self { sleep, waiting: Some((waiting, place)) })
    }
}

impl<I, K, S, R, B> Delayed<I, K, S, R, B>
where
    K: Rules,
    S: Store,
{
    /// Runs the request once its place has come up and the service is ready for it. Dropped
    /// before, it gives its place back; if the service fails, it does so at once.
    fn poll_place<A>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Next<I, K, S, R, B, A>, I::Error>>
    where
        I: Service<Request<B>>,
    {
        let this = self.project();
        ready!(this.sleep.poll(cx));
        if let Some((waiting, _)) = this.waiting
            && let Err(error) = ready!(waiting.inner.poll_ready(cx))
        {
            *this.waiting = None;
            return Poll::Ready(Err(error));
        }
        let Some((mut waiting, place)) = this.waiting.take() else {
            panic!("a place was polled after it had come up");
        };
        let pass = waiting.gate.resume(place, &mut waiting.parts);
        Poll::Ready(Ok(waiting.run(pass)))
    }
}

type Next<I, K, S, R, B, A> = State<
    <I as Service<Request<B>>>::Future,
    <I as Service<Request<B>>>::Response,
    A,
    Pin<Box<Delayed<I, K, S, R, B>>>,
>;

impl<I: Service<Request<B>>, K, S, R, B> Waiting<I, K, S, R, B> {
    fn run<A, D>(self, pass: Pass) -> State<I::Future, I::Response, A, D> {
        let Self { mut inner, parts, body, .. } = self;
        let future = inner.call(Request::from_parts(parts, body));
        State::Running { future, pass }
    }
}

impl<I, K, S, R, B> fmt::Debug for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Asking { .. } => "asking",
            State::Delayed { .. } => "delayed",
            State::Running { .. } => "running",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
