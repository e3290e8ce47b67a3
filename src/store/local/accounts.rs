//! The accounts of a decision: their addresses, without duplicates, in the order of the charges.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::{SharedSeed, quality::SeedableRandomState};
use smallvec::SmallVec;

use super::state_table::Address;
use crate::{
    algorithm::{self, AccountState, Demand, Evaluation},
    decision::{Decision, Outcome, Snapshot},
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

impl<'a> Account<'a> {
    pub(super) fn address(&self) -> Address<'a> {
        Address { id: self.id, rule: self.rule, quota_index: self.quota_index, quota: self.quota }
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

    /// Returns the values of the account in this state.
    pub(super) fn snapshot(&self, state: Option<&AccountState>, now: u64) -> Snapshot {
        algorithm::look(state, self.quota, now, self.demand).snapshot
    }

    /// Returns `true` if the evaluation does not deny the decision.
    pub(super) fn permits(&self, evaluation: &Evaluation) -> bool {
        evaluation.allowed || self.report_only
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

    #[inline]
    pub(super) fn account<'a>(
        &self,
        charge: &Charge<'a>,
        quota_index: usize,
        quota: &'a Quota,
    ) -> Account<'a> {
        let (rule, report_only) = (charge.rule(), charge.is_report_only());
        Account {
            id: self.id(charge, quota_index),
            rule,
            quota_index,
            quota,
            demand: charge.demand(),
            report_only,
        }
    }

    pub(super) fn accounts<'a>(&self, charges: &[Charge<'a>]) -> Accounts<'a> {
        let mut accounts = Accounts::default();
        for charge in charges {
            for (quota_index, quota) in charge.charged_quotas() {
                accounts.add(self.account(charge, quota_index, quota));
            }
        }
        accounts
    }

    /// Returns the id under which the block of the charge's key is kept.
    pub(super) fn block_id(&self, charge: &Charge<'_>) -> u64 {
        self.id(charge, usize::MAX)
    }

    #[inline]
    pub(super) fn id(&self, charge: &Charge<'_>, quota_index: usize) -> u64 {
        let mut hasher = self.seed.build_hasher();
        charge
            .key()
            .hash_with(charge.rule().hash64().wrapping_add(quota_index as u64), &mut hasher);
        hasher.finish()
    }
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
