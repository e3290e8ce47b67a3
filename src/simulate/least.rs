//! The smallest limit that denies no request of a trace.

use crate::{quota::Quota, rule::RuleName};

/// Smallest limit with which a quota limits no request of a trace.
///
/// With this limit, every request is allowed immediately and without overage. See
/// [`least`](super::least) for an example.
///
/// The limit of a window is its units. The limit of any other algorithm is its burst, at the
/// configured rate. The smallest limit is at least the cost plus the headroom of one request.
///
/// The result assumes that no other quota limits a request. If the
/// [capacity](super::Simulator::capacity) was too small, the result may be too large; see
/// [`least_stats`](super::Simulator::least_stats).
#[derive(Clone, Copy, Debug)]
pub struct SmallestBurst {
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) given: Quota,
    pub(super) most: Option<u64>,
}

impl SmallestBurst {
    /// Returns the rule of the quota.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Returns the index of the quota in its rule, from 0.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    /// Returns the quota as configured.
    pub fn given(&self) -> Quota {
        self.given
    }

    /// Returns the quota with the smallest sufficient limit.
    ///
    /// Returns `None` if no limit is sufficient or the smallest limit is unknown:
    ///
    /// - The trace needs more units than a quota can have.
    /// - The quota is [blocked](Quota::blocked).
    /// - The quota has [`initial`](Quota::initial) units.
    /// - The quota is a window that [carries over](crate::Algorithm::carry_over).
    /// - The quota is a [paced](crate::Algorithm::paced) window, and the trace needs two units at
    ///   the start of a window.
    #[must_use = "this returns the found quota and changes nothing"]
    pub fn quota(&self) -> Option<Quota> {
        let units = u32::try_from(self.most?).ok()?;
        self.given.with_limit(units).ok()
    }
}
