//! The start of a request that calls its store more than once, or waits before it does.
//!
//! A [`Timeout`](super::Timeout) counts from this start, so that all calls and waits of a request
//! share one budget. Wrappers between the two pass it on, because they call their inner store
//! before they return.

use std::cell::Cell;

use tokio::time::Instant;

use crate::store::{Answer, Op, Store};

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the start of the request whose store is being called, if it is not this call.
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
