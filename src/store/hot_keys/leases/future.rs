//! The future of the lease store.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::Leases;
use crate::{
    decision::Decision,
    store::{Answer, BoxFuture, Store},
};

pin_project! {
    /// Future of a [`Leased`](crate::store::Leased) store.
    pub struct LeasedFuture<S: Store> {
        #[pin]
        state: LeasedState<S>,
    }
}

pin_project! {
    #[project = LeasedStateProj]
    enum LeasedState<S: Store> {
        Inner { #[pin] inner: S::Future },
        Boxed { decision: BoxFuture<Result<Decision, S::Error>> },
    }
}

impl<S: Store> LeasedFuture<S> {
    pub(super) fn inner(answer: Answer<S::Future>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => Answer::Later(Self { state: LeasedState::Inner { inner } }),
        }
    }

    pub(super) fn boxed(
        answer: Answer<impl Future<Output = Result<Decision, S::Error>> + Send + 'static>,
    ) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(decision) => {
                Answer::Later(Self { state: LeasedState::Boxed { decision: Box::pin(decision) } })
            }
        }
    }
}

impl<S: Store> Future for LeasedFuture<S> {
    type Output = Result<Decision, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            LeasedStateProj::Inner { inner } => inner.poll(cx),
            LeasedStateProj::Boxed { decision } => decision.as_mut().poll(cx),
        }
    }
}

impl<S: Store> fmt::Debug for LeasedFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedFuture").finish_non_exhaustive()
    }
}

/// Ends the leases of an account on drop, after a reset or a block.
///
/// The units of that account are not returned, because a reset may have removed the charge.
pub(super) struct EndOnDrop<S: Store> {
    pub(super) leases: Arc<Leases<S>>,
    pub(super) account: u64,
}

impl<S: Store> Drop for EndOnDrop<S> {
    fn drop(&mut self) {
        let ended = self.leases.table.end_account(self.account);
        self.leases.return_except(&ended, Some(self.account));
    }
}
