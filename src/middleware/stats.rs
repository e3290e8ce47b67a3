//! Statistics of the decisions of a layer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counters for the decisions of a layer. Clones share the counts.
///
/// Pass a reference to [`count`](crate::RateLimitLayer::count), and keep the counters to read them.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<AtomicCounts>);

#[derive(Debug, Default)]
struct AtomicCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    would_deny: AtomicU64,
    overage: AtomicU64,
    delayed: AtomicU64,
    unkeyed: AtomicU64,
}

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

/// A counted event of a request.
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
        let AtomicCounts { allowed, denied, would_deny, overage, delayed, unkeyed } = &*self.0;
        Counts {
            allowed: allowed.load(Relaxed),
            denied: denied.load(Relaxed),
            would_deny: would_deny.load(Relaxed),
            overage: overage.load(Relaxed),
            delayed: delayed.load(Relaxed),
            unkeyed: unkeyed.load(Relaxed),
        }
    }

    pub(crate) fn add(&self, event: Event) {
        let counts = &self.0;
        let counter = match event {
            Event::Allowed => &counts.allowed,
            Event::Denied => &counts.denied,
            Event::WouldDeny => &counts.would_deny,
            Event::Overage => &counts.overage,
            Event::Delayed => &counts.delayed,
            Event::Unkeyed => &counts.unkeyed,
        };
        counter.fetch_add(1, Relaxed);
    }
}
