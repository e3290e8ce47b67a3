//! The distinct accounts of a decision, in the order of the charges.

use smallvec::SmallVec;

use super::table::Located;
use crate::{
    algorithm::{Demand, Evaluation},
    decision::{Decision, NEVER, Outcome},
    name::RuleName,
    quota::{Quota, QuotaAddress},
};

/// One quota of one charge, with its account.
pub(super) struct Account<'a> {
    pub(super) at: Located,
    pub(super) quota: &'a Quota,
    pub(super) demand: Demand,
    pub(super) report_only: bool,
    /// The result for `demand`.
    pub(super) evaluation: Evaluation,
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
    /// `true` if some accounts count held slots.
    pub(super) has_slots: bool,
}

impl<'a> Accounts<'a> {
    /// Adds an account. Charges of the same account become one charge with the sum of their costs.
    pub(super) fn add(&mut self, account: Account<'a>) {
        let known = self.distinct.iter().position(|known| known.at.id == account.at.id);
        let index = known.unwrap_or(self.distinct.len());
        self.order.push(u16::try_from(index).unwrap_or(u16::MAX));
        let Some(known) = self.distinct.get_mut(index) else { return self.distinct.push(account) };
        known.demand.cost = known.demand.cost.saturating_add(account.demand.cost);
        known.demand.headroom = known.demand.headroom.max(account.demand.headroom);
        known.demand.max_wait = known.demand.max_wait.min(account.demand.max_wait);
        known.report_only &= account.report_only;
    }

    /// Returns `true` if an allowed decision charges the account at `index`.
    ///
    /// A report-only rule charges all of its accounts or none.
    #[inline]
    pub(super) fn charges(&self, index: usize) -> bool {
        let account = &self.distinct[index];
        let fits = || {
            let mut all = self.distinct.iter().filter(|other| other.at.rule == account.at.rule);
            all.all(|other| other.evaluation.allowed)
        };
        account.demand.cost > 0 && (!account.report_only || fits())
    }

    /// Returns the accounts that count held slots.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Account<'a>> + Clone {
        self.distinct.iter().filter(|account| account.quota.is_concurrent())
    }

    /// Returns the index of the first outcome of the account at `index`.
    pub(super) fn first_outcome(&self, index: usize) -> Option<usize> {
        self.order.iter().position(|account| usize::from(*account) == index)
    }

    /// Returns `true` if the evaluated demands are allowed.
    #[inline]
    pub(super) fn are_allowed(&self) -> bool {
        self.distinct.iter().all(|account| account.evaluation.allowed || account.report_only)
    }

    /// Returns the longest wait of the denied demands.
    pub(super) fn retry_ns(&self) -> u64 {
        let deciding = self.distinct.iter().filter(|account| !account.report_only);
        deciding.map(|account| account.evaluation.snapshot.retry_ns()).max().unwrap_or(NEVER)
    }

    /// Adds the evaluated demands to a decision, which was made at `now`.
    #[inline]
    pub(super) fn report(&self, now: u64, decision: &mut Decision) {
        let all = self.order.iter().map(|index| {
            let it = &self.distinct[usize::from(*index)];
            (it.at.rule, it.at.quota_index, it.report_only, &it.evaluation)
        });
        report(all, now, decision);
    }
}

/// Makes a decision from each demand: its rule and quota index, `true` if its rule is report-only, and
/// its evaluation.
#[inline(always)]
pub(super) fn report<'a>(
    all: impl Iterator<Item = (RuleName, usize, bool, &'a Evaluation)> + Clone,
    now: u64,
    decision: &mut Decision,
) {
    let mut allowed = true;
    let mut overage = false;
    let mut wait = 0;
    for (.., by) in all.clone().filter(|(_, _, report_only, _)| !report_only) {
        (allowed, overage, wait) = (allowed & by.allowed, overage | by.overage, wait.max(by.wait));
    }
    (decision.allowed, decision.at, decision.charged_at) = (allowed, now, now);
    (decision.overage, decision.wait) = (allowed && overage, if allowed { wait } else { 0 });
    for (rule, quota_index, report_only, by) in all {
        let outcome = Outcome::with(rule, quota_index, by.snapshot);
        decision.outcomes.push(outcome.with_report_only(report_only));
    }
}

/// Returns the id of the account of a quota, from the id of its rule and key. The high bits of the id
/// select the set.
#[inline(always)]
pub(super) fn quota_id(key: u64, address: QuotaAddress) -> u64 {
    // An odd constant (from the golden ratio).
    let address = u64::from(address.number()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key.wrapping_add(address).max(1)
}
