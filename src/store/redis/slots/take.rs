//! Slots that one call takes, and those that it frees on the way.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use smallvec::SmallVec;

use super::{FreedSlots, RunningSlots, MAX_COST, MAX_FREED, SlotAccount, Slots, SlotsState};
use crate::{
    decision::{Hold, LossSignal},
    log::warn,
    store::redis::{reply::Reply, request::Request},
};

/// The slots of one quota in a call.
#[derive(Debug)]
pub(crate) struct SlotTake {
    pub(crate) account: usize,
    pub(crate) quota_index: usize,
    id: u64,
    /// The number of the first slot that the call takes.
    pub(crate) first: u64,
    /// The number of slots that the call takes.
    pub(crate) cost: u32,
    pub(crate) freed: Vec<(u64, u32)>,
}

/// The slots of a call. Without an answer, they are freed, because the server may count them.
pub(crate) struct SlotCall {
    pub(crate) slots: Arc<Slots>,
    pub(crate) takes: SmallVec<[SlotTake; 1]>,
}

impl Slots {
    /// Creates a call that neither takes nor frees slots.
    pub(crate) fn without(self: &Arc<Self>) -> SlotCall {
        SlotCall { slots: self.clone(), takes: SmallVec::new() }
    }

    /// Numbers the slots that a request takes.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request) -> SlotCall {
        let mut call = self.without();
        for (at, account) in request.accounts.iter().enumerate() {
            for (quota_index, (_, ask)) in account.slots() {
                let cost = if ask.cost > MAX_COST { too_many(ask.cost) } else { ask.cost };
                let id = self.id(&account.address, quota_index);
                let mut state = self.state();
                if cost > 0 {
                    let new = || SlotAccount::new(&account.address, quota_index);
                    state.accounts.entry(id).or_insert_with(new).calls += 1;
                }
                let (first, freed) = (state.next, state.freed(id));
                state.next += u64::from(cost);
                drop(state);
                call.takes.push(SlotTake { account: at, quota_index, id, first, cost, freed });
            }
        }
        call
    }
}

impl SlotsState {
    /// Returns the freed slots of an account that the server may still count, oldest first.
    fn freed(&self, id: u64) -> Vec<(u64, u32)> {
        let Some(account) = self.accounts.get(&id) else { return Vec::new() };
        let mut room = MAX_FREED;
        let all = account.freed.iter().map(|(first, it)| (*first, it.units));
        all.map_while(|(first, units)| {
            room = room.checked_sub(units)?;
            Some((first, units))
        })
        .collect()
    }
}

impl SlotCall {
    /// Records the answer, and returns the held slots.
    pub(crate) fn answered(mut self, reply: &Reply) -> Vec<Hold> {
        let mut holds = Vec::new();
        for take in std::mem::take(&mut self.takes) {
            let mut state = self.slots.state();
            let Some(account) = state.accounts.get_mut(&take.id) else { continue };
            for (first, _) in &take.freed {
                account.freed.remove(first);
            }
            account.calls -= usize::from(take.cost > 0);
            if take.cost > 0 && reply.accounts[take.account].charged {
                let lost = Arc::new(LossSignal::new());
                account.held.insert(take.first, RunningSlots { units: take.cost, lost: lost.clone() });
                let counted_by = self.slots.clone();
                let hold = Hold::new(counted_by, take.id, take.first, take.cost.into());
                holds.push(hold.with_loss(lost));
            } else if account.is_idle() {
                state.accounts.remove(&take.id);
            }
        }
        holds
    }
}

impl Drop for SlotCall {
    fn drop(&mut self) {
        let ends_at = self.slots.end();
        for take in self.takes.iter().filter(|take| take.cost > 0) {
            let mut state = self.slots.state();
            if let Some(account) = state.accounts.get_mut(&take.id) {
                account.calls -= 1;
                account.freed.insert(take.first, FreedSlots { units: take.cost, ends_at });
            }
            drop(state);
            self.slots.wake.notify_one();
        }
    }
}

/// Logs that a request is denied, and returns the slots that it takes.
#[cold]
fn too_many(cost: u32) -> u32 {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Relaxed) {
        warn!(
            "a request for {cost} slots is denied, because a request takes at most {MAX_COST} on Redis; \
             lower its cost (logged once)"
        );
    }
    0
}
