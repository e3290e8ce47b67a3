//! The accounts of a store, for every algorithm, or its blocked keys.
//!
//! A decision locks the sets of its accounts in ascending order, and the shared accounts last. Its
//! instant is its reading of the clock, or the latest change in these sets if that is later. No line is
//! logged and no user code runs under these locks.

mod located;
mod locked;
mod set;
mod shared;

use std::array;

use smallvec::SmallVec;

pub(super) use self::{located::Located, locked::LockedAccounts, set::Set};
use self::{located::Place, set::Aligned, shared::SharedAccounts};
use crate::store::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, WAYS};

/// The maximum number of groups of sets. A group keeps one instant: its latest reset.
const RESET_GROUPS: usize = 1_024;
const SECOND: u64 = 1_000_000_000;

/// A table of accounts with fixed memory, divided into sets of slots with one lock each.
///
/// A lookup usually reads one slot, and at most sixteen. The slot of an expired account can be
/// reused, so no sweep is needed.
///
/// New keys share accounts if their set has no free slot. The sets are divided into groups. Each
/// group has one shared account per rule and address of a quota, which limits all new keys of the group
/// together. A key that later gets a slot starts with the debt of the shared account. A flood of new keys therefore neither frees an
/// exhausted key nor affects other rules.
#[derive(Debug)]
pub(super) struct Table {
    sets: Box<[Aligned]>,
    /// The shared accounts. The caller must not lock a set while it holds this lock.
    shared: Mutex<SharedAccounts>,
    /// The latest reset of each group of sets. Charges before that instant cannot be undone.
    void_before: OnceLock<Box<[AtomicU64]>>,
}

impl Table {
    /// Creates a table with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let sets = (0..slots.div_ceil(WAYS).max(1))
            .map(|_| Aligned::default())
            .collect();
        Self {
            sets,
            shared: Mutex::default(),
            void_before: OnceLock::new(),
        }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Counts the accounts that have not expired. Reads every slot.
    pub(super) fn active(&self, now: u64) -> usize {
        let mut active = 0;
        for set in &self.sets {
            let set = set.0.lock();
            active += set
                .expires_at
                .iter()
                .filter(|instant| **instant > now)
                .count();
        }
        active
    }

    /// Returns the index of the set for `id`.
    #[inline]
    fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.sets.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Locks the set for `id`.
    pub(super) fn set(&self, id: u64) -> MutexGuard<'_, Set> {
        self.sets[self.index(id)].0.lock()
    }

    /// Locks accounts with different ids, and returns their states. The state of a new account is 0.
    ///
    /// Returns `None` if a state is more than one instant, or if a new account has no free slot or
    /// may start with debt.
    #[inline(always)]
    pub(super) fn lock_instants<const N: usize>(
        &self,
        ids: [u64; N],
        now: u64,
    ) -> Option<([u64; N], LockedInstants<'_, N>)> {
        let mut sets = [0; N];
        let mut order = [0; N];
        for at in 0..N {
            (sets[at], order[at]) = (self.index(ids[at]), at);
        }
        order.sort_unstable_by_key(|at| sets[*at]);
        // Accounts of one set have the lock of the first of them.
        let mut locks = [const { None }; N];
        let mut lock = [0; N];
        for (n, at) in order.into_iter().enumerate() {
            let is_locked = n > 0 && sets[order[n - 1]] == sets[at];
            lock[at] = if is_locked { lock[order[n - 1]] } else { at };
            if !is_locked {
                locks[at] = Some(self.sets[sets[at]].0.lock());
            }
        }
        let mut slots = [WAYS; N];
        let mut old = [0; N];
        let mut are_known = true;
        for at in 0..N {
            let set: &mut MutexGuard<'_, Set> = locks[lock[at]].as_mut()?;
            match set.find(ids[at]) {
                Some(slot) => (slots[at], old[at]) = (slot, *set.instant(slot)?),
                None => are_known = false,
            }
        }
        if !are_known {
            for at in 0..N {
                let set = locks[lock[at]].as_mut()?;
                if slots[at] == WAYS {
                    slots[at] = set.claim_without_debt(ids[at], now, |slot| {
                        (0..N).any(|n| lock[n] == lock[at] && slots[n] == slot)
                    })?;
                }
            }
        }
        Some((old, (locks, array::from_fn(|at| (lock[at], slots[at])))))
    }

    /// Replaces the states of locked accounts, and unlocks the accounts.
    #[inline(always)]
    pub(super) fn store_instants<const N: usize>(
        (mut locks, places): LockedInstants<'_, N>,
        new: [u64; N],
    ) {
        for ((lock, slot), new) in places.into_iter().zip(new) {
            if let Some(set) = &mut locks[lock] {
                set.expires_at[slot % WAYS] = new;
            }
        }
    }

    /// Keeps an account until `until`. Returns `false` if there is no room.
    pub(super) fn keep(&self, id: u64, now: u64, until: u64) -> bool {
        let mut set = self.set(id);
        let found = set.find(id).or_else(|| set.room(id, now, |_| false));
        if let Some(at) = found {
            set.claim(at, id, now);
            set.expires_at[at] = until;
        }
        found.is_some()
    }

    /// Ends an account now.
    pub(super) fn end(&self, id: u64, now: u64) {
        let mut set = self.set(id);
        if let Some(at) = set.find(id) {
            set.expires_at[at] = now;
        }
    }

    /// Returns the nanoseconds until an account expires, or 0 if there is no account.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let set = self.set(id);
        set.find(id)
            .map_or(0, |at| set.expires_at[at].saturating_sub(now))
    }

    /// Locks the accounts of a decision, and finds their places. The ids must differ.
    #[inline]
    pub(super) fn lock<A>(&self, accounts: &mut [A], now: u64) -> LockedAccounts<'_>
    where
        A: AsRef<Located> + AsMut<Located>,
    {
        let sets = SmallVec::new();
        let shared = None;
        let mut locked = LockedAccounts {
            table: self,
            sets,
            shared,
            now,
            overflowed: false,
        };
        let mut first = usize::MAX;
        let mut is_known = true;
        for account in accounts.iter_mut().map(A::as_mut) {
            if account.place != Place::Elsewhere {
                account.set = self.index(account.id);
                first = first.min(account.set);
            }
        }
        while first < usize::MAX {
            let set = self.sets[first].0.lock();
            let mut next = usize::MAX;
            for account in accounts.iter_mut().map(A::as_mut) {
                if account.set == first {
                    account.lock = locked.sets.len();
                    account.place = set.find(account.id).map_or(Place::Shared, Place::Slot);
                    is_known &= account.has_slot();
                } else if account.set > first {
                    next = next.min(account.set);
                }
            }
            locked.now = locked.now.max(set.newest);
            locked.sets.push(set);
            first = next;
        }
        if !is_known {
            locked.find_rooms(accounts);
        }
        locked
    }
}

/// Locks of sets, and the lock and the slot of each account.
pub(super) type LockedInstants<'a, const N: usize> =
    ([Option<MutexGuard<'a, Set>>; N], [(usize, usize); N]);
