//! Locked accounts whose whole state is one instant.

use std::array;

use super::{Set, Table};
use crate::store::sync::{MutexGuard, WAYS};

/// The locked accounts of a decision, whose states are single instants.
pub(crate) struct LockedInstants<'a, const N: usize> {
    /// The state of each account, which is 0 for a new one.
    pub(crate) states: [u64; N],
    /// The slot of each account, or [`WAYS`] before it has one.
    slots: [usize; N],
    /// For each account, the index in `sets` of the lock of its set.
    locks: [usize; N],
    /// The locked sets. Accounts of one set have the lock of the first of them.
    sets: [Option<MutexGuard<'a, Set>>; N],
}

impl Table {
    /// Locks accounts with different ids.
    ///
    /// Returns `None` if a state is more than one instant, or if a new account has no free slot or
    /// may start with debt.
    #[inline(always)]
    pub(crate) fn lock_instants<const N: usize>(
        &self,
        ids: [u64; N],
        now: u64,
    ) -> Option<LockedInstants<'_, N>> {
        let mut locked = LockedInstants::lock(self, ids);
        locked.find(ids)?;
        if locked.slots.contains(&WAYS) {
            locked.claim_slots(ids, now)?;
        }
        Some(locked)
    }
}

impl<'a, const N: usize> LockedInstants<'a, N> {
    /// Locks the sets of the accounts, in ascending order.
    #[inline(always)]
    fn lock(table: &'a Table, ids: [u64; N]) -> Self {
        let indexes = ids.map(|id| table.index(id));
        let mut order: [usize; N] = array::from_fn(|at| at);
        order.sort_unstable_by_key(|at| indexes[*at]);
        let mut locks = [0; N];
        let mut sets = [const { None }; N];
        for (n, at) in order.into_iter().enumerate() {
            if n > 0 && indexes[order[n - 1]] == indexes[at] {
                locks[at] = locks[order[n - 1]];
            } else {
                locks[at] = at;
                sets[at] = Some(table.sets[indexes[at]].0.lock());
            }
        }
        Self {
            states: [0; N],
            slots: [WAYS; N],
            locks,
            sets,
        }
    }

    /// Finds the slots and the states of known accounts. Returns `None` if a state is more than one
    /// instant.
    #[inline(always)]
    fn find(&mut self, ids: [u64; N]) -> Option<()> {
        for (at, id) in ids.into_iter().enumerate() {
            let set = self.sets[self.locks[at]].as_mut()?;
            if let Some(slot) = set.find(id) {
                self.slots[at] = slot;
                self.states[at] = *set.instant(slot)?;
            }
        }
        Some(())
    }

    /// Assigns free slots to new accounts. Returns `None` if there is none, or debt.
    #[inline(always)]
    fn claim_slots(&mut self, ids: [u64; N], now: u64) -> Option<()> {
        for (at, id) in ids.into_iter().enumerate() {
            let lock = self.locks[at];
            let set = self.sets[lock].as_mut()?;
            if self.slots[at] == WAYS {
                self.slots[at] = set.claim_without_debt(id, now, |slot| {
                    (0..N).any(|n| self.locks[n] == lock && self.slots[n] == slot)
                })?;
            }
        }
        Some(())
    }

    /// Replaces the states, and unlocks the accounts.
    #[inline(always)]
    pub(crate) fn store(mut self, states: [u64; N]) {
        for (at, state) in states.into_iter().enumerate() {
            if let Some(set) = &mut self.sets[self.locks[at]] {
                set.expires_at[self.slots[at] % WAYS] = state;
            }
        }
    }
}
