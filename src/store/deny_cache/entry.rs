//! A cached denial of one account.

use std::time::Duration;

use smallvec::SmallVec;

use super::account::HashedCharge;
use crate::{
    algorithm::Demand,
    decision::{Decision, NEVER, Outcome},
    store::{Charge, recompute::recompute},
};

/// A cached denial. Instants are nanoseconds since the cache was created.
#[derive(Debug)]
pub(super) struct CachedDenial {
    pub(super) tag: u64,
    pub(super) revision: u64,
    pub(super) need: u64,
    /// The end of the denial, computed from the start of the call.
    pub(super) until: u64,
    /// The instant of the answer, from which waits are computed.
    answered_at: u64,
    blocked: bool,
    /// `true` if the entry can also deny a higher cost.
    refilling: bool,
    outcomes: SmallVec<[Outcome; 1]>,
}

impl CachedDenial {
    /// Creates an entry, or returns `None` if the outcomes did not deny the call.
    pub(super) fn new(
        account: &HashedCharge,
        outcomes: &[Outcome],
        blocked: bool,
        (called_at, answered_at): (u64, u64),
        max_age: u64,
    ) -> Option<Self> {
        // The store may allow the next call at any time.
        if outcomes.iter().any(Outcome::is_wait_unknown) {
            return None;
        }
        let denied = outcomes.iter().filter(|outcome| outcome.is_denied());
        let retry = denied.map(Outcome::retry_ns).max()?;
        if retry == NEVER && account.has_initial {
            return None;
        }
        Some(Self {
            tag: account.tag,
            revision: account.revision,
            need: if blocked { 1 } else { account.need },
            until: called_at.saturating_add(retry.min(max_age)),
            answered_at,
            blocked,
            refilling: outcomes.iter().all(|it| it.interval().is_some()),
            outcomes: outcomes.into(),
        })
    }

    /// Returns `true` if the account is denied for longer than the caller may queue.
    pub(super) fn denies(&self, account: &HashedCharge, now: u64) -> bool {
        let same = self.tag == account.tag && self.revision == account.revision;
        let covered = account.need == self.need
            || account.need > self.need && (self.blocked || self.refilling);
        account.cacheable && same && covered && now.saturating_add(account.max_wait) < self.until
    }

    /// Adds the cached outcomes to `denial`, for the cost of `charge`.
    pub(super) fn add_to(&self, denial: &mut Decision, charge: &Charge<'_>, now: u64) {
        let age = now.saturating_sub(self.answered_at);
        let ask = Demand { max_wait: 0, ..charge.demand() };
        let same = self.blocked || ask.need() == self.need;
        for outcome in self.outcomes.iter().map(|outcome| outcome.aged(age)) {
            denial.push(if same { outcome } else { recompute(&outcome, charge, ask) });
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// Adds an unknown outcome for each quota of `charge`.
pub(super) fn add_unknown(denial: &mut Decision, charge: &Charge<'_>) {
    for (quota_index, _) in charge.charged_quotas() {
        let unknown = Outcome::unknown(charge.rule(), quota_index, Some(Duration::ZERO));
        denial.push(unknown.report_only(charge.is_report_only()));
    }
}
