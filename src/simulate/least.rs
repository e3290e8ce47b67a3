//! The smallest limit that would have refused nobody.

use crate::{name::RuleName, quota::Quota};

/// The smallest limit of one quota with which a trace [limits](super::Verdict::is_limited) nobody:
/// every call fits at once, nobody waits, and nothing is overage. See [`least`](super::least) for an
/// example.
///
/// For GCRA and the token bucket that is the burst, with the rate as it is. A window has one number,
/// its units per period. It is exact as long as there is [room](super::Simulator::least_stats): with
/// one unit less a call of the trace is limited, unless it is what one request alone needs. What is found for one quota holds where the others limit nobody
/// either.
#[derive(Clone, Copy, Debug)]
pub struct Least {
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) given: Quota,
    pub(super) most: Option<u64>,
}

impl Least {
    /// The rule that charges the quota.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Which of the rule's quotas it is, counted from 0.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    /// The quota as the rule has it.
    pub fn given(&self) -> Quota {
        self.given
    }

    /// The quota with the smallest limit that limits nobody.
    ///
    /// `None` where no limit does or none can be told: more is owed than a quota can say, the quota
    /// is [blocked](Quota::blocked), it starts at [`initial`](Quota::initial) units, or it is a
    /// window that [carries over](crate::Algorithm::carry_over); a [paced](crate::Algorithm::paced)
    /// window lets no second unit pass in its first instant, however many it has.
    #[must_use = "it is looked for in the trace and changes nothing"]
    pub fn quota(&self) -> Option<Quota> {
        let units = u32::try_from(self.most?).ok()?;
        self.given.with_limit(units).ok()
    }
}
