//! A time limit for answers of a store.

use std::{error::Error, fmt, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    patience::within,
    wrapper::{forward, request_start},
};
use crate::{
    decision::Decision,
    observe::store_failed,
    store::{Answer, BoxError, BoxFuture, Health, Op, Store},
};

/// Store that returns an error if an answer takes longer than a time budget.
///
/// With [leases](crate::store::Leased) around this store, a request may make several calls. All
/// calls and waits of the request share one budget. A call that timed out is not retried, because
/// its charge may have been made. An immediate answer is not changed.
///
/// Time in which the caller's own runtime was busy does not count: the request may not have been
/// sent, or its answer may not have been read. A request is therefore answered within the budget,
/// the time for which the runtime was late, and a quarter of the budget to read an answer.
///
/// To limit the time that a *request* may queue, use
/// [`RequestDeadline`](crate::rule::RequestDeadline).
///
/// ```
/// use tower_sluice::{LocalStore, StoreExt, store::Timeout};
///
/// let store = LocalStore::new().timeout(Timeout::DEFAULT); // In production: a remote store.
/// ```
///
/// # Panics
///
/// A future panics if it is polled outside of a tokio runtime with its timer enabled.
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    inner: S,
    budget: Duration,
}

impl Timeout<()> {
    /// The default budget of 100 ms.
    pub const DEFAULT: Duration = Duration::from_millis(100);
}

impl<S> Timeout<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, budget: Duration) -> Self {
        assert!(
            !budget.is_zero(),
            "timeout: limit is 0 s; give the store time to answer, such as 100 ms (Timeout::DEFAULT)"
        );
        Self { inner, budget }
    }
}

impl<S: Store + 'static> Store for Timeout<S>
where
    TimeoutError<S::Error>: Into<BoxError>,
{
    type Error = TimeoutError<S::Error>;
    type Future = BoxFuture<Result<Decision, Self::Error>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let (now, budget) = (Instant::now(), self.budget);
        let start = request_start(op).unwrap_or(now);
        if now.saturating_duration_since(start) >= budget {
            return Answer::Now(Err(elapsed(budget)));
        }
        match self.inner.call(op) {
            Answer::Now(decision) => Answer::Now(decision.map_err(TimeoutError::Store)),
            Answer::Later(later) => Answer::Later(Box::pin(async move {
                match within(budget.saturating_sub(start.elapsed()), later).await {
                    Some(decision) => decision.map_err(TimeoutError::Store),
                    None => Err(elapsed(budget)),
                }
            })),
        }
    }

    forward!(self => self.inner; undo, supports, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let (budget, inner) = (self.budget, self.inner.health());
        Box::pin(async move {
            match timeout(budget, inner).await {
                Ok(inner) => Health::healthy("timeout", format!("{budget:?}")).around(inner),
                Err(_) => Health::failing("timeout", format!("no answer within {budget:?}")),
            }
        })
    }
}

/// Error of a [`Timeout`] store.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutError<E> {
    /// The store took longer than this budget. The charge may still be made.
    Elapsed(Duration),
    /// The store failed.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for TimeoutError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(budget) => {
                write!(f, "no answer within {budget:?}; the charge may still have been made")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// Requires `Display`, because [`BoxError`] does not implement [`Error`].
impl<E: fmt::Debug + fmt::Display> Error for TimeoutError<E> {}

fn elapsed<E>(budget: Duration) -> TimeoutError<E> {
    store_failed("timeout");
    TimeoutError::Elapsed(budget)
}
