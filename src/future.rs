//! The response of a limited service.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower::Service;

use crate::{
    gate::{Gate, Pass},
    reject::Reject,
    store::{CannotFail, Store},
};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service.
    ///
    /// A request admitted or refused at once carries a few words more than the inner future; only
    /// one that has to wait for its decision is boxed.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<I, K, S, R, B>
    where
        I: Service<Request<B>>,
        S: Store,
    {
        #[pin]
        state: State<I::Future, I::Response, Pin<Box<Asking<I, K, S, R, B>>>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, Res, A> {
        Asking { asking: A },
        Running { #[pin] future: F, pass: Option<Pass> },
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
        waiting: Option<Waiting<I, K, S, R, B>>,
    }
}

struct Waiting<I, K, S, R, B> {
    inner: I,
    gate: Arc<Gate<K, S, R>>,
    parts: Parts,
    body: B,
}

impl<I, K, S, R, B> ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>>,
    S: Store,
{
    pub(crate) fn running(future: I::Future, pass: Option<Pass>) -> Self {
        Self { state: State::Running { future, pass } }
    }

    pub(crate) fn rejected(response: I::Response) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    pub(crate) fn asking(
        answer: S::Future,
        inner: I,
        gate: Arc<Gate<K, S, R>>,
        parts: Parts,
        body: B,
    ) -> Self {
        let waiting = Some(Waiting { inner, gate, parts, body });
        Self { state: State::Asking { asking: Box::pin(Asking { answer, waiting }) } }
    }
}

impl<I, K, S, R, B, C> Future for ResponseFuture<I, K, S, R, B>
where
    I: Service<Request<B>, Response = Response<C>>,
    S: Store<Error: CannotFail>,
    R: Reject<C>,
{
    type Output = Result<Response<C>, I::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Asking { asking } => ready!(asking.as_mut().poll_decision(cx)),
                StateProj::Running { future, pass } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some(pass) = pass.take() {
                        pass.stamp(&mut response);
                    }
                    return Poll::Ready(Ok(response));
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
    S: Store<Error: CannotFail>,
{
    /// The decision turned into the next state. A refusal drops the inner service, and with it the
    /// readiness that was reserved there.
    fn poll_decision<C, A>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<State<I::Future, Response<C>, A>>
    where
        I: Service<Request<B>, Response = Response<C>>,
        R: Reject<C>,
    {
        let this = self.project();
        let decision = ready!(this.answer.poll(cx));
        let Some(Waiting { mut inner, gate, mut parts, body }) = this.waiting.take() else {
            panic!("a decision was polled after it had been made");
        };
        Poll::Ready(match gate.conclude(decision, &mut parts) {
            Ok(pass) => {
                let future = inner.call(Request::from_parts(parts, body));
                State::Running { future, pass: Some(pass) }
            }
            Err(response) => State::Rejected { response: Some(response) },
        })
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
            State::Running { .. } => "running",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
