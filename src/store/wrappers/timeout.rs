//! A time limit for answers of a store.

use std::{
    error::Error,
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use tower::BoxError;

use super::forward;
use crate::{
    decision::Decision,
    observe::store_failed,
    store::{Answer, BoxFuture, Context, Health, Op, Store},
};

/// Store that returns an error if an answer takes longer than a limit.
///
/// Each call has the whole time. With [leases](crate::store::Leased) around this store, a request
/// may make several calls. A call that timed out is not retried, because its charge may have been
/// made. An immediate answer is not changed.
///
/// A process that is too busy to send a request or to read an answer is no outage. A `RedisStore`
/// therefore [keeps](crate::store::Context::keep_limit) the limit by itself: a call fails after this
/// time if the server is silent. Otherwise, an answer is accepted until ten times the limit has passed, at
/// most for 20 s. Then the request is denied by [`Source::Busy`](crate::decision::Source::Busy), under every
/// policy. For any other store, the time of the call is counted.
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
    limit: Duration,
}

impl Timeout<()> {
    /// The default limit of 100 ms.
    pub const DEFAULT: Duration = Duration::from_millis(100);
}

impl<S> Timeout<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, limit: Duration) -> Self {
        assert!(
            !limit.is_zero(),
            "timeout: limit is 0 s; give the store time to answer, such as 100 ms (Timeout::DEFAULT)"
        );
        Self { inner, limit }
    }
}

impl<S: Store + 'static> Store for Timeout<S>
where
    TimeoutError<S::Error>: Into<BoxError>,
{
    type Error = TimeoutError<S::Error>;
    type Future = BoxFuture<Result<Decision, Self::Error>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let start = Instant::now();
        // This tells another timeout around this one not to count, because this one does.
        let outer = context.keep_limit();
        let limit = outer.map_or(self.limit, |outer| outer.min(self.limit));
        let is_kept = AtomicBool::new(false);
        let context = Context {
            limit: Some(limit),
            is_kept: Some(&is_kept),
            ..*context
        };
        match self.inner.call(op, &context) {
            Answer::Later(later) if !is_kept.load(Relaxed) => Answer::Later(Box::pin(async move {
                let left = limit.saturating_sub(start.elapsed());
                let answer = timeout(left, later).await;
                let decision = answer.map_err(|_| elapsed(limit))?;
                decision.map_err(TimeoutError::Store)
            })),
            answer => answer.then(|decision| decision.map_err(TimeoutError::Store)),
        }
    }

    forward!(self => self.inner; undo, supports, register, known_rules, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let limit = self.limit;
        let inner = self.inner.health();
        Box::pin(async move {
            match timeout(limit, inner).await {
                Ok(inner) => Health::healthy("timeout", format!("{limit:?}")).around(inner),
                Err(_) => Health::failing("timeout", format!("no answer within {limit:?}")),
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
    /// The store took longer than this limit. The charge may still be made.
    Elapsed(Duration),
    /// The store failed.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for TimeoutError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(limit) => {
                write!(
                    f,
                    "no answer within {limit:?}; the charge may still have been made"
                )
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// `E` need not be an [`Error`], because a [`BoxError`] is none.
impl<E: fmt::Debug + fmt::Display> Error for TimeoutError<E> {}

fn elapsed<E>(limit: Duration) -> TimeoutError<E> {
    store_failed("timeout");
    TimeoutError::Elapsed(limit)
}
