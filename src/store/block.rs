//! The error for a key that could not be blocked.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{Answer, Charge, Never, Op, Store};
use crate::decision::{Cause, Decision};

/// Error for a key that could not be blocked.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Limiter, LocalStore, store::BlockError};
///
/// let limiter = Limiter::named("default", LocalStore::with_capacity(16)); // A table of 16 blocks.
/// let mut blocks = (0..17_u64).map(|key| limiter.block(key, Duration::from_secs(60)).now());
/// assert_eq!(blocks.find_map(Result::err), Some(BlockError::Full));
/// ```
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockError<E = Infallible> {
    /// The store's table of blocks is full.
    ///
    /// A key stays in the table until its block ends or the key is unblocked.
    Full,
    /// The store does not support blocks.
    Unsupported,
    /// The store failed, and a [`FailOpen`](super::FailOpen) or [`FailClosed`](super::FailClosed)
    /// answered instead, or this process is too busy to read the answer.
    Unavailable,
    /// The store failed.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for BlockError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str(
                "the key is not blocked: the table of blocks is full; unblock other keys, or pass \
                 a larger number to LocalStore::with_capacity",
            ),
            Self::Unsupported => f.write_str(
                "the key is not blocked: the store does not support blocks; use another store",
            ),
            Self::Unavailable => f.write_str(
                "the key is not blocked: the store failed; try again when it is healthy",
            ),
            Self::Store(error) => write!(f, "the key is not blocked: {error}"),
        }
    }
}

impl<E: Error + 'static> Error for BlockError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Full | Self::Unsupported | Self::Unavailable => None,
        }
    }
}

/// Blocks a key. Fails if the key is not blocked.
pub(crate) fn block<S: Store>(
    store: &S,
    charge: &Charge<'_>,
    time: Duration,
) -> Answer<BlockFuture<S::Future>> {
    match store.call(Op::Block(charge, time), &super::Context::default()) {
        Answer::Now(answer) => Answer::Now(blocked(answer)),
        Answer::Later(inner) => Answer::Later(BlockFuture { inner }),
    }
}

fn blocked<E>(answer: Result<Decision, E>) -> Result<Decision, BlockError<E>> {
    let decision = answer.map_err(BlockError::Store)?;
    let cause = decision.cause();
    if cause.is_undone() {
        Err(BlockError::Unavailable)
    } else if cause == Cause::Unsupported {
        Err(BlockError::Unsupported)
    } else if !decision.is_allowed() {
        Err(BlockError::Full)
    } else {
        Ok(decision)
    }
}

pin_project! {
    /// Future of [`Limiter::block`](crate::Limiter::block), around the future of the store.
    #[derive(Debug)]
    pub struct BlockFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<E, F: Future<Output = Result<Decision, E>>> Future for BlockFuture<F> {
    type Output = Result<Decision, BlockError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().inner.poll(cx).map(blocked)
    }
}

impl Answer<BlockFuture<Never<Result<Decision, Infallible>>>> {
    /// Returns the answer. Available for stores that answer immediately.
    ///
    /// # Errors
    ///
    /// Fails if the store did not block the key.
    pub fn now(self) -> Result<Decision, BlockError> {
        match self {
            Self::Now(answer) => answer,
            Self::Later(later) => match later.inner.0 {},
        }
    }
}
