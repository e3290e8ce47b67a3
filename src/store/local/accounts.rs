//! The distinct accounts of a decision, in the order of the charges.

use smallvec::SmallVec;

use super::table::Located;
use crate::{
    algorithm::{Demand, Evaluation},
    decision::{Decision, NEVER, Outcome},
    name::RuleName,
    quota::{Quota, QuotaAddress},
};

/// The effect of a decision on its accounts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Effect {
    Charge,
    Nothing,
}

/// One quota of one charge, with its account.
pub(super) struct Account<'a> {
    pub(super) at: Located,
    pub(super) quota: &'a Quota,
    pub(super) demand: Demand,
    pub(super) report_only: bool,
    /// The result for `demand`.
    pub(super) evaluation: Evaluation,
}

impl Account<'_> {
    /// Adds another charge of the account. The stricter settings apply.
    fn add(&mut self, other: &Self) {
        self.demand.cost = self.demand.cost.saturating_add(other.demand.cost);
        self.demand.headroom = self.demand.headroom.max(other.demand.headroom);
        self.demand.max_wait = self.demand.max_wait.min(other.demand.max_wait);
        self.report_only &= other.report_only;
    }

    #[inline]
    fn evaluated(&self) -> Evaluated<'_> {
        Evaluated {
            rule: self.at.rule,
            quota_index: self.at.quota_index,
            report_only: self.report_only,
            evaluation: &self.evaluation,
        }
    }
}

impl AsRef<Located> for Account<'_> {
    fn as_ref(&self) -> &Located {
        &self.at
    }
}

impl AsMut<Located> for Account<'_> {
    fn as_mut(&mut self) -> &mut Located {
        &mut self.at
    }
}

/// The accounts of all charges of a decision.
#[derive(Default)]
pub(super) struct Accounts<'a> {
    pub(super) distinct: SmallVec<[Account<'a>; 4]>,
    /// The account of each outcome, as an index into `distinct`.
    order: SmallVec<[u16; 8]>,
}

impl<'a> Accounts<'a> {
    /// Adds an account. Charges of the same account become one charge with the sum of their costs.
    pub(super) fn add(&mut self, account: Account<'a>) {
        let mut known = self.distinct.iter();
        let known = known.position(|known| known.at.id == account.at.id);
        let index = known.unwrap_or(self.distinct.len());
        self.order.push(u16::try_from(index).unwrap_or(u16::MAX));
        match known {
            Some(index) => self.distinct[index].add(&account),
            None => self.distinct.push(account),
        }
    }

    /// Returns `true` if an allowed decision charges the account at `index`.
    ///
    /// A report-only rule charges all of its accounts or none.
    #[inline]
    pub(super) fn charges(&self, index: usize) -> bool {
        let account = &self.distinct[index];
        if account.demand.cost == 0 || !account.report_only {
            return account.demand.cost > 0;
        }
        let mut of_rule = self
            .distinct
            .iter()
            .filter(|other| other.at.rule == account.at.rule);
        of_rule.all(|other| other.evaluation.allowed)
    }

    /// Returns the accounts that count held slots.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Account<'a>> + Clone {
        self.distinct
            .iter()
            .filter(|account| account.quota.is_concurrent())
    }

    /// Returns the index of the first outcome of the account at `index`.
    pub(super) fn first_outcome(&self, index: usize) -> Option<usize> {
        self.order
            .iter()
            .position(|account| usize::from(*account) == index)
    }

    /// Returns `true` if the evaluated demands are allowed.
    #[inline]
    pub(super) fn are_allowed(&self) -> bool {
        self.distinct
            .iter()
            .all(|account| account.evaluation.allowed || account.report_only)
    }

    /// Returns the longest wait of the denied demands.
    pub(super) fn retry_ns(&self) -> u64 {
        let deciding = self.distinct.iter().filter(|account| !account.report_only);
        deciding
            .map(|account| account.evaluation.snapshot.retry_ns())
            .max()
            .unwrap_or(NEVER)
    }

    /// Adds the evaluated demands to a decision, which was made at `now`.
    #[inline]
    pub(super) fn report(&self, now: u64, decision: &mut Decision) {
        let order = self.order.iter();
        let demands = order.map(|index| self.distinct[usize::from(*index)].evaluated());
        report(demands, now, decision);
    }
}

/// A demand with its evaluation.
pub(super) struct Evaluated<'a> {
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
    pub(super) report_only: bool,
    pub(super) evaluation: &'a Evaluation,
}

/// Makes a decision from all demands.
#[inline(always)]
pub(super) fn report<'a>(
    demands: impl Iterator<Item = Evaluated<'a>>,
    now: u64,
    decision: &mut Decision,
) {
    let mut allowed = true;
    let mut overage = false;
    let mut wait = 0;
    for demand in demands {
        let by = demand.evaluation;
        if !demand.report_only {
            allowed &= by.allowed;
            overage |= by.overage;
            wait = wait.max(by.wait);
        }
        let outcome = Outcome::with(demand.rule, demand.quota_index, by.snapshot);
        let outcome = outcome.with_report_only(demand.report_only);
        decision.outcomes.push(outcome);
    }
    decision.allowed = allowed;
    decision.at = now;
    decision.charged_at = now;
    decision.overage = allowed && overage;
    decision.wait = if allowed { wait } else { 0 };
}

/// Returns the id of the account of a quota, from the id of its rule and key. The high bits of the id
/// select the set.
#[inline(always)]
pub(super) fn quota_id(key: u64, address: QuotaAddress) -> u64 {
    // An odd constant (from the golden ratio).
    let address = u64::from(address.number()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key.wrapping_add(address).max(1)
}
