//! Decisions without a charge.

use super::{
    accounts::Accounts,
    ledger::{Ledger, Locked, look},
    slots,
};
use crate::{
    algorithm,
    decision::{Decision, Source},
    store::Charge,
};

impl Ledger {
    /// Returns the decision that [`take`](Ledger::take) would make, and changes nothing.
    pub(super) fn peek(&self, charges: &[Charge<'_>]) -> Decision {
        let now = self.clock.now();
        let mut decision = Decision::new(true, now);
        if self.blocks.any(now) && self.deny_blocked(charges, &mut decision) {
            return decision;
        }
        let mut accounts = self.hasher.accounts(charges);
        let rates = self.table.lock(&mut accounts.distinct, now);
        let slots = self.held.lock(&accounts.slots().map(|account| account.at.id), None);
        let mut locked = Locked { rates, slots: Some(slots) };
        for index in 0..accounts.distinct.len() {
            accounts.distinct[index].evaluation = look(&accounts.distinct, index, &mut locked);
        }
        let allowed = accounts.are_allowed();
        for index in 0..accounts.distinct.len() {
            if allowed {
                charge(&mut accounts, index, &mut locked);
                continue;
            }
            // The waits of a denial are those of callers that do not queue.
            accounts.distinct[index].demand.max_wait = 0;
            accounts.distinct[index].evaluation = look(&accounts.distinct, index, &mut locked);
            if let Some(slots) = &mut locked.slots {
                slots::expect_wait(&mut accounts.distinct[index], slots, now);
            }
        }
        accounts.report(locked.rates.now(), &mut decision);
        if locked.slots.is_some_and(|slots| slots.full) && !allowed {
            decision.set_source(Source::Overflow);
        }
        decision
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
