//! Decisions about any accounts, under the locks of all of them.

use super::{
    accounts::{Account, Accounts},
    held::LockedSlots,
    ledger::{Ledger, is_plain},
    slots,
    table::LockedAccounts,
};
use crate::{
    algorithm::{self, Evaluation, gcra},
    decision::{Decision, NEVER, Source},
    store::{Charge, Waiter},
};

impl Ledger {
    /// Decides on the charges of all accounts, and makes them.
    pub(super) fn decide(
        &self,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
        now: u64,
    ) -> Decision {
        self.decide_all(charges, waiter, now, false)
    }

    /// Decides on the charges of all accounts, and changes nothing.
    pub(super) fn peek(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        self.decide_all(charges, None, now, true)
    }

    fn decide_all(
        &self,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
        now: u64,
        peeks: bool,
    ) -> Decision {
        let mut decision = Decision::new(true, now);
        if self.may_be_blocked(now) && self.deny_blocked(charges, &mut decision) {
            return decision;
        }
        let mut accounts = Accounts::default();
        self.collect(charges, &mut accounts);
        if let Some(waiter) = waiter {
            waiter.leave_unless(|id| accounts.slots().any(|account| account.at.id == id));
        }
        let rates = self.table.lock(&mut accounts.distinct, now);
        let mut locked = Locked {
            rates,
            slots: None,
            peeks,
        };
        if accounts.has_slots {
            let ids = accounts.slots().map(|account| account.at.id);
            locked.slots = Some(self.held.lock(&ids, waiter));
        }
        look_at_all(&mut accounts.distinct, &mut locked);
        if !accounts.are_allowed()
            && let Some(later) = self.later(charges, locked.rates.now, accounts.retry_ns())
        {
            locked.rates.now = later;
            look_at_all(&mut accounts.distinct, &mut locked);
        }
        if accounts.are_allowed() {
            charge(&mut accounts, &mut locked, &mut decision);
        } else {
            deny(&mut accounts, &mut locked, || self.clock.now());
        }
        accounts.report(locked.rates.now, &mut decision);
        let slots_are_full = locked.slots.as_ref().is_some_and(|slots| slots.full);
        let is_full = locked.rates.overflowed || slots_are_full;
        if is_full && !decision.is_allowed() {
            decision.source = Source::Overflow;
        }
        if !peeks && is_full {
            // A log subscriber may run any code, so the locks are released first.
            drop(locked);
            self.record_overflow(self.clock.now());
        }
        decision
    }
}

/// The locked accounts of a decision.
struct Locked<'a> {
    rates: LockedAccounts<'a>,
    slots: Option<LockedSlots<'a>>,
    /// `true` if the decision changes nothing.
    peeks: bool,
}

#[inline]
fn look_at_all(all: &mut [Account<'_>], locked: &mut Locked<'_>) {
    for index in 0..all.len() {
        all[index].evaluation = look(all, index, locked);
    }
}

/// Evaluates the demand of an account. New keys on one shared account count together.
#[inline]
fn look(all: &[Account<'_>], index: usize, locked: &mut Locked<'_>) -> Evaluation {
    let account = &all[index];
    if account.quota.is_concurrent()
        && let Some(slots) = &mut locked.slots
    {
        return slots::look(account, slots);
    }
    let Account {
        at, quota, demand, ..
    } = account;
    let now = locked.rates.now;
    let mut others = 0;
    if is_plain(quota)
        && let Some(instant) = locked.rates.instant(at)
    {
        return gcra::look(*instant, quota, now, *demand);
    }
    if locked.rates.overflowed {
        if demand.cost > 0
            && let Some(retry_ns) = locked.rates.shared_wait(at)
        {
            return Evaluation::denied(retry_ns);
        }
        let same = all
            .iter()
            .enumerate()
            .filter(|(i, other)| *i != index && other.at.shares(&account.at));
        others = same.map(|(_, other)| i64::from(other.demand.cost)).sum();
    }
    locked.rates.look(at, |state| {
        if others == 0 {
            return algorithm::look(state, quota, now, *demand);
        }
        let mut after = state.cloned();
        algorithm::adjust(&mut after, quota, now, others);
        algorithm::look(after.as_ref(), quota, now, *demand)
    })
}

/// Charges the accounts of an allowed decision.
#[inline]
fn charge(accounts: &mut Accounts<'_>, locked: &mut Locked<'_>, decision: &mut Decision) {
    let now = locked.rates.now;
    for index in 0..accounts.distinct.len() {
        let charges = accounts.charges(index);
        if locked.peeks {
            if charges {
                accounts.distinct[index].evaluation = preview(&accounts.distinct, index, locked);
            }
            continue;
        }
        let account = &mut accounts.distinct[index];
        let quota = account.quota;
        let demand = account.demand;
        if let (true, Some(slots)) = (quota.is_concurrent(), &mut locked.slots) {
            if charges {
                slots::hold(account, slots, decision);
            }
        } else if !charges {
            // A report-only rule that is not charged still creates the account.
            open(account, &mut locked.rates);
        } else if is_plain(quota)
            && let Some(instant) = locked.rates.instant(&account.at)
        {
            let (new, evaluation) = gcra::take(*instant, quota, now, demand);
            *instant = new.unwrap_or(*instant);
            account.evaluation = evaluation;
        } else {
            account.evaluation = locked.rates.update(&mut account.at, quota, |state| {
                algorithm::take(state, quota, now, demand)
            });
        }
    }
}

/// Returns the evaluation of an account after its charge, and changes nothing.
fn preview(all: &[Account<'_>], index: usize, locked: &mut Locked<'_>) -> Evaluation {
    let Account {
        at,
        quota,
        mut evaluation,
        ..
    } = all[index];
    let demand = all[index].demand;
    if quota.is_concurrent() {
        slots::add_held(&mut evaluation, demand.cost);
        return evaluation;
    }
    let now = locked.rates.now;
    let shared = all[..index]
        .iter()
        .filter(|other| other.at.shares(&all[index].at));
    let earlier = shared.map(|other| i64::from(other.demand.cost)).sum();
    locked.rates.look(&at, |state| {
        let mut after = state.cloned();
        if earlier > 0 {
            algorithm::adjust(&mut after, quota, now, earlier);
        }
        algorithm::take(&mut after, quota, now, demand)
    })
}

/// Adds the waits of a denied decision, and creates accounts with `initial` units.
#[inline(never)]
fn deny(accounts: &mut Accounts<'_>, locked: &mut Locked<'_>, clock: impl FnOnce() -> u64) {
    let all = &mut *accounts.distinct;
    if let Some(slots) = &mut locked.slots {
        slots::deny(all, slots, clock(), locked.peeks);
    }
    // The waits of a denial are those of callers that do not queue.
    for index in 0..all.len() {
        if all[index].demand.max_wait > 0 && !all[index].quota.is_concurrent() {
            all[index].demand.max_wait = 0;
            all[index].evaluation = look(all, index, locked);
        }
    }
    if !locked.peeks && accounts.retry_ns() != NEVER {
        accounts
            .distinct
            .iter_mut()
            .for_each(|account| open(account, &mut locked.rates));
    }
}

/// Creates an account with `initial` units, without a charge.
#[inline]
fn open(account: &mut Account<'_>, locked: &mut LockedAccounts<'_>) {
    let quota = account.quota;
    let demand = account.demand;
    let now = locked.now;
    // A new key may have been denied because its quota cannot have a shared account.
    if quota.initial().is_some() && account.evaluation.snapshot.is_known() {
        locked.update(&mut account.at, quota, |state| {
            algorithm::open(state, quota, now, demand);
        });
    }
}
