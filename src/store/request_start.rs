//! The start of a request that calls its store more than once, or waits before the call.
//!
//! A [`Timeout`](super::Timeout) counts from this start, so that all calls and waits of a request
//! share one budget.

use std::cell::Cell;

use tokio::time::Instant;

use crate::store::{Answer, Op, Store};

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the start of the current request, if a wrapper has set the start.
pub(super) fn request_start() -> Option<Instant> {
    START.get()
}

/// Calls a store for a request that started at `start`.
pub(super) fn call_since<S: Store>(store: &S, start: Instant, op: Op<'_>) -> Answer<S::Future> {
    struct Restore(Option<Instant>);

    impl Drop for Restore {
        fn drop(&mut self) {
            START.set(self.0);
        }
    }

    let _restore = Restore(START.replace(Some(start)));
    store.call(op)
}
