//! Decisions about slots: as part of a decision about several accounts, or alone.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    accounts::Account,
    held::{HeldKeys, HeldSlots, LockedSlots, Room, Shard, wake},
    ledger::Ledger,
    plain::plain_decision,
    slot_queue::Order,
    table::LockedAccounts,
};
use crate::{
    algorithm::{AccountState, Demand, Evaluation, concurrent},
    decision::{
        Decision, FreeSlots, Hold, Holds, NEVER, NOT_QUEUED, Position, QueuedAt, SlotQueues,
        Snapshot, Source, UNKNOWN_WAIT,
    },
    quota::Quota,
    store::Charge,
};

/// The locked accounts of a decision.
pub(super) struct Locked<'a> {
    pub(super) rates: LockedAccounts<'a, AccountState>,
    pub(super) slots: LockedSlots<'a>,
}

impl FreeSlots for Shard {
    #[inline]
    fn free(&self, id: u64, epoch: u64, units: u64) {
        self.free(id, epoch, units);
    }
}

impl SlotQueues for Shard {
    fn poll_called(&self, at: &QueuedAt, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_called(at.account, (at.headroom, at.arrival), at.ticket, cx)
    }

    fn leave(&self, at: &QueuedAt) {
        self.leave(at.account, (at.headroom, at.arrival), at.ticket);
    }
}

impl Ledger {
    /// Decides on one charge of one concurrent quota, without reading the clock.
    pub(super) fn take_slots(&self, charges: &[Charge<'_>]) -> Decision {
        if let [charge] = charges
            && let [quota] = charge.quotas()
            && charge.quota_index().is_none()
            && !quota.is_adaptive()
            && !self.blocks.any(0)
        {
            return self.take_alone(charge, quota);
        }
        self.decide_all(charges, self.clock.now())
    }

    fn take_alone(&self, charge: &Charge<'_>, quota: &Quota) -> Decision {
        let (id, demand) = (self.hasher.id(charge), charge.demand());
        let shard = self.held.shard(id);
        let mut keys = shard.lock();
        let order = (demand.headroom, charge.arrival());
        let (mut evaluation, full) = evaluate(&keys, id, order, quota, demand);
        let (mut holds, mut called) = (Holds::none(), None);
        if !evaluation.allowed {
            if demand.max_wait > 0 && !full && waits(&evaluation) && !charge.is_report_only() {
                let limit = quota.raised_limit();
                holds =
                    Holds::position(join(&self.held, (shard, &mut keys), id, order, demand, limit));
            }
            report(&mut evaluation, &mut keys, id, quota, demand, || self.clock.now());
            called = keys.call_next(id, quota.raised_limit());
        } else if demand.cost > 0 {
            if charge.arrival() != NOT_QUEUED {
                keys.set_queue_limit(id, quota.raised_limit());
            }
            holds.push(add(&mut evaluation, (shard, &mut keys), id, demand.cost));
        }
        drop(keys);
        wake(called);
        let mut decision = plain_decision([charge], [evaluation], 0);
        decision.hold(holds);
        if full {
            self.record_overflow(self.clock.now());
            if !decision.is_allowed() {
                return decision.with_source(Source::Overflow);
            }
        }
        decision
    }

    /// Sets the held slots of a charge's accounts to 0.
    pub(super) fn reset_slots(&self, charge: &Charge<'_>) {
        for account in self.hasher.accounts(&[*charge]).slots() {
            self.held.shard(account.at.id).reset(account.at.id);
            if account.quota.is_adaptive() {
                self.adaptive.reset(account.at.id);
            }
        }
    }

    /// Returns the state of an account of slots.
    pub(super) fn look_at_slots(&self, account: &Account<'_>) -> Snapshot {
        let id = account.at.id;
        let fixed = self.fixed(id, account.quota);
        let quota = fixed.as_ref().unwrap_or(account.quota);
        let (order, demand) = ((0, NOT_QUEUED), Demand::units(0));
        evaluate(&self.held.shard(id).lock(), id, order, quota, demand).0.snapshot
    }
}

/// Returns `true` for one charge of one concurrent quota.
#[inline]
pub(super) fn are_alone(charges: &[Charge<'_>]) -> bool {
    matches!(charges, [charge] if matches!(charge.quotas(), [quota] if quota.is_concurrent()))
}

/// Returns the result of an account's demand.
pub(super) fn look(account: &Account<'_>, slots: &mut LockedSlots<'_>) -> Evaluation {
    let (id, quota, demand) = (account.at.id, account.quota, account.demand);
    let Some((_, keys)) = slots.get(id) else { return denied(0, quota, demand) };
    let order = (demand.headroom, account.arrival);
    let (evaluation, full) = evaluate(keys, id, order, quota, demand);
    if full {
        slots.set_full();
    }
    evaluation
}

/// Holds the slots that an account's demand takes.
pub(super) fn hold(account: &mut Account<'_>, slots: &mut LockedSlots<'_>) -> Option<Hold> {
    let at = slots.get(account.at.id)?;
    if account.arrival != NOT_QUEUED {
        at.1.set_queue_limit(account.at.id, account.quota.raised_limit());
    }
    Some(add(&mut account.evaluation, at, account.at.id, account.demand.cost))
}

/// Adds the expected wait to a denial. A raised limit may have room for a request that waits.
pub(super) fn deny(account: &mut Account<'_>, slots: &mut LockedSlots<'_>, now: u64) {
    let (id, quota, demand) = (account.at.id, account.quota, account.demand);
    if let (false, Some((_, keys))) = (account.evaluation.allowed, slots.get(id)) {
        report(&mut account.evaluation, keys, id, quota, demand, || now);
        slots.call_next(id, quota.raised_limit());
    }
}

/// Adds the expected wait to a denial, without a record of the denial.
pub(super) fn expect_wait(account: &mut Account<'_>, slots: &mut LockedSlots<'_>, now: u64) {
    let (id, quota, demand) = (account.at.id, account.quota, account.demand);
    let Evaluation { allowed, snapshot, .. } = &mut account.evaluation;
    if let Snapshot::Slots { held, retry_ns, free_in_ns, .. } = snapshot
        && !*allowed
        && *retry_ns != NEVER
        && let Some((_, keys)) = slots.get(id)
    {
        *free_in_ns = keys.expected_wait(id, concurrent::missing(*held, quota, demand), now);
    }
}

/// Adds a denied request to the queue of the first account without enough free slots.
///
/// Returns `None` if another account denies the request as well, or if it must not wait.
pub(super) fn queue(accounts: &[Account<'_>], slots: &mut LockedSlots<'_>) -> Option<Position> {
    let mut denying =
        accounts.iter().filter(|it| !it.report_only && !it.evaluation.allowed).peekable();
    let first = *denying.peek()?;
    let can_wait = |it: &Account<'_>| it.demand.max_wait > 0 && waits(&it.evaluation);
    if slots.are_full() || !denying.all(can_wait) {
        return None;
    }
    let (id, demand) = (first.at.id, first.demand);
    let (table, at) = (slots.table(), slots.get(id)?);
    let order = (demand.headroom, first.arrival);
    Some(join(table, at, id, order, demand, first.quota.raised_limit()))
}

/// Returns `true` for a denial that ends when another request ends.
fn waits(evaluation: &Evaluation) -> bool {
    matches!(evaluation.snapshot, Snapshot::Slots { retry_ns: UNKNOWN_WAIT, .. })
}

/// Adds a denied request to the queue of an account.
fn join(
    table: &HeldSlots,
    (shard, keys): (&Arc<Shard>, &mut HeldKeys),
    id: u64,
    (headroom, arrival): Order,
    demand: Demand,
    limit: u32,
) -> Position {
    let ticket = table.ticket();
    let arrival = if arrival == NOT_QUEUED { ticket } else { arrival };
    keys.join(id, (headroom, arrival), demand.need(), ticket, limit.into());
    let at = QueuedAt { account: id, headroom, arrival, ticket };
    Position::new(Arc::clone(shard) as Arc<dyn SlotQueues>, at, demand.max_wait)
}

/// Returns the result of a demand, and `true` if a new account has no room. It is then denied.
fn evaluate(
    keys: &HeldKeys,
    id: u64,
    order: Order,
    quota: &Quota,
    demand: Demand,
) -> (Evaluation, bool) {
    match keys.room(id, order) {
        Room::Behind(held) if demand.cost > 0 => (denied(held, quota, demand), false),
        Room::Held(held) | Room::Behind(held) => (concurrent::look(held, quota, demand), false),
        Room::None if demand.cost == 0 => (concurrent::look(0, quota, demand), false),
        Room::None => (denied(0, quota, demand), true),
    }
}

/// Returns a denial, even if the demand fits.
fn denied(held: u64, quota: &Quota, demand: Demand) -> Evaluation {
    let mut evaluation = concurrent::look(u64::MAX, quota, demand);
    if let Snapshot::Slots { held: shown, .. } = &mut evaluation.snapshot {
        *shown = held;
    }
    evaluation
}

/// Holds `cost` slots, and adds them to the reported ones.
fn add(
    evaluation: &mut Evaluation,
    (shard, keys): (&Arc<Shard>, &mut HeldKeys),
    id: u64,
    cost: u32,
) -> Hold {
    add_held(evaluation, cost);
    let (epoch, shard) = (keys.hold(id, cost.into()), Arc::clone(shard));
    Hold::new(shard, id, epoch, cost.into())
}

/// Adds slots to the reported ones.
pub(super) fn add_held(evaluation: &mut Evaluation, cost: u32) {
    if let Snapshot::Slots { held, .. } = &mut evaluation.snapshot {
        *held = held.saturating_add(cost.into());
    }
}

/// Adds the expected wait of a denial, unless waiting does not help.
fn report(
    evaluation: &mut Evaluation,
    keys: &mut HeldKeys,
    id: u64,
    quota: &Quota,
    demand: Demand,
    now: impl FnOnce() -> u64,
) {
    if let Snapshot::Slots { held, retry_ns, free_in_ns, .. } = &mut evaluation.snapshot
        && *retry_ns != NEVER
    {
        *free_in_ns = keys.deny(id, concurrent::missing(*held, quota, demand), now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_expected_wait_is_the_time_between_two_freed_slots() {
        let shard = Shard::new(16);
        let epoch = shard.lock().hold(7, 5);
        let deny = |missing, at: u64| shard.lock().deny(7, missing, at * SECOND) / SECOND;
        assert_eq!(deny(1, 100), 0, "the first denial");
        assert_eq!(deny(1, 130), 30, "no slot was freed in 30 s");
        assert_eq!((deny(3, 130), deny(1, 159)), (60, 59), "a guess is at most a minute");
        // One slot is freed and taken again every 12 s: a mean hold of 60 s, divided by 5.
        for _ in 0..5 {
            shard.free(7, epoch, 1);
            shard.lock().hold(7, 1);
        }
        assert_eq!((deny(1, 160), deny(3, 160)), (12, 36));
        shard.free(7, epoch, 2);
        assert_eq!(deny(1, 500), 0, "the key was not exhausted in between");
    }

    #[test]
    fn a_shard_returns_the_memory_of_a_flood() {
        let shard = Shard::new(10_000);
        let all: Vec<_> = (1..=10_000).map(|id| (id, shard.lock().hold(id, 1))).collect();
        let order = (0, NOT_QUEUED);
        assert!(matches!(shard.lock().room(10_001, order), Room::None));
        assert!(matches!(shard.lock().room(10_000, order), Room::Held(1)), "it has an entry");
        all.into_iter().for_each(|(id, epoch)| shard.free(id, epoch, 1));
        let keys = shard.lock();
        assert_eq!((keys.entries.len(), keys.entries.capacity()), (0, 0));
    }
}
