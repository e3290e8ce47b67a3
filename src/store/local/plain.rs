//! A fast path for one to three rules with one plain GCRA quota each.

use std::array;

use super::{accounts::combined, ledger::Ledger};
use crate::{
    algorithm::{Demand, Evaluation, gcra::Gcra},
    decision::{Decision, Outcome},
    store::Charge,
};

impl Ledger {
    /// Charges one rule with one plain GCRA quota. Returns `None` if the fast path does not apply.
    #[inline]
    pub(super) fn take_one<'c, 'a>(
        &self,
        charges: &'c [Charge<'a>],
        now: u64,
    ) -> Option<(&'c Charge<'a>, Evaluation)> {
        let [charge] = charges else { return None };
        let [quota] = charge.quotas() else { return None };
        let gcra = Gcra::plain(quota)?;
        if charge.quota_index().is_some() || self.blocks.any(now) {
            return None;
        }
        let take = |tat| gcra.charge(tat, now, charge.demand());
        let charged = self.table.update_instant(self.hasher.id(charge), take)?;
        Some((charge, gcra.evaluation(charged)))
    }

    /// Decides on two or three rules with the fast path, and otherwise with
    /// [`decide_all`](Ledger::decide_all).
    #[inline(never)]
    pub(super) fn take_several(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        if let Some((two, by)) = self.take_plain::<2>(charges, now) {
            return plain_decision(two, by, now);
        }
        match self.take_plain::<3>(charges, now) {
            Some((three, by)) => plain_decision(three, by, now),
            None => self.decide_all(charges, now),
        }
    }

    /// Charges `N` rules with one plain GCRA quota each. Returns `None` if the fast path does not
    /// apply.
    #[inline]
    fn take_plain<'c, 'a, const N: usize>(
        &self,
        charges: &'c [Charge<'a>],
        now: u64,
    ) -> Option<([&'c Charge<'a>; N], [Evaluation; N])> {
        let charges: &[Charge<'_>; N] = charges.try_into().ok()?;
        for (at, charge) in charges.iter().enumerate() {
            let [quota] = charge.quotas() else { return None };
            let again = charges[..at].iter().any(|other| other.rule() == charge.rule());
            if Gcra::plain(quota).is_none() || charge.quota_index().is_some() || again {
                return None;
            }
        }
        if self.blocks.any(now) {
            return None;
        }
        let ids = charges.each_ref().map(|charge| self.hasher.id(charge));
        let gcra = |at: usize| Gcra::new(&charges[at].quotas()[0]);
        let evaluations = self.table.update_instants(ids, |tats| {
            let charge = |at: usize| gcra(at).charge(tats[at], now, charges[at].demand());
            let charged: [_; N] = array::from_fn(charge);
            let permits = |at: usize| charged[at].1.0.allowed || charges[at].is_report_only();
            if (0..N).all(permits) {
                let evaluations = array::from_fn(|at| gcra(at).evaluation(charged[at].1));
                return (charged.map(|(new, _)| new), evaluations);
            }
            // The waits of a denial are those of callers that do not queue.
            let demand = |at: usize| Demand { max_wait: 0, ..charges[at].demand() };
            ([None; N], array::from_fn(|at| gcra(at).look(tats[at], now, demand(at))))
        })?;
        Some((charges.each_ref(), evaluations))
    }
}

/// Returns the decision on charges with one quota each.
#[inline]
pub(super) fn plain_decision<const N: usize>(
    charges: [&Charge<'_>; N],
    evaluations: [Evaluation; N],
    now: u64,
) -> Decision {
    let all = || charges.iter().zip(&evaluations);
    let (allowed, overage, wait) = combined(all().map(|(it, by)| (it.is_report_only(), by)));
    let mut decision = Decision::new(allowed, now);
    decision.set_allowed(overage, wait);
    for (charge, it) in all() {
        let outcome = Outcome::with(charge.rule(), 0, it.snapshot);
        decision.push(outcome.with_report_only(charge.is_report_only()));
    }
    decision
}
