//! The smallest limit that denies no request of a trace.

use crate::{quota::Quota, rule::RuleName};

/// The smallest limit of one quota with which no request of a trace is
/// [limited](super::SimulatedDecision::is_limited). Every call is then allowed immediately and
/// without overage. See [`least`](super::least) for an example.
///
/// For GCRA and the token bucket, the limit is the burst at the configured rate. For a window, it
/// is the units per period. The result is exact if the store has enough
/// [room](super::Simulator::least_stats): with one unit less, some call of the trace would be
/// limited. The result is never below the need of a single request. It assumes that the other
/// quotas limit no request.
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
    /// Returns `None` in each of these cases, in which no limit is sufficient or the smallest limit
    /// is unknown:
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
