//! Statistics of the decisions of a layer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counters for the decisions of a layer. Clones share the counts.
///
/// Pass a reference to [`count`](crate::RateLimitLayer::count), and keep the value to read the
/// counts.
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
    /// Requests that were allowed, including overage.
    pub allowed: u64,
    /// Requests that were denied by a decision of the store.
    pub denied: u64,
    /// Requests that passed only because a rule or the layer is report-only.
    pub would_deny: u64,
    /// Requests that were allowed as overage.
    pub overage: u64,
    /// Requests that were allowed after a wait in the queue.
    pub delayed: u64,
    /// Requests that were rejected without a call to the store.
    ///
    /// They had no usable identity, or were on a deny list.
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

    /// Returns the current counts, which are not all read at the same instant.
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
