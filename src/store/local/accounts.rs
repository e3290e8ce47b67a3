//! The distinct accounts of a decision, in the order of the charges.

use std::hash::{BuildHasher, Hasher};

use smallvec::SmallVec;

use super::{ledger::Ledger, table::Located};
use crate::{
    algorithm::{Demand, Evaluation, gcra},
    decision::{Decision, NEVER, Outcome, chosen},
    name::RuleName,
    quota::Quota,
    store::Charge,
};

/// One quota of one charge, with its account.
pub(super) struct Account<'a> {
    pub(super) at: Located,
    pub(super) quota: &'a Quota,
    pub(super) demand: Demand,
    pub(super) report_only: bool,
    /// The group of alternatives, or 0.
    pub(super) group: u8,
    /// The units that the next account must leave if this share of it does not fit.
    pub(super) reserve: u32,
    /// `true` if another alternative of the group is chosen, or if a share is not charged.
    pub(super) passed_over: bool,
    /// The result for `demand`.
    pub(super) evaluation: Evaluation,
}

/// The accounts of all charges of a decision.
#[derive(Default)]
pub(super) struct Accounts<'a> {
    pub(super) distinct: SmallVec<[Account<'a>; 4]>,
    /// The account of each outcome, as an index into `distinct`.
    order: SmallVec<[u16; 8]>,
    /// `true` if some accounts count held slots.
    pub(super) has_slots: bool,
    pub(super) has_groups: bool,
}

impl<'a> Accounts<'a> {
    /// Adds an account. Charges of the same account become one charge with the sum of their costs.
    fn add(&mut self, account: Account<'a>) {
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
        self.distinct.iter().all(|it| it.evaluation.allowed || it.report_only || it.passed_over)
    }

    /// Chooses an alternative of each group by the evaluated demands.
    #[inline]
    pub(super) fn choose(&mut self) {
        if self.has_groups {
            self.choose_each();
        }
    }

    #[cold]
    fn choose_each(&mut self) {
        let part =
            |it: &Account<'_>| (it.group, it.at.rule, it.report_only, it.evaluation.snapshot);
        let all: SmallVec<[_; 4]> = self.distinct.iter().map(part).collect();
        for account in self.distinct.iter_mut().filter(|it| it.group > 0) {
            account.passed_over = chosen(account.group, all.iter()) != Some(account.at.rule);
        }
        for at in 1..self.distinct.len() {
            if let [share, pool] = &mut self.distinct[at - 1..=at]
                && share.group == Charge::SHARE
            {
                share.passed_over = !(share.evaluation.allowed && pool.evaluation.allowed);
                if !pool.evaluation.allowed {
                    let by_share = &share.evaluation;
                    gcra::wait_for_share(&mut pool.evaluation, by_share, pool.quota, pool.demand);
                }
            }
        }
    }

    /// Returns the longest wait of the denied demands.
    pub(super) fn retry_ns(&self) -> u64 {
        let deciding = self.distinct.iter().filter(|it| !it.report_only && !it.passed_over);
        deciding.map(|it| it.evaluation.snapshot.retry_ns()).max().unwrap_or(NEVER)
    }

    /// Adds the evaluated demands to a decision, which was made at `now`.
    #[inline]
    pub(super) fn report(&self, now: u64, decision: &mut Decision) {
        let all = self.order.iter().map(|index| {
            let it = &self.distinct[usize::from(*index)];
            ((it.at.rule, it.at.quota_index), (it.report_only, it.passed_over), &it.evaluation)
        });
        report(all, now, decision);
    }
}

/// Returns the demand on the account at an index. A pool leaves the reserve if its share does not fit.
#[inline]
pub(super) fn demand(all: &[Account<'_>], index: usize) -> Demand {
    let before = index.checked_sub(1).map(|before| &all[before]);
    let share = before.filter(|it| it.reserve > 0 && !it.evaluation.allowed);
    all[index].demand.leaving(share.map_or(0, |share| share.reserve))
}

/// Makes a decision from each demand: its rule and quota index, if its rule is report-only or was
/// passed over, and its evaluation.
#[inline(always)]
pub(super) fn report<'a>(
    all: impl Iterator<Item = ((RuleName, usize), (bool, bool), &'a Evaluation)> + Clone,
    now: u64,
    decision: &mut Decision,
) {
    let (mut allowed, mut overage, mut wait) = (true, false, 0);
    for (.., by) in
        all.clone().filter(|(_, (report_only, passed_over), _)| !(report_only | passed_over))
    {
        (allowed, overage, wait) = (allowed & by.allowed, overage | by.overage, wait.max(by.wait));
    }
    (decision.allowed, decision.at, decision.charged_at) = (allowed, now, now);
    (decision.overage, decision.wait) = (allowed && overage, if allowed { wait } else { 0 });
    for ((rule, quota_index), (report_only, passed_over), by) in all {
        let mut outcome = Outcome::with(rule, quota_index, by.snapshot);
        if passed_over {
            outcome.pass_over(allowed);
        }
        decision.outcomes.push(outcome.with_report_only(report_only));
    }
}

/// The id of an account is a hash of the rule, the key and the index of the quota.
impl Ledger {
    #[inline]
    pub(super) fn accounts<'a>(&self, charges: &[Charge<'a>]) -> Accounts<'a> {
        let mut accounts = Accounts::default();
        self.collect(charges, &mut accounts);
        accounts
    }

    /// Adds the accounts of these charges. Returning them would move them, which is slow.
    pub(super) fn collect<'a>(&self, charges: &[Charge<'a>], accounts: &mut Accounts<'a>) {
        for (at, charge) in charges.iter().enumerate() {
            let (first, rule, only) = (self.id(charge), charge.rule(), charge.quota_index());
            let (group, report_only) = (Charge::group_among(charges, at), charge.is_report_only());
            let (demand, reserve) = charge.demand_in(group);
            for (quota_index, quota) in charge.quotas().iter().enumerate() {
                if only.is_some_and(|only| only != quota_index) {
                    continue;
                }
                let id = quota_id(first, quota_index);
                accounts.has_slots |= quota.is_concurrent();
                accounts.has_groups |= group > 0;
                let at = Located::new(id, rule, quota_index, quota.is_concurrent());
                let evaluation = Evaluation::at_once(false);
                accounts.add(Account {
                    at,
                    quota,
                    demand,
                    report_only,
                    group,
                    reserve,
                    passed_over: false,
                    evaluation,
                });
            }
        }
    }

    /// Returns the id of the account of the first quota. The id is never 0.
    #[inline(always)]
    pub(super) fn id(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.seed.build_hasher();
        charge.key().hash_with(charge.rule().hash64(), &mut hasher);
        hasher.finish().max(1)
    }
}

/// Returns the id of the account of a quota. The high bits of the id select the set.
pub(super) fn quota_id(first: u64, quota_index: usize) -> u64 {
    // An odd constant (from the golden ratio).
    first.wrapping_add((quota_index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1)
}
