//! The accounts of a decision: their addresses, without duplicates, in the order of the charges.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::{SharedSeed, quality::SeedableRandomState};
use smallvec::SmallVec;

use super::{sets::Stored, table::Address};
use crate::{
    algorithm::{AccountState, Demand, Evaluation},
    decision::{Decision, Outcome},
    quota::Quota,
    rule::RuleName,
    store::Charge,
};

/// One quota of one charge, with the address of its account.
#[derive(Clone, Copy)]
pub(super) struct Account<'a> {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
    pub(super) quota: &'a Quota,
    pub(super) demand: Demand,
    pub(super) report_only: bool,
}

impl Account<'_> {
    #[inline]
    pub(super) fn address(&self) -> Address {
        Address { id: self.id, rule: self.rule, quota_index: self.quota_index }
    }

    #[inline]
    pub(super) fn outcome(&self, evaluation: &Evaluation) -> Outcome {
        Outcome::with(self.rule, self.quota_index, evaluation.snapshot)
            .report_only(self.report_only)
    }

    /// Returns the account with a demand that may not queue.
    pub(super) fn without_queueing(&self) -> Self {
        Self { demand: Demand { max_wait: 0, ..self.demand }, ..*self }
    }

    /// Returns `true` if the evaluation does not deny the decision.
    pub(super) fn permits(&self, evaluation: &Evaluation) -> bool {
        evaluation.allowed || self.report_only
    }
}

impl Stored for AccountState {
    type Quota = Quota;

    #[inline]
    fn from_instant(instant: u64) -> Self {
        Self::Gcra(instant)
    }

    #[inline]
    fn as_instant(&self, expires_at: u64) -> Option<u64> {
        match self {
            Self::Gcra(tat) if *tat == expires_at => Some(*tat),
            _ => None,
        }
    }

    #[inline]
    fn expires_at(&self, quota: &Quota) -> u64 {
        self.expires_at(quota)
    }

    fn condensed(&self) -> Self {
        self.condensed()
    }
}

/// The accounts of all charges of a decision.
#[derive(Default)]
pub(super) struct Accounts<'a> {
    pub(super) distinct: SmallVec<[Account<'a>; 4]>,
    /// The index in `distinct` of each outcome's account.
    order: SmallVec<[u16; 8]>,
}

impl<'a> Accounts<'a> {
    /// Adds an account. Charges of the same account become one charge with the sum of their costs.
    pub(super) fn add(&mut self, account: Account<'a>) {
        let known = self.distinct.iter().position(|known| known.id == account.id);
        let index = known.unwrap_or(self.distinct.len());
        match known {
            Some(index) => {
                let known = &mut self.distinct[index];
                known.demand.cost = known.demand.cost.saturating_add(account.demand.cost);
                known.demand.headroom = known.demand.headroom.max(account.demand.headroom);
                known.demand.max_wait = known.demand.max_wait.min(account.demand.max_wait);
                known.report_only &= account.report_only;
            }
            None => self.distinct.push(account),
        }
        self.order.push(u16::try_from(index).unwrap_or(u16::MAX));
    }

    /// Returns `true` if an allowed decision charges `account`. A report-only rule charges all of
    /// its accounts or none.
    pub(super) fn charges(&self, account: &Account<'_>, evaluations: &[Evaluation]) -> bool {
        let fits = || {
            let mut all = self.distinct.iter().zip(evaluations);
            all.all(|(other, it)| other.rule != account.rule || it.allowed)
        };
        account.demand.cost > 0 && (!account.report_only || fits())
    }

    /// Returns the index of the first outcome of the account at `index` in `distinct`.
    pub(super) fn first_outcome(&self, index: usize) -> Option<usize> {
        self.order.iter().position(|account| usize::from(*account) == index)
    }

    pub(super) fn decision(&self, evaluations: &[Evaluation], now: u64, allowed: bool) -> Decision {
        let deciding =
            || self.distinct.iter().zip(evaluations).filter(|(account, _)| !account.report_only);
        let mut decision = Decision::new(allowed, now);
        if allowed {
            let wait = deciding().map(|(_, it)| it.wait).max().unwrap_or(0);
            decision.set_allowed(deciding().any(|(_, it)| it.overage), wait);
        }
        for index in self.order.iter().map(|index| usize::from(*index)) {
            decision.push(self.distinct[index].outcome(&evaluations[index]));
        }
        decision
    }
}

/// Hashes the name of the rule, the key and the index of the quota to the id of an account.
pub(super) struct AddressHasher {
    /// Random per store, so that a client cannot choose keys that collide in one set.
    seed: SeedableRandomState,
}

impl AddressHasher {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self { seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()) }
    }

    pub(super) fn accounts<'a>(&self, charges: &[Charge<'a>]) -> Accounts<'a> {
        let mut accounts = Accounts::default();
        for charge in charges {
            let (id, rule, report_only) = (self.id(charge), charge.rule(), charge.is_report_only());
            for (quota_index, quota) in charge.charged_quotas() {
                let id = quota_id(id, quota_index);
                let demand = charge.demand();
                accounts.add(Account { id, rule, quota_index, quota, demand, report_only });
            }
        }
        accounts
    }

    /// Returns the id of the account of the first quota. It is never 0.
    #[inline]
    pub(super) fn id(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.seed.build_hasher();
        charge.key().hash_with(charge.rule().hash64(), &mut hasher);
        hasher.finish().max(1)
    }
}

/// Returns the id of the account of a quota. Ids differ in their high bits, which select the set.
fn quota_id(first: u64, quota_index: usize) -> u64 {
    // An odd constant (from the golden ratio).
    first.wrapping_add((quota_index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}

/// Creates the decision about one charge of one quota.
#[inline]
pub(super) fn decision(charge: &Charge<'_>, evaluation: Evaluation, now: u64) -> Decision {
    let report_only = charge.is_report_only();
    let mut decision = Decision::new(evaluation.allowed || report_only, now);
    if !report_only {
        decision.set_allowed(evaluation.overage, evaluation.wait);
    }
    decision.push(Outcome::with(charge.rule(), 0, evaluation.snapshot).report_only(report_only));
    decision
}
