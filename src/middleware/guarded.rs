//! Running requests whose slots the store may lose.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::Service;

use super::{admission::Shared, config::ResponseContext};
use crate::{
    head::RequestHead,
    reject::Reject,
    rule::Rules,
    store::{CannotFail, Store},
};

pin_project! {
    /// A running request whose slots the store may lose.
    pub(super) struct Guarded<I, K, S, R, B>
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

impl<I, K, S, R, B> Guarded<I, K, S, R, B>
where
    I: Service<Request<B>>,
{
    pub(super) fn new(
        future: I::Future,
        context: Option<ResponseContext>,
        shared: Arc<Shared<K, S, R>>,
        head: Request<()>,
    ) -> Self {
        Self { future, context, shared, head }
    }

    /// Runs the request. Ends it with a rejection if its slots are lost.
    pub(super) fn poll_running<C>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<C>, I::Error>>
    where
        I: Service<Request<B>, Response = Response<C>>,
        K: Rules,
        S: Store<Error: CannotFail>,
        R: Reject<C>,
        C: 'static,
    {
        let this = self.project();
        let lost = this.context.as_mut().is_some_and(|context| context.lost_slots(cx));
        if lost && let Some(response) = this.shared.reject_lost(&RequestHead::from(&*this.head)) {
            return Poll::Ready(Ok(response));
        }
        let response = ready!(this.future.poll(cx))?;
        Poll::Ready(Ok(match this.context.take() {
            Some(context) => context.apply(response),
            None => response,
        }))
    }
}

/// Copies the head of a request, for a rejection after the request was passed on.
pub(super) fn copy_head<B>(request: &Request<B>) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head.extensions_mut().clone_from(request.extensions());
    head
}
