//! Decisions without a charge.

use smallvec::SmallVec;

use super::{
    accounts::{Accounts, quota_id},
    ledger::{Ledger, evaluate_all, look},
    slots::{self, Locked},
};
use crate::{
    algorithm,
    decision::{Decision, Source},
    quota::Quota,
    store::Charge,
};

impl Ledger {
    /// Returns the decision that [`take`](Ledger::take) would make, and changes nothing.
    pub(super) fn peek(&self, charges: &[Charge<'_>]) -> Decision {
        if charges.iter().flat_map(Charge::quotas).any(Quota::is_adaptive) {
            return self.peek_adaptive(charges);
        }
        let now = self.clock.now();
        if self.blocks.any(now)
            && let Some(denial) = self.deny_blocked(charges, now)
        {
            return denial;
        }
        let mut accounts = self.hasher.accounts(charges);
        let mut locked = Locked {
            rates: self.table.lock(&mut accounts.distinct, now),
            slots: self.held.lock(accounts.slots().map(|account| account.at.id)),
        };
        let (allowed, queues) = evaluate_all(&mut accounts.distinct, &mut locked);
        for index in 0..accounts.distinct.len() {
            if allowed {
                charge(&mut accounts, index, &mut locked);
                continue;
            }
            if queues {
                // The waits of a denial are those of callers that do not queue.
                accounts.distinct[index].demand.max_wait = 0;
                accounts.distinct[index].evaluation = look(&accounts.distinct, index, &mut locked);
            }
            slots::expect_wait(&mut accounts.distinct[index], &mut locked.slots, now);
        }
        let decision = accounts.decision(locked.rates.now());
        let has_no_room = locked.slots.are_full() && !allowed;
        if has_no_room { decision.with_source(Source::Overflow) } else { decision }
    }

    /// Decides with the limits that adaptive quotas have now.
    fn peek_adaptive(&self, charges: &[Charge<'_>]) -> Decision {
        let fixed = |charge: &Charge<'_>| -> SmallVec<[Quota; 4]> {
            let id = self.hasher.id(charge);
            let all = charge.quotas().iter().enumerate();
            all.map(|(at, quota)| self.fixed(quota_id(id, at), quota).unwrap_or(*quota)).collect()
        };
        let quotas: SmallVec<[_; 2]> = charges.iter().map(fixed).collect();
        let charges = charges.iter().zip(&quotas).map(|(it, quotas)| it.with_quotas(quotas));
        self.peek(&charges.collect::<SmallVec<[_; 4]>>())
    }
}

/// Replaces the evaluation of an account by the one after its charge.
fn charge(accounts: &mut Accounts<'_>, index: usize, locked: &mut Locked<'_>) {
    if !accounts.charges(index) {
        return;
    }
    let (before, rest) = accounts.distinct.split_at_mut(index);
    let account = &mut rest[0];
    let (quota, demand, now) = (account.quota, account.demand, locked.rates.now());
    if quota.is_concurrent() {
        return slots::add_held(&mut account.evaluation, demand.cost);
    }
    let shared = before.iter().filter(|other| other.at.shares(&account.at));
    let earlier = shared.map(|other| i64::from(other.demand.cost)).sum();
    account.evaluation = locked.rates.look(&account.at, |state| {
        let mut after = state.cloned();
        if earlier > 0 {
            algorithm::adjust(&mut after, quota, now, earlier);
        }
        algorithm::take(&mut after, quota, now, demand)
    });
}
