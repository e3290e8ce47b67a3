//! Decisions about slots, as parts of a decision about several accounts.

use std::sync::Arc;

use super::{
    accounts::Account,
    held::{self, Held, LockedSlots, Shard},
};
use crate::{
    algorithm::{Demand, Evaluation, concurrent},
    decision::{Decision, FreeSlots, Hold, NEVER, Outcome, UNKNOWN_WAIT},
    quota::Quota,
    store::{Charge, waiter::Rank},
};

impl FreeSlots for Shard {
    #[inline]
    fn free(&self, id: u64, epoch: u64, units: u64) {
        held::free(self, id, epoch, units);
    }
}

/// Takes slots of the first quota of a charge, if they are free and no request waits for them. Adds them
/// to a new decision.
#[inline(always)]
pub(super) fn take(
    shard: &Arc<Shard>,
    id: u64,
    charge: &Charge<'_>,
    demand: Demand,
    decision: &mut Decision,
) -> Option<()> {
    let quota = &charge.quotas[0];
    let need = demand.need();
    let cost = demand.cost.into();
    let most = quota.raised_limit().checked_sub(need)?;
    let Held { before, epoch } = shard.lock().hold_within(most, id, demand.headroom, cost)?;
    decision.hold(hold_of(shard, id, epoch, quota, demand.cost));
    decision.overage = before + need > quota.limit().into();
    let snapshot = concurrent::snapshot(before + cost, quota, 0);
    let outcome = Outcome::with(charge.rule, 0, snapshot);
    decision.outcomes.push(outcome);
    Some(())
}

/// Returns the result of an account's demand.
#[inline]
pub(super) fn look(account: &Account<'_>, slots: &mut LockedSlots<'_>) -> Evaluation {
    let id = account.at.id;
    let quota = account.quota;
    let demand = account.demand;
    let rank = Rank::new(slots.waiter, demand.headroom);
    let room = slots.get(id).and_then(|keys| keys.room(id, rank));
    let held = room.map_or(0, |room| room.held);
    if demand.cost == 0 || room.is_some_and(|room| room.is_next) {
        return concurrent::look(held, quota, demand);
    }
    slots.full |= room.is_none();
    // The demand is denied, even if it fits.
    let mut evaluation = concurrent::look(u64::MAX, quota, demand);
    evaluation.snapshot.set_held(held);
    evaluation
}

/// Holds the slots that an account's demand takes.
#[inline]
pub(super) fn hold(
    account: &mut Account<'_>,
    slots: &mut LockedSlots<'_>,
    decision: &mut Decision,
) {
    let id = account.at.id;
    let cost = account.demand.cost;
    let shard = slots.table.shard(id);
    let Some(keys) = slots.get(id) else { return };
    add_held(&mut account.evaluation, cost);
    let epoch = keys.hold(id, cost.into());
    decision.hold(hold_of(shard, id, epoch, account.quota, cost));
    if slots.waiter.is_some() {
        // A raised limit may have room for the next request as well.
        slots.wake_next(id, account.quota.raised_limit());
    }
}

/// Returns the hold of `cost` slots.
#[inline(always)]
pub(super) fn hold_of(shard: &Arc<Shard>, id: u64, epoch: u64, quota: &Quota, cost: u32) -> Hold {
    Hold::new(Arc::<Shard>::clone(shard), id, epoch, cost).until_head(quota.sheds())
}

/// Adds slots to the reported ones.
#[inline]
pub(super) fn add_held(evaluation: &mut Evaluation, cost: u32) {
    if let Some(held) = evaluation.snapshot.held() {
        evaluation
            .snapshot
            .set_held(held.saturating_add(cost.into()));
    }
}

/// Adds the estimated wait to each denial that is not permanent. Before, records the denials if they
/// count.
pub(super) fn estimate_waits(
    accounts: &mut [Account<'_>],
    slots: &mut LockedSlots<'_>,
    now: u64,
    counts: bool,
) {
    for account in accounts {
        let id = account.at.id;
        let snapshot = &mut account.evaluation.snapshot;
        if let Some(held) = snapshot.held()
            && ![0, NEVER].contains(&snapshot.retry_ns())
            && let Some(keys) = slots.get(id)
        {
            if counts {
                keys.deny(id, now);
            }
            let missing = concurrent::missing(held, account.quota, account.demand);
            snapshot.set_free_in(keys.estimated_wait(id, missing, now));
        }
    }
}

/// Adds the request of a denied decision to the queue of the first account without enough free slots, if
/// every account that denies it counts slots for which it may wait.
pub(super) fn join_queue(accounts: &[Account<'_>], slots: &mut LockedSlots<'_>) {
    let mut denying = accounts
        .iter()
        .filter(|account| !account.report_only && !account.evaluation.allowed);
    if let Some(first) = denying.clone().next()
        && !slots.full
        && denying.all(may_wait)
    {
        let limit = first.quota.raised_limit();
        let Demand {
            headroom, max_wait, ..
        } = first.demand;
        slots.join(first.at.id, headroom, limit, max_wait);
    }
    for account in accounts {
        if account.evaluation.snapshot.held().is_some() {
            // A raised limit may have room for a request that waits.
            slots.wake_next(account.at.id, account.quota.raised_limit());
        }
    }
}

/// Returns `true` if the request may wait for slots of the account. Two charges of one account take two
/// slots, for which no request waits.
fn may_wait(account: &Account<'_>) -> bool {
    let demand = account.demand;
    demand.cost == 1
        && demand.max_wait > 0
        && account.evaluation.snapshot.retry_ns() == UNKNOWN_WAIT
}

#[cfg(test)]
mod tests {
    use super::{
        super::held::{HeldKeys, Room},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_estimated_wait_is_the_time_between_two_freed_slots() {
        let shard = HeldKeys::shard(16);
        let epoch = shard.lock().hold(7, 5);
        let deny = |missing, at: u64| {
            let mut keys = shard.lock();
            keys.deny(7, at * SECOND);
            keys.estimated_wait(7, missing, at * SECOND) / SECOND
        };
        assert_eq!(deny(1, 100), 0, "the first denial");
        assert_eq!(deny(1, 130), 30, "no slot was freed in 30 s");
        assert_eq!(
            (deny(3, 130), deny(1, 159)),
            (60, 59),
            "a guess is at most a minute"
        );
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
        let shard = HeldKeys::shard(10_000);
        let all: Vec<_> = (1..=10_000)
            .map(|id| (id, shard.lock().hold(id, 1)))
            .collect();
        let rank = Rank::new(None, 0);
        assert!(shard.lock().room(10_001, rank).is_none());
        assert!(
            shard.lock().room(10_000, rank)
                == Some(Room {
                    held: 1,
                    is_next: true
                }),
            "it has an entry"
        );
        all.into_iter()
            .for_each(|(id, epoch)| shard.free(id, epoch, 1));
        let keys = shard.lock();
        assert!(
            keys.entries.len() == 1 && keys.entries.capacity() <= 64,
            "the last key is kept"
        );
    }
}
