//! Statistics of the decisions of a layer.

#[cfg(feature = "axum")]
use std::any::TypeId;
use std::{
    any::type_name,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{key::KeyError, log::error};

/// Counters for the decisions of a layer. Clones share the counts.
///
/// Pass a reference to [`count`](crate::RateLimitLayer::count), and keep the counters to read them.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<[AtomicU64; 6]>);

/// Snapshot of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were allowed. Includes overage.
    pub allowed: u64,
    /// Requests that were denied by a decision of the store.
    pub denied: u64,
    /// Requests that a report-only rule or layer would have denied.
    pub would_deny: u64,
    /// Requests that were allowed beyond a quota.
    pub overage: u64,
    /// Requests that were allowed after a wait in the queue.
    pub delayed: u64,
    /// Requests that were rejected without a store call.
    ///
    /// These requests had no usable key, or were on a deny list.
    pub unkeyed: u64,
}

/// A counted event of a request, the index of its counter.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Allowed,
    Denied,
    WouldDeny,
    Overage,
    Delayed,
    Unkeyed,
}

impl Counters {
    /// Creates counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current counts.
    ///
    /// The counters are read one after another, so some counts may miss a concurrent request.
    #[must_use]
    pub fn snapshot(&self) -> Counts {
        let [allowed, denied, would_deny, overage, delayed, unkeyed] =
            self.0.each_ref().map(|count| count.load(Relaxed));
        Counts { allowed, denied, would_deny, overage, delayed, unkeyed }
    }

    pub(crate) fn add(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Relaxed);
    }
}

/// Logs that the server provides no peer address, at most once per minute.
///
/// `B` is the type of the response body.
pub(super) fn log_no_peer<B: 'static>(error: &KeyError) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut last) = LAST.try_lock() else { return };
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
        *last = Some(Instant::now());
        let hint = if is_of_another_axum::<B>() {
            "; this server is of another version of axum, whose ConnectInfo cannot be read: use \
             axum 0.8, or insert the SocketAddr into the extensions of each request"
        } else {
            ""
        };
        error!("every request is rejected with 500: {error}{hint}");
    }
}

/// Returns `true` for the body type of another version of axum.
///
/// Extensions of a request cannot be listed, so the response is the only sign of the version.
fn is_of_another_axum<B: 'static>() -> bool {
    #[cfg(feature = "axum")]
    if TypeId::of::<B>() == TypeId::of::<axum::body::Body>() {
        return false;
    }
    cfg!(feature = "axum") && type_name::<B>().ends_with("axum_core::body::Body")
}
