//! Decisions about any accounts, under the locks of all of them.

use std::time::Duration;

use super::{
    accounts::{Account, Accounts, Effect},
    held::LockedSlots,
    ledger::{Ledger, is_plain},
    slots,
    table::LockedAccounts,
};
use crate::{
    algorithm::{self, AccountState, Evaluation, gcra},
    decision::{Decision, NEVER, Outcome, Source},
    quota::Quota,
    store::{Charge, Waiter},
};

/// The locked accounts of a decision.
struct Locked<'a> {
    rates: LockedAccounts<'a>,
    slots: Option<LockedSlots<'a>>,
    effect: Effect,
}

impl Ledger {
    /// Decides on the charges of all accounts.
    #[inline]
    pub(super) fn decide(
        &self,
        effect: Effect,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
        now: u64,
    ) -> Decision {
        if self.blocks.may_have(now)
            && let Some(denial) = self.blocked(charges)
        {
            return denial;
        }
        let mut decision = Decision::new(true, now);
        let mut accounts = Accounts::default();
        self.collect(charges, &mut accounts);
        let mut locked = self.lock(effect, &mut accounts, waiter, now);
        self.look_at_all(charges, &mut accounts, &mut locked);
        if accounts.are_allowed() {
            charge_all(&mut accounts, &mut locked, &mut decision);
        } else {
            deny_all(&mut accounts, &mut locked, || self.clock.now());
        }
        accounts.report(locked.rates.now, &mut decision);
        let lacks_slots = locked.slots.as_ref().is_some_and(|slots| slots.full);
        let is_full = lacks_slots || locked.rates.overflowed;
        if is_full && !decision.is_allowed() {
            decision.source = Source::Overflow;
        }
        if is_full && effect == Effect::Charge {
            // A log subscriber may run any code, so the locks are released first.
            drop(locked);
            self.record_overflow(self.clock.now(), lacks_slots);
        }
        decision
    }

    /// Returns the denial of the charges if a key is blocked: for the longest of several blocks.
    #[cold]
    fn blocked(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let now = self.clock.now();
        let deciding = charges.iter().filter(|charge| charge.may_deny());
        let left = deciding.map(|charge| (charge, self.blocks.left(self.key_id(charge), now)));
        let (charge, left) = left.max_by_key(|(_, left)| *left)?;
        if left == 0 {
            return None;
        }
        let limit = charge.quotas.first().map_or(1, Quota::limit);
        let outcome = Outcome::block(charge.rule, limit, Duration::from_nanos(left));
        let denial = Decision::new(false, now).with_blocked();
        Some(denial.with_outcome(outcome))
    }

    /// Locks all accounts: the sets of the rates, then the slots, then the accounts that new keys share.
    #[inline]
    fn lock<'a>(
        &'a self,
        effect: Effect,
        accounts: &mut Accounts<'_>,
        waiter: Option<&'a Waiter>,
        now: u64,
    ) -> Locked<'a> {
        let mut place = waiter.and_then(|waiter| waiter.take_place(|_| true));
        if let Some(other) =
            place.take_if(|place| accounts.slots().all(|account| account.at.id != place.queue))
        {
            other.leave();
        }
        let mut rates = self.table.lock(&mut accounts.distinct, now);
        let ids = accounts.slots().map(|account| account.at.id);
        let slots = self.held.lock(ids, waiter, place);
        if rates.overflowed {
            rates.share(&mut accounts.distinct);
        }
        Locked {
            rates,
            slots,
            effect,
        }
    }

    /// Evaluates all demands, and once more if a later reading of the clock may change a denial.
    #[inline]
    fn look_at_all(
        &self,
        charges: &[Charge<'_>],
        accounts: &mut Accounts<'_>,
        locked: &mut Locked<'_>,
    ) {
        look_at_each(&mut accounts.distinct, locked);
        if !accounts.are_allowed()
            && let Some(later) = self.later(charges, locked.rates.now, accounts.retry_ns())
        {
            locked.rates.now = later;
            look_at_each(&mut accounts.distinct, locked);
        }
    }
}

#[inline]
fn look_at_each(all: &mut [Account<'_>], locked: &mut Locked<'_>) {
    for index in 0..all.len() {
        all[index].evaluation = look(all, index, locked);
    }
}

/// Evaluates the demand of an account, after the charges of those before it.
#[inline]
fn look(all: &[Account<'_>], index: usize, locked: &mut Locked<'_>) -> Evaluation {
    let account = &all[index];
    if account.quota.is_concurrent()
        && let Some(slots) = &mut locked.slots
    {
        return slots::look(account, slots);
    }
    let rates = &mut locked.rates;
    if is_plain(account.quota)
        && let Some(instant) = rates.instant(&account.at)
    {
        return gcra::look(*instant, account.quota, rates.now, account.demand);
    }
    if account.demand.cost > 0 && account.at.is_nowhere() {
        return Evaluation::denied(rates.shared_wait(&account.at).unwrap_or(NEVER));
    }
    let now = rates.now;
    read_after(&all[..index], account, rates, |state| {
        algorithm::look(state, account.quota, now, account.demand)
    })
}

/// Calls `read` with an account after the charges of earlier ones. New keys may share it with them.
#[inline]
fn read_after(
    earlier: &[Account<'_>],
    account: &Account<'_>,
    rates: &mut LockedAccounts<'_>,
    read: impl FnOnce(Option<&AccountState>) -> Evaluation,
) -> Evaluation {
    if !rates.overflowed || !rates.has_shared_debt(&account.at) {
        return rates.look(&account.at, read);
    }
    let now = rates.now;
    let mut sharing = earlier
        .iter()
        .filter(|other| other.at.is_shared_by(&account.at))
        .peekable();
    rates.look(&account.at, |state| {
        if sharing.peek().is_none() {
            return read(state);
        }
        let mut after = state.cloned();
        for other in sharing {
            algorithm::charge(&mut after, other.quota, now, other.demand.cost);
        }
        read(after.as_ref())
    })
}

/// Charges the accounts of an allowed decision.
#[inline]
fn charge_all(accounts: &mut Accounts<'_>, locked: &mut Locked<'_>, decision: &mut Decision) {
    for index in 0..accounts.distinct.len() {
        let is_charged = accounts.charges(index);
        if locked.effect == Effect::Nothing {
            if is_charged {
                accounts.distinct[index].evaluation = preview(&accounts.distinct, index, locked);
            }
            continue;
        }
        let account = &mut accounts.distinct[index];
        if is_charged {
            charge(account, locked, decision);
        } else {
            // A report-only rule that is not charged still creates the account.
            open(account, &mut locked.rates);
        }
    }
}

#[inline]
fn charge(account: &mut Account<'_>, locked: &mut Locked<'_>, decision: &mut Decision) {
    let quota = account.quota;
    let demand = account.demand;
    if quota.is_concurrent()
        && let Some(slots) = &mut locked.slots
    {
        return slots::hold(account, slots, decision);
    }
    let rates = &mut locked.rates;
    let now = rates.now;
    if is_plain(quota)
        && let Some(instant) = rates.instant(&account.at)
    {
        let (new, evaluation) = gcra::take(*instant, quota, now, demand);
        *instant = new.unwrap_or(*instant);
        account.evaluation = evaluation;
        return;
    }
    account.evaluation = rates.update(&mut account.at, quota, |state| {
        algorithm::take(state, quota, now, demand)
    });
}

/// Returns the evaluation of an account after its charge, and changes nothing.
fn preview(all: &[Account<'_>], index: usize, locked: &mut Locked<'_>) -> Evaluation {
    let account = &all[index];
    let quota = account.quota;
    if quota.is_concurrent() {
        let mut evaluation = account.evaluation;
        slots::add_held(&mut evaluation, account.demand.cost);
        return evaluation;
    }
    let now = locked.rates.now;
    read_after(&all[..index], account, &mut locked.rates, |state| {
        let mut after = state.cloned();
        algorithm::take(&mut after, quota, now, account.demand)
    })
}

/// Adds the waits of a denied decision, and creates accounts with `initial` units.
#[inline(never)]
fn deny_all(accounts: &mut Accounts<'_>, locked: &mut Locked<'_>, clock: impl FnOnce() -> u64) {
    let all = &mut *accounts.distinct;
    if let Some(slots) = &mut locked.slots {
        deny_slots(all, slots, locked.effect, clock());
    }
    // The waits of a denial are those of callers that do not queue.
    for index in 0..all.len() {
        if all[index].demand.max_wait > 0 && !all[index].quota.is_concurrent() {
            all[index].demand.max_wait = 0;
            all[index].evaluation = look(all, index, locked);
        }
    }
    if locked.effect == Effect::Charge && accounts.retry_ns() != NEVER {
        for account in &mut accounts.distinct {
            open(account, &mut locked.rates);
        }
    }
}

fn deny_slots(all: &mut [Account<'_>], slots: &mut LockedSlots<'_>, effect: Effect, now: u64) {
    let counts = effect == Effect::Charge;
    slots::estimate_waits(all, slots, now, counts);
    if counts {
        slots::join_queue(all, slots);
    }
}

/// Creates an account with `initial` units, without a charge.
#[inline]
fn open(account: &mut Account<'_>, locked: &mut LockedAccounts<'_>) {
    let quota = account.quota;
    let demand = account.demand;
    let now = locked.now;
    if quota.initial().is_some() {
        locked.update(&mut account.at, quota, |state| {
            algorithm::open(state, quota, now, demand);
        });
    }
}
