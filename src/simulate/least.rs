//! The smallest limit that denies no request of a trace.

use crate::{quota::Quota, rule::RuleName};

/// The smallest limit of one quota with which a trace
/// [limits](super::SimulatedDecision::is_limited) no request: every call is allowed immediately and
/// without overage. See [`least`](super::least) for an example.
///
/// For GCRA and the token bucket this is the burst at the configured rate. A window has one number,
/// its units per period. The result is exact as long as there is
/// [room](super::Simulator::least_stats): with one unit less, some call of the trace would be
/// limited. The need of a single request is the lower bound. The result for one quota holds if the
/// other quotas limit nothing.
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
    /// `None` if no limit is sufficient or the limit is unknown:
    ///
    /// - the trace needs more units than a quota can have;
    /// - the quota is [blocked](Quota::blocked);
    /// - the quota starts at [`initial`](Quota::initial) units;
    /// - the quota is a window that [carries over](crate::Algorithm::carry_over);
    /// - the quota is a [paced](crate::Algorithm::paced) window, and a second unit is needed in the
    ///   first instant of a window.
    #[must_use = "this returns the found quota and changes nothing"]
    pub fn quota(&self) -> Option<Quota> {
        let units = u32::try_from(self.most?).ok()?;
        self.given.with_limit(units).ok()
    }
}
