//! Counters for the decisions of a layer.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{DecisionEvent, OnDecision};

/// Hook that counts the decisions of a layer. Clones share the counts.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, middleware::Counters};
///
/// let counters = Counters::new();
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).on_decision(counters.clone());
/// assert_eq!(counters.snapshot().denied, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<[AtomicU64; 6]>);

/// Snapshot of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were allowed. Includes overage.
    pub allowed: u64,
    /// Requests that were denied by the store, or because no body could hold their slots.
    pub denied: u64,
    /// Requests that a report-only rule or layer would have denied.
    pub would_deny: u64,
    /// Requests that were allowed beyond a quota.
    pub overage: u64,
    /// Requests that were allowed after a wait in the queue.
    pub delayed: u64,
    /// Requests that were rejected because they had no usable key, or were on a deny list.
    pub unkeyed: u64,
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
        Counts {
            allowed,
            denied,
            would_deny,
            overage,
            delayed,
            unkeyed,
        }
    }
}

impl OnDecision for Counters {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let admitted = event.is_admitted;
        let decision = event.decision.ok();
        let allowed = decision.is_some_and(|decision| decision.is_allowed());
        let events = [
            admitted && allowed,
            !admitted && decision.is_some(),
            admitted
                && decision.is_none_or(|decision| !decision.is_allowed() || decision.would_deny()),
            admitted && decision.is_some_and(|decision| decision.is_overage()),
            event.is_delayed,
            !admitted && decision.is_none(),
        ];
        for (count, _) in self.0.iter().zip(events).filter(|(_, counts)| *counts) {
            count.fetch_add(1, Relaxed);
        }
    }
}
