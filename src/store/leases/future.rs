//! The future of the lease store.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{Leases, borrow::Detached, table::CallKey};
use crate::{
    decision::Decision,
    store::{Answer, BoxFuture, OwnedCharges, Store},
};

pin_project! {
    /// Future of a [`Leased`](crate::store::Leased) store.
    pub struct LeasedFuture<S> where S: Store, S: 'static {
        #[pin]
        state: LeasedState<S>,
    }
}

pin_project! {
    #[project = LeasedStateProj]
    enum LeasedState<S> where S: Store, S: 'static {
        Inner { #[pin] inner: S::Future },
        Change { #[pin] inner: S::Future, end_on_drop: EndOnDrop<S> },
        Borrow { detached: Detached<S::Error> },
        Wait { decision: BoxFuture<Result<Decision, S::Error>> },
    }
}

impl<S: Store> LeasedFuture<S> {
    pub(super) fn inner(answer: Answer<S::Future>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => Answer::Later(Self { state: LeasedState::Inner { inner } }),
        }
    }

    pub(super) fn change(answer: Answer<S::Future>, end_on_drop: EndOnDrop<S>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => {
                Answer::Later(Self { state: LeasedState::Change { inner, end_on_drop } })
            }
        }
    }

    pub(super) fn borrow(answer: Answer<Detached<S::Error>>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(detached) => {
                Answer::Later(Self { state: LeasedState::Borrow { detached } })
            }
        }
    }
}

impl<S> LeasedFuture<S>
where
    S: Store + Send + Sync + 'static,
{
    /// Waits until another call has finished borrowing, then decides again.
    pub(super) fn wait(leases: Arc<Leases<S>>, wait: Wait) -> Self {
        let Wait { call, borrow_id, charges, start, waits } = wait;
        let decision = Box::pin(async move {
            let finished =
                |cx: &mut Context<'_>| match leases.table.wait_for(&call, borrow_id, cx.waker()) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                };
            poll_fn(finished).await;
            let later = match charges.with(|charges| leases.take(charges, Some(start), waits)) {
                Answer::Now(answer) => return answer,
                Answer::Later(later) => later,
            };
            later.await
        });
        Self { state: LeasedState::Wait { decision } }
    }
}

/// A call that waits for another call to borrow.
pub(super) struct Wait {
    pub(super) call: CallKey,
    pub(super) borrow_id: u64,
    pub(super) charges: OwnedCharges,
    /// The start of the request.
    pub(super) start: Instant,
    /// The number of waits of the request, including this wait.
    pub(super) waits: u8,
}

impl<S: Store> Future for LeasedFuture<S> {
    type Output = Result<Decision, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            LeasedStateProj::Inner { inner } | LeasedStateProj::Change { inner, .. } => {
                inner.poll(cx)
            }
            LeasedStateProj::Borrow { detached } => Pin::new(detached).poll(cx),
            LeasedStateProj::Wait { decision } => decision.as_mut().poll(cx),
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
    leases: Arc<Leases<S>>,
    account: u64,
}

impl<S: Store> EndOnDrop<S> {
    pub(super) fn new(leases: Arc<Leases<S>>, account: u64) -> Self {
        Self { leases, account }
    }
}

impl<S: Store> Drop for EndOnDrop<S> {
    fn drop(&mut self) {
        let ended = self.leases.table.end_account(self.account);
        self.leases.return_except(&ended, Some(self.account));
    }
}
