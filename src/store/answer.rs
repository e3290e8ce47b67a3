//! Answers of a store, now or later.

use std::{
    convert::Infallible,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

use super::CannotFail;

/// Boxed future that may move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answer of a store: a value now, or a future. Both can be awaited.
///
/// An answer that is dropped may do nothing: a store that calls a server sends nothing before the
/// answer is awaited.
#[derive(Debug)]
#[must_use = "a store such as Redis does nothing until its answer is awaited: add `.await`, or \
              `.now()` for a `LocalStore`"]
pub enum Answer<F: Future> {
    /// The value.
    Now(F::Output),
    /// A future that returns the value.
    Later(F),
}

impl<T> Answer<Never<Result<T, Infallible>>> {
    /// Returns the answer of a store that answers immediately and cannot fail.
    #[inline]
    pub fn now(self) -> T {
        match self {
            Self::Now(Ok(value)) => value,
            Self::Later(never) => match never.0 {},
        }
    }
}

impl<T> Answer<Certain<Never<Result<T, Infallible>>>> {
    /// Returns the answer of a store that answers immediately and cannot fail.
    #[inline]
    pub fn now(self) -> T {
        match self {
            Self::Now(value) => value,
            Self::Later(never) => match never.inner.0 {},
        }
    }
}

/// A value that an answer has before it is awaited, which no answer has.
#[diagnostic::on_unimplemented(
    message = "the decision of an `Answer` is not there yet",
    label = "await the answer first",
    note = "add `.await` before the method, or `.now()` outside of async code if the store is a `LocalStore`"
)]
#[doc(hidden)]
pub trait Awaited {}

/// Methods of a [`Decision`](crate::Decision), for the message of the compiler.
impl<F: Future> Answer<F> {
    #[doc(hidden)]
    pub fn is_allowed(&self) -> bool
    where
        Self: Awaited,
    {
        false
    }
}

impl<T, E: CannotFail, F: Future<Output = Result<T, E>>> Answer<F> {
    /// Returns the answer without its error, which never occurs.
    #[inline]
    pub(crate) fn certain(self) -> Answer<Certain<F>> {
        match self {
            Self::Now(result) => Answer::Now(certain(result)),
            Self::Later(inner) => Answer::Later(Certain { inner }),
        }
    }
}

/// Returns the value of a result that is never an error.
#[inline]
pub(crate) fn certain<T, E: CannotFail>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => error.never(),
    }
}

impl<F: Future + Send + 'static> Answer<F> {
    /// Applies `finish` to the value, now or later.
    pub(super) fn then<T>(
        self,
        finish: impl FnOnce(F::Output) -> T + Send + 'static,
    ) -> Answer<BoxFuture<T>> {
        match self {
            Self::Now(value) => Answer::Now(finish(value)),
            Self::Later(future) => Answer::Later(Box::pin(async move { finish(future.await) })),
        }
    }

    /// Passes the value to `finish`: now, or by a task, if a Tokio runtime is available.
    pub(crate) fn detach(self, finish: impl FnOnce(F::Output) + Send + 'static) {
        match (self, Handle::try_current()) {
            (Self::Now(value), _) => finish(value),
            (Self::Later(future), Ok(runtime)) => {
                drop(runtime.spawn(async move { finish(future.await) }));
            }
            (Self::Later(_), Err(_)) => {}
        }
    }
}

impl<F: Future> IntoFuture for Answer<F> {
    type Output = F::Output;
    type IntoFuture = Resolve<F>;

    fn into_future(self) -> Resolve<F> {
        match self {
            Self::Now(output) => Resolve {
                output: Some(output),
                future: None,
            },
            Self::Later(future) => Resolve {
                output: None,
                future: Some(future),
            },
        }
    }
}

pin_project_lite::pin_project! {
    /// Future of an awaited [`Answer`].
    #[derive(Debug)]
    pub struct Resolve<F: Future> {
        output: Option<F::Output>,
        #[pin]
        future: Option<F>,
    }
}

impl<F: Future> Future for Resolve<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match (this.future.as_pin_mut(), this.output.take()) {
            (Some(future), _) => future.poll(cx),
            (None, Some(output)) => Poll::Ready(output),
            (None, None) => panic!("an answer was polled after it completed"),
        }
    }
}

pin_project_lite::pin_project! {
    /// Future of a store that cannot fail. It returns the value, not a `Result`.
    ///
    /// Used by the methods of a [`Limiter`](crate::Limiter) on such a store.
    #[derive(Debug)]
    pub struct Certain<F> {
        #[pin]
        pub(super) inner: F,
    }
}

impl<T, E: CannotFail, F: Future<Output = Result<T, E>>> Future for Certain<F> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.project().inner.poll(cx).map(certain)
    }
}

/// Future type of a store that answers immediately. No value of this type exists.
#[derive(Debug)]
pub struct Never<T>(pub(super) Infallible, PhantomData<fn() -> T>);

impl<T> Future for Never<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.0 {}
    }
}
