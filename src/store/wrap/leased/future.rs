//! The later answers of a leased store.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::{Leases, borrow::Errand, table::Caller};
use crate::{
    decision::Decision,
    store::{Answer, BoxFuture, OwnedCharges, Store},
};

pin_project! {
    /// The later answer of a [`Leased`](crate::store::Leased) store.
    pub struct LeasedFuture<S> where S: Store, S: 'static {
        #[pin]
        state: State<S>,
    }
}

pin_project! {
    #[project = Stage]
    enum State<S> where S: Store, S: 'static {
        /// The inner store's own answer.
        Pass { #[pin] inner: S::Future },
        Change { #[pin] inner: S::Future, ending: Ending<S> },
        Borrow { errand: Errand<S::Error> },
        Wait { turn: BoxFuture<Result<Decision, S::Error>> },
    }
}

impl<S: Store> LeasedFuture<S> {
    pub(super) fn pass(answer: Answer<S::Future>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => Answer::Later(Self { state: State::Pass { inner } }),
        }
    }

    pub(super) fn change(answer: Answer<S::Future>, ending: Ending<S>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => Answer::Later(Self { state: State::Change { inner, ending } }),
        }
    }

    pub(super) fn borrow(answer: Answer<Errand<S::Error>>) -> Answer<Self> {
        match answer {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(errand) => Answer::Later(Self { state: State::Borrow { errand } }),
        }
    }
}

impl<S> LeasedFuture<S>
where
    S: Store + Send + Sync + 'static,
{
    /// Waits until a borrowing has landed, and then decides anew.
    pub(super) fn wait(
        leases: Arc<Leases<S>>,
        caller: Caller,
        flight: u64,
        charges: OwnedCharges,
        waits: u8,
    ) -> Self {
        let turn = Box::pin(async move {
            let landed =
                |cx: &mut Context<'_>| match leases.table.waits(&caller, flight, cx.waker()) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                };
            poll_fn(landed).await;
            let later = match charges.with(|charges| leases.take(charges, waits)) {
                Answer::Now(answer) => return answer,
                Answer::Later(later) => later,
            };
            later.await
        });
        Self { state: State::Wait { turn } }
    }
}

impl<S: Store> Future for LeasedFuture<S> {
    type Output = Result<Decision, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Stage::Pass { inner } | Stage::Change { inner, .. } => inner.poll(cx),
            Stage::Borrow { errand } => Pin::new(errand).poll(cx),
            Stage::Wait { turn } => turn.as_mut().poll(cx),
        }
    }
}

impl<S: Store> fmt::Debug for LeasedFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedFuture").finish_non_exhaustive()
    }
}

/// An account that is being changed. Whatever becomes of the call, what was borrowed until then is
/// over, and stays charged to that account: it may be gone with it.
pub(super) struct Ending<S: Store> {
    leases: Arc<Leases<S>>,
    account: u64,
}

impl<S: Store> Ending<S> {
    pub(super) fn new(leases: Arc<Leases<S>>, account: u64) -> Self {
        Self { leases, account }
    }
}

impl<S: Store> Drop for Ending<S> {
    fn drop(&mut self) {
        let over = self.leases.table.end(self.account);
        self.leases.give_back_but(&over, Some(self.account));
    }
}
