//! Facts about one quota of a decision.

use crate::{
    decision::{Decision, Outcome},
    key::Key,
    quota::Quota,
    store::Charge,
};

/// Report on one quota of a decision, in an [`Explanation`](super::Explanation).
///
/// The quota, the key and the costs are `None` unless the explanation was given the charges or the
/// rules.
#[derive(Clone, Debug)]
pub struct QuotaReport {
    pub(super) outcome: Outcome,
    pub(super) asked: Option<ChargedQuota>,
}

/// The charges of a request to one account, added up.
#[derive(Clone, Debug)]
pub(super) struct ChargedQuota {
    pub(super) key: Key,
    pub(super) quota: Quota,
    /// The number of quotas that the rule has.
    pub(super) quotas: usize,
    pub(super) cost: u64,
    pub(super) headroom: u32,
}

impl QuotaReport {
    /// Returns the outcome of the quota.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the quota, if known.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.asked.as_ref().map(|asked| asked.quota)
    }

    /// Returns the key of the account, if known.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.asked.as_ref().map(|asked| &asked.key)
    }

    /// Returns the requested units, if known.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        self.asked.as_ref().map(|asked| asked.cost)
    }

    /// Returns the units that must be left over after the charge, if known.
    #[must_use]
    pub fn headroom(&self) -> Option<u32> {
        self.asked.as_ref().map(|asked| asked.headroom)
    }
}

/// Creates one report for each outcome of the decision.
pub(super) fn list(decision: &Decision, charges: &[Charge<'_>]) -> Vec<QuotaReport> {
    let placed = |charge| {
        let of = move |(place, quota): (usize, &Quota)| (charge, place, *quota);
        Charge::charged_quotas(charge).map(of)
    };
    let all: Vec<_> = charges.iter().flat_map(placed).collect();
    let reckon = |(at, outcome): (usize, &Outcome)| {
        let of_it = |(charge, place, _): &&(&Charge<'_>, usize, Quota)| {
            charge.rule() == outcome.rule() && *place == outcome.place()
        };
        let known = all.get(at).filter(of_it).or_else(|| all.iter().find(of_it));
        let asked = known.map(|(charge, _, quota)| asked(charge, *quota, charges));
        QuotaReport { outcome: *outcome, asked }
    };
    decision.outcomes().iter().enumerate().map(reckon).collect()
}

/// Adds up all charges to the account of `charge`.
fn asked(charge: &Charge<'_>, quota: Quota, charges: &[Charge<'_>]) -> ChargedQuota {
    let same = |other: &&Charge<'_>| {
        other.rule() == charge.rule()
            && other.key() == charge.key()
            && other.quota_index() == charge.quota_index()
    };
    let all = || charges.iter().filter(same);
    ChargedQuota {
        key: charge.key().clone(),
        quota,
        quotas: charge.quotas().len(),
        cost: all().map(|charge| u64::from(charge.cost())).sum(),
        headroom: all().map(Charge::headroom).max().unwrap_or(0),
    }
}
