//! Locked accounts whose whole state is one instant.

use super::{Set, Table};
use crate::store::sync::{MutexGuard, WAYS};

/// The locked accounts of a decision, whose states are single instants.
pub(crate) struct LockedInstants<'a, const N: usize> {
    /// The locked sets. Accounts of one set have the lock of the first of them.
    sets: [Option<MutexGuard<'a, Set>>; N],
    /// The index of each account's set, and that of its entry in the set.
    locks: [usize; N],
    entries: [usize; N],
}

impl Table {
    /// Locks accounts with different ids, and returns their states. The state of a new account is 0.
    ///
    /// Returns `None` if a state is more than one instant, or if a new account has no free entry, may start
    /// with debt, or is in a set that was changed after `now`.
    #[inline(always)]
    pub(crate) fn lock_instants<const N: usize>(
        &self,
        ids: [u64; N],
        now: u64,
    ) -> Option<([u64; N], LockedInstants<'_, N>)> {
        let mut indexes = [0; N];
        let mut order = [0; N];
        for at in 0..N {
            indexes[at] = self.index(ids[at]);
            order[at] = at;
        }
        order.sort_unstable_by_key(|at| indexes[*at]);
        let mut sets = [const { None }; N];
        let mut locks = [0; N];
        for (n, at) in order.into_iter().enumerate() {
            let is_locked = n > 0 && indexes[order[n - 1]] == indexes[at];
            locks[at] = if is_locked { locks[order[n - 1]] } else { at };
            if !is_locked {
                sets[at] = Some(self.sets[indexes[at]].0.lock());
            }
        }
        let mut entries = [WAYS; N];
        let mut states = [0; N];
        let mut are_known = true;
        for at in 0..N {
            let set: &mut MutexGuard<'_, Set> = sets[locks[at]].as_mut()?;
            match set.find(ids[at]) {
                Some(entry) => (entries[at], states[at]) = (entry, *set.instant(entry)?),
                None => are_known = false,
            }
        }
        if !are_known {
            for at in 0..N {
                let set = sets[locks[at]].as_mut()?;
                if entries[at] == WAYS {
                    entries[at] = set.claim_without_debt(ids[at], now, |entry| {
                        (0..N).any(|n| locks[n] == locks[at] && entries[n] == entry)
                    })?;
                }
            }
        }
        let locked = LockedInstants {
            sets,
            locks,
            entries,
        };
        Some((states, locked))
    }
}

impl<const N: usize> LockedInstants<'_, N> {
    /// Replaces the states, and unlocks the accounts.
    #[inline(always)]
    pub(crate) fn store(mut self, states: [u64; N]) {
        for (at, state) in states.into_iter().enumerate() {
            if let Some(set) = &mut self.sets[self.locks[at]] {
                // Below `WAYS` already. The remainder spares the check of the bounds.
                set.expires_at[self.entries[at] % WAYS] = state;
            }
        }
    }
}
