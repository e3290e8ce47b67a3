//! What is known of one quota of a decision.

use crate::{
    decision::{Decision, Outcome},
    key::Key,
    quota::Quota,
    store::Charge,
};

/// One quota of an [`Explanation`](super::Explanation): what became of it, and what was asked.
#[derive(Clone, Debug)]
pub struct Reckoning {
    pub(super) outcome: Outcome,
    pub(super) asked: Option<Asked>,
}

/// What was asked of one account.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) quota: Quota,
    /// How many quotas the rule has.
    pub(super) quotas: usize,
    pub(super) cost: u64,
    pub(super) headroom: u32,
}

impl Reckoning {
    /// What became of the quota.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The quota, where it is known.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.asked.as_ref().map(|asked| asked.quota)
    }

    /// Whose account it is, where that is known.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.asked.as_ref().map(|asked| &asked.key)
    }

    /// Units asked for, where they are known.
    #[must_use]
    pub fn cost(&self) -> Option<u64> {
        self.asked.as_ref().map(|asked| asked.cost)
    }

    /// Units that had to be left over, where they are known.
    #[must_use]
    pub fn headroom(&self) -> Option<u32> {
        self.asked.as_ref().map(|asked| asked.headroom)
    }
}

/// A reckoning per outcome.
pub(super) fn list(decision: &Decision, charges: &[Charge<'_>]) -> Vec<Reckoning> {
    let placed = |charge| {
        let of = move |(place, quota): (usize, &Quota)| (charge, place, *quota);
        Charge::placed(charge).map(of)
    };
    let all: Vec<_> = charges.iter().flat_map(placed).collect();
    let reckon = |(at, outcome): (usize, &Outcome)| {
        let of_it = |(charge, place, _): &&(&Charge<'_>, usize, Quota)| {
            charge.rule() == outcome.rule() && *place == outcome.place()
        };
        let known = all.get(at).filter(of_it).or_else(|| all.iter().find(of_it));
        let asked = known.map(|(charge, _, quota)| asked(charge, *quota, charges));
        Reckoning { outcome: *outcome, asked }
    };
    decision.outcomes().iter().enumerate().map(reckon).collect()
}

/// One account that is named twice counts as one, costs added.
fn asked(charge: &Charge<'_>, quota: Quota, charges: &[Charge<'_>]) -> Asked {
    let same = |other: &&Charge<'_>| {
        other.rule() == charge.rule()
            && other.key() == charge.key()
            && other.place() == charge.place()
    };
    let all = || charges.iter().filter(same);
    Asked {
        key: charge.key().clone(),
        quota,
        quotas: charge.quotas().len(),
        cost: all().map(|charge| u64::from(charge.units())).sum(),
        headroom: all().map(Charge::reserve).max().unwrap_or(0),
    }
}
