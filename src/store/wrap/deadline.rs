//! Bounds how long an answer may take.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::setting::{SettingError, literal};
use crate::{
    decision::Decision,
    observe::store_failed,
    store::{Answer, BoxError, BoxFuture, Charge, Condition, Store, Unsupported},
};

/// A store whose answers take at most a budget, counted from when it was asked; past it they are
/// an error.
///
/// The budget is for the whole answer, whatever the inner store does meanwhile, and a time-out is
/// not tried again: the charge may have been made, or still be. An answer that is there at once
/// passes untouched.
///
/// It bounds one answer of a store. [`tower_sluice::Deadline`](crate::Deadline) is another thing: how
/// long a *request* may wait for its place.
///
/// ```
/// use tower_sluice::{LocalStore, Store, store::Deadline};
///
/// let store = LocalStore::new().deadline(Deadline::DEFAULT); // in real life a remote one
/// ```
///
/// # Panics
///
/// A later answer needs a tokio runtime with its timer enabled when it is polled, not when it is
/// asked for.
#[derive(Clone, Debug)]
pub struct Deadline<S> {
    inner: S,
    budget: Duration,
}

impl Deadline<()> {
    /// 100 ms: many round trips within a data centre, and little for whoever waits.
    pub const DEFAULT: Duration = Duration::from_millis(100);
}

impl<S> Deadline<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, budget: Duration) -> Self {
        literal(Self::try_new(inner, budget))
    }

    /// [`Store::deadline`] for a budget from outside.
    ///
    /// # Errors
    ///
    /// When `budget` is zero; the error names the field, its value and the fix.
    pub fn try_new(inner: S, budget: Duration) -> Result<Self, SettingError> {
        if budget.is_zero() {
            const FIX: &str = "give a store time to answer, as 100 ms (Deadline::DEFAULT)";
            return Err(SettingError::new("deadline: budget", "0 s", FIX));
        }
        Ok(Self { inner, budget })
    }

    fn bound<F, E>(&self, asked: Instant, answer: Answer<F>) -> Answer<DeadlineFuture<F>>
    where
        F: Future<Output = Result<Decision, E>>,
    {
        let budget = self.budget;
        match answer {
            Answer::Now(decision) => Answer::Now(decision.map_err(DeadlineError::Store)),
            Answer::Later(inner) => {
                Answer::Later(DeadlineFuture { inner, sleep: None, asked, budget })
            }
        }
    }
}

impl<S: Store> Store for Deadline<S>
where
    DeadlineError<S::Error>: Into<BoxError>,
{
    type Error = DeadlineError<S::Error>;
    type Future = DeadlineFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.bound(Instant::now(), self.inner.take(charges))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.bound(Instant::now(), self.inner.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.bound(Instant::now(), self.inner.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.bound(Instant::now(), self.inner.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.bound(Instant::now(), self.inner.unblock(charge))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.inner.undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        let (budget, inner) = (self.budget, self.inner.health());
        Box::pin(async move {
            match timeout(budget, inner).await {
                Ok(inner) => Condition::well("deadline", format!("{budget:?}")).around(inner),
                Err(_) => Condition::failing("deadline", format!("no answer within {budget:?}")),
            }
        })
    }
}

/// Why a [`Deadline`] gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadlineError<E> {
    /// The store took longer than this budget; the charge may still have been made.
    Elapsed(Duration),
    /// The store failed by itself.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for DeadlineError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(budget) => {
                write!(f, "no answer within {budget:?}; the charge may still have been made")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// For every `E` that can be shown, a [`BoxError`] too, which is no [`Error`] itself.
impl<E: fmt::Debug + fmt::Display> Error for DeadlineError<E> {}

pin_project! {
    /// The later answer of a [`Deadline`].
    #[derive(Debug)]
    pub struct DeadlineFuture<F> {
        #[pin]
        inner: F,
        // made when it is first needed: a timer wants a runtime, and most answers are quicker
        #[pin]
        sleep: Option<Sleep>,
        asked: Instant,
        budget: Duration,
    }
}

impl<F, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Decision, DeadlineError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // an answer that is there counts, even where its task was woken too late to see it
        if let Poll::Ready(decision) = this.inner.poll(cx) {
            return Poll::Ready(decision.map_err(DeadlineError::Store));
        }
        if this.sleep.is_none() {
            this.sleep.set(Some(sleep(this.budget.saturating_sub(this.asked.elapsed()))));
        }
        if let Some(sleep) = this.sleep.as_pin_mut() {
            ready!(sleep.poll(cx));
        }
        store_failed("timeout");
        Poll::Ready(Err(DeadlineError::Elapsed(*this.budget)))
    }
}
