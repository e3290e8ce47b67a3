//! Operations other than a decision: late charges, resets, blocks and undone charges.

use std::time::Duration;

use super::{accounts::Account, ledger::Ledger, table::LockedAccounts};
use crate::{
    algorithm::{self, Adjusted, Evaluation, Receipt, concurrent},
    decision::{Decision, Snapshot, Source},
    observe::late_charge_cut,
    store::{Charge, context::Followed, nanos},
};

impl Ledger {
    /// Adjusts each account of a charge by `units`, or to the account that it follows.
    pub(super) fn adjust(
        &self,
        charge: &Charge<'_>,
        units: i64,
        followed: Option<&Followed<'_>>,
    ) -> Decision {
        let mut cut = None;
        let mut overflowed = false;
        let decision = self.each(charge, |account, locked| {
            let units = match followed {
                Some(followed) => followed.late(account.at.quota_index, snapshot(account, locked)),
                None => units,
            };
            overflowed |= units > 0 && locked.overflowed;
            let adjusted = adjust(account, locked, units);
            if adjusted.is_cut {
                cut = Some(account.quota);
            }
            adjusted.snapshot
        });
        if overflowed {
            self.record_overflow(decision.at, false);
        }
        // The charge of a mirrored decision has the cost 0. Its account is in another store, so a cut
        // loses nothing.
        if let Some(quota) = cut.filter(|_| charge.cost > 0) {
            late_charge_cut(quota);
        }
        decision
    }

    pub(super) fn reset(&self, charge: &Charge<'_>) -> Decision {
        for account in self.accounts(&[*charge]).slots() {
            self.held.reset(account.at.id);
        }
        self.each(charge, |account, locked| {
            locked.reset(&mut account.at, account.quota, || self.clock.now());
            snapshot(account, locked)
        })
    }

    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(nanos(time));
        if self.blocks.add(self.key_id(charge), now, until) {
            Decision::new(true, now)
        } else {
            Decision::new(false, now).with_source(Source::Overflow)
        }
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        self.blocks.end(self.key_id(charge), self.clock.now());
        Decision::allow()
    }

    pub(super) fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let mut accounts = self.accounts(charges);
        let decided = taken.on(Charge::quota_ids(charges));
        let mut locked = self.table.lock(&mut accounts.distinct, self.clock.now());
        let now = locked.now;
        for index in 0..accounts.distinct.len() {
            let first = accounts.first_outcome(index);
            let outcome = first.and_then(|at| decided.outcomes().get(at));
            let account = &accounts.distinct[index];
            // Slots have no receipt: they are freed with the decision.
            let charged = outcome.filter(|outcome| taken.charged(outcome.rule()));
            let receipt =
                charged.and_then(|outcome| Receipt::new(taken, outcome, account.demand, units));
            if let Some(receipt) = receipt {
                locked.undo(&account.at, account.quota, receipt.charged, |state| {
                    algorithm::undo(state, account.quota, now, receipt);
                });
            }
        }
    }

    /// Applies `change` to every account of `charge`, and returns the resulting decision.
    fn each<'a>(
        &self,
        charge: &Charge<'a>,
        mut change: impl FnMut(&mut Account<'a>, &mut LockedAccounts<'_>) -> Snapshot,
    ) -> Decision {
        let mut accounts = self.accounts(&[charge.with_cost(0)]);
        // Slots are neither charged late nor refunded. They are read before any account is locked, because
        // the shared accounts are locked after them.
        for account in &mut accounts.distinct {
            if account.quota.is_concurrent() {
                account.evaluation = self.look_at_slots(account);
            }
        }
        let mut locked = self.table.lock(&mut accounts.distinct, self.clock.now());
        if locked.overflowed {
            locked.share(&mut accounts.distinct);
        }
        for account in &mut accounts.distinct {
            if !account.quota.is_concurrent() {
                account.evaluation.snapshot = change(account, &mut locked);
            }
        }
        let mut decision = Decision::new(true, locked.now);
        accounts.report(locked.now, &mut decision);
        decision
    }

    fn look_at_slots(&self, account: &Account<'_>) -> Evaluation {
        let id = account.at.id;
        let held = self.held.shard(id).lock().held(id);
        concurrent::look(held, account.quota, account.demand)
    }
}

/// Charges `units` to an account, or refunds units if `units` is negative.
fn adjust(account: &mut Account<'_>, locked: &mut LockedAccounts<'_>, units: i64) -> Adjusted {
    let quota = account.quota;
    let now = locked.now;
    let opens = quota.initial().is_some() && account.at.has_room();
    let has_effect = if units > 0 {
        // Without room even for a shared account, new keys of the quota are denied.
        !account.at.is_nowhere()
    } else {
        // A new account is full, and a shared one has the charges of other keys.
        units < 0 && (account.at.has_entry() || opens)
    };
    if !has_effect {
        return Adjusted {
            snapshot: snapshot(account, locked),
            is_cut: false,
        };
    }
    locked.update(&mut account.at, quota, |state| {
        algorithm::adjust(state, quota, now, units)
    })
}

/// Returns the snapshot of an account.
fn snapshot(account: &Account<'_>, locked: &mut LockedAccounts<'_>) -> Snapshot {
    let now = locked.now;
    let looked = locked.look(&account.at, |state| {
        algorithm::look(state, account.quota, now, account.demand)
    });
    looked.snapshot
}
