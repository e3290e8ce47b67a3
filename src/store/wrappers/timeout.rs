//! A time limit for answers of a store.

use std::{
    error::Error, fmt, future::poll_fn, pin::pin, sync::atomic::AtomicBool, task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};

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
/// Time in which the caller's own runtime was busy does not count: the request may not have been
/// sent, or its answer may not have been read. A call is therefore answered within the limit,
/// the time for which the runtime was late, and a quarter of the limit to read an answer.
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
        // Another timeout around this one does not count, because this one does.
        let outer = context.keep_limit();
        let limit = outer.map_or(self.limit, |outer| outer.min(self.limit));
        let is_kept = AtomicBool::new(false);
        let later = match self.inner.call(op, &context.with_kept_limit(limit, &is_kept)) {
            Answer::Now(decision) => return Answer::Now(decision.map_err(TimeoutError::Store)),
            Answer::Later(later) => later,
        };
        if is_kept.into_inner() {
            return Answer::Later(Box::pin(async { later.await.map_err(TimeoutError::Store) }));
        }
        Answer::Later(Box::pin(async move {
            match within(limit.saturating_sub(start.elapsed()), later).await {
                Some(decision) => decision.map_err(TimeoutError::Store),
                None => Err(elapsed(limit)),
            }
        }))
    }

    forward!(self => self.inner; undo, supports, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let (limit, inner) = (self.limit, self.inner.health());
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
                write!(f, "no answer within {limit:?}; the charge may still have been made")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// Requires `Display`, because [`BoxError`] does not implement [`Error`].
impl<E: fmt::Debug + fmt::Display> Error for TimeoutError<E> {}

fn elapsed<E>(limit: Duration) -> TimeoutError<E> {
    store_failed("timeout");
    TimeoutError::Elapsed(limit)
}

/// The number of steps in which the time of an answer passes.
const STEPS: u32 = 4;
/// A timer that is later than this, and than a quarter of its step, shows a busy runtime.
const RESOLUTION: Duration = Duration::from_millis(2);

/// Returns `true` if `now` is the time of the system's clock. A clock that a test moves does not make a
/// timer late.
fn is_real(now: Instant) -> bool {
    let (now, real) = (now.into_std(), std::time::Instant::now());
    real.saturating_duration_since(now).max(now.saturating_duration_since(real)) < RESOLUTION
}

/// Returns the output of `future`, or `None` if it takes longer than `time`.
pub(in crate::store) async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    while_idle(time / STEPS, STEPS, future).await.0
}

/// Returns the output of `future`, or `None` if it takes longer than `steps` of the time `step`. Also
/// returns the time of the steps in which the runtime was busy with other work.
///
/// A timer is late while the runtime is busy. In this time, the request may not have been sent, or
/// the answer may have arrived without being read.
pub(in crate::store) async fn while_idle<F: Future>(
    step: Duration,
    mut steps: u32,
    future: F,
) -> (Option<F::Output>, Duration) {
    let (mut future, mut busy) = (pin!(future), Duration::ZERO);
    let (mut from, mut is_extended) = (Instant::now(), false);
    loop {
        let due = from + step;
        // The timer starts when the future is pending, because it needs a runtime.
        let mut timer = pin!(async move { sleep_until(due).await });
        let output = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        });
        let output = output.await;
        let now = Instant::now();
        let is_late = now > due + RESOLUTION.max(step / 4) && is_real(now);
        if is_late {
            busy += now - from;
        }
        match steps.saturating_sub(1) {
            _ if output.is_some() => return (output, busy),
            // The runtime needs time to read the answer.
            0 if is_late && !is_extended => is_extended = true,
            0 => return (None, busy),
            left => steps = left,
        }
        from = if is_late { now } else { due };
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::advance;

    use super::*;

    const TIME: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn the_time_is_exact_while_the_runtime_is_idle() {
        for micros in [50_000, 45_000, 100_000, 1_000_000] {
            let (time, start) = (Duration::from_micros(micros), Instant::now());
            within(time, pending::<()>()).await;
            let took = start.elapsed();
            assert!(took >= time && took < time + RESOLUTION, "{time:?}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_test_does_not_make_a_timer_late() {
        let (start, timer) = (Instant::now(), tokio::spawn(within(TIME, pending::<()>())));
        tokio::task::yield_now().await;
        advance(TIME).await;
        timer.await.expect("no panic");
        assert!(start.elapsed() <= TIME + RESOLUTION);
    }
}
