//! All accounts of a store, for every algorithm.
//!
//! A decision locks the sets of its accounts in ascending order, and the shared accounts last. No
//! line is logged and no user code runs under these locks.

use std::{array, borrow::BorrowMut};

use smallvec::SmallVec;

use super::{
    overflow::{Overflow, SharedAccounts, SharedAddress},
    sets::{Set, Sets, Stored},
    sync::{
        AtomicU64, MutexGuard, OnceLock,
        Ordering::{AcqRel, Acquire},
    },
};
use crate::name::RuleName;

/// The maximum number of groups of sets. A group keeps one instant: its latest reset.
const RESET_GROUPS: usize = 1_024;

/// An account of a decision: its address, and its place in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
    /// The index of the set in the table.
    set: usize,
    /// The index of that set's lock in [`LockedAccounts::sets`].
    lock: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Slot(usize),
    /// A free slot, for a key without an account. A new account starts with the debt of the shared
    /// account.
    Room(usize),
    /// No slot. The key has no account, and no slot is free.
    Shared,
    /// Not in this table. The account counts held slots.
    Elsewhere,
}

impl Located {
    /// Creates an account whose place is not known yet. [`Table::lock`] finds the place, unless the
    /// account counts held slots.
    #[inline]
    pub(super) fn new(id: u64, rule: RuleName, quota_index: usize, has_slots: bool) -> Self {
        let (place, set) = match has_slots {
            true => (Place::Elsewhere, usize::MAX),
            false => (Place::Shared, 0),
        };
        Self { id, rule, quota_index, set, lock: 0, place }
    }

    /// Returns `true` if the key has an account of its own.
    pub(super) fn has_slot(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// Returns `true` if both keys are new and share one account.
    pub(super) fn shares(&self, other: &Self) -> bool {
        let is_shared = self.place == Place::Shared && other.place == Place::Shared;
        is_shared && self.shared_address() == other.shared_address()
    }

    fn shared_address(&self) -> SharedAddress {
        SharedAddress::new(self.set, self.rule, self.quota_index)
    }
}

#[derive(Debug)]
pub(super) struct Table<A> {
    sets: Sets<A>,
    overflow: Overflow<A>,
    /// The latest reset of each group of sets. Charges before that instant cannot be undone.
    void_before: OnceLock<Box<[AtomicU64]>>,
}

impl<A> Table<A> {
    /// Creates a table with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let sets = Sets::new(slots);
        let overflow = Overflow::new(sets.len());
        Self { sets, overflow, void_before: OnceLock::new() }
    }

    pub(super) fn sets(&self) -> &Sets<A> {
        &self.sets
    }

    pub(super) fn overflow(&self) -> &Overflow<A> {
        &self.overflow
    }

    /// Applies `change` to the account `id` if its state is one instant. Otherwise, returns `None`.
    ///
    /// `change` returns the new instant, or `None` to keep the old instant.
    #[inline(always)]
    pub(super) fn update_instant<T>(
        &self,
        id: u64,
        change: impl FnOnce(u64) -> (Option<u64>, T),
    ) -> Option<T> {
        let mut set = self.sets.lock(self.sets.index(id));
        let at = set.find(id)?;
        let instant = set.instant(at)?;
        let (new, result) = change(*instant);
        if let Some(new) = new {
            *instant = new;
        }
        Some(result)
    }

    /// Like [`update_instant`](Table::update_instant), for several accounts with different ids.
    #[inline]
    pub(super) fn update_instants<T, const N: usize>(
        &self,
        ids: [u64; N],
        change: impl FnOnce([u64; N]) -> ([Option<u64>; N], T),
    ) -> Option<T> {
        let sets = ids.map(|id| self.sets.index(id));
        let mut order: [usize; N] = array::from_fn(|at| at);
        order.sort_unstable_by_key(|at| sets[*at]);
        // Accounts of one set have the lock of the first of them.
        let (mut locks, mut lock) = ([const { None }; N], [0; N]);
        for (n, at) in order.into_iter().enumerate() {
            let is_locked = n > 0 && sets[order[n - 1]] == sets[at];
            lock[at] = if is_locked { lock[order[n - 1]] } else { at };
            if !is_locked {
                locks[at] = Some(self.sets.lock(sets[at]));
            }
        }
        let (mut slots, mut instants) = ([0; N], [0; N]);
        for at in 0..N {
            let set: &mut MutexGuard<'_, _> = locks[lock[at]].as_mut()?;
            slots[at] = set.find(ids[at])?;
            instants[at] = *set.instant(slots[at])?;
        }
        let (new, result) = change(instants);
        for at in 0..N {
            if let (Some(set), Some(new)) = (&mut locks[lock[at]], new[at]) {
                set.store_instant(slots[at], new);
            }
        }
        Some(result)
    }
}

impl<A: Stored> Table<A> {
    /// Locks the accounts of a decision, and finds their places. The ids must differ.
    #[inline]
    pub(super) fn lock<T: BorrowMut<Located>>(
        &self,
        accounts: &mut [T],
        now: u64,
    ) -> LockedAccounts<'_, A> {
        let mut locked = LockedAccounts {
            table: self,
            sets: SmallVec::new(),
            overflow: None,
            now,
            overflowed: false,
        };
        let (mut first, mut is_known) = (usize::MAX, true);
        for account in accounts.iter_mut().map(T::borrow_mut) {
            if account.place != Place::Elsewhere {
                account.set = self.sets.index(account.id);
                first = first.min(account.set);
            }
        }
        while first < usize::MAX {
            let (set, mut next) = (self.sets.lock(first), usize::MAX);
            for account in accounts.iter_mut().map(T::borrow_mut) {
                if account.set == first {
                    account.lock = locked.sets.len();
                    account.place = set.find(account.id).map_or(Place::Shared, Place::Slot);
                    is_known &= account.has_slot();
                } else if account.set > first {
                    next = next.min(account.set);
                }
            }
            locked.now = locked.now.max(set.dropped_at());
            locked.sets.push(set);
            first = next;
        }
        if !is_known {
            locked.find_rooms(accounts);
        }
        locked
    }
}

/// The locks of the accounts of one decision.
pub(super) struct LockedAccounts<'a, A> {
    table: &'a Table<A>,
    /// The sets, in ascending order of their indexes.
    sets: SmallVec<[MutexGuard<'a, Set<A>>; 4]>,
    overflow: Option<MutexGuard<'a, SharedAccounts<A>>>,
    now: u64,
    overflowed: bool,
}

impl<A: Stored> LockedAccounts<'_, A> {
    /// Returns the instant of the decision.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Returns `true` if some account is shared by new keys.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Finds a free slot for each new account.
    #[cold]
    #[inline(never)]
    fn find_rooms<T: BorrowMut<Located>>(&mut self, accounts: &mut [T]) {
        for index in 0..accounts.len() {
            let Located { id, lock, place, .. } = *accounts[index].borrow();
            let is_used = |at| {
                let mut all = accounts.iter().map(T::borrow).filter(|other| other.lock == lock);
                all.any(|other| [Place::Slot(at), Place::Room(at)].contains(&other.place))
            };
            if place == Place::Shared {
                match self.sets[lock].room(id, self.now, is_used) {
                    Some(at) => accounts[index].borrow_mut().place = Place::Room(at),
                    None => self.overflowed = true,
                }
            }
        }
    }

    /// Returns the account if its state is a single instant.
    #[inline]
    pub(super) fn instant(&mut self, account: &Located) -> Option<&mut u64> {
        match account.place {
            Place::Slot(at) => self.sets[account.lock].instant(at),
            _ => None,
        }
    }

    /// Calls `read` with the account.
    #[inline]
    pub(super) fn look<T>(&mut self, account: &Located, read: impl FnOnce(Option<&A>) -> T) -> T {
        let now = self.now;
        match account.place {
            Place::Slot(at) => {
                let set = &self.sets[account.lock];
                match (set.state(at), set.expires_at(at)) {
                    (_, expires_at) if expires_at <= now => read(None),
                    (Some(state), _) => read(Some(state)),
                    (None, instant) => read(Some(&A::from_instant(instant))),
                }
            }
            Place::Room(_) => read(self.inherited(account).as_ref()),
            Place::Shared | Place::Elsewhere => read(self.shared(account)),
        }
    }

    /// Applies `change` to the account. `change` may create the account.
    #[inline]
    pub(super) fn update<T>(
        &mut self,
        account: &mut Located,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> T {
        let now = self.now;
        match account.place {
            Place::Slot(at) => {
                let set = &mut self.sets[account.lock];
                let mut stored = set.take(at, now);
                let result = change(&mut stored);
                set.put(at, stored, quota, now);
                result
            }
            Place::Room(at) => {
                let mut stored = self.inherited(account);
                let result = change(&mut stored);
                let set = &mut self.sets[account.lock];
                set.claim(at, account.id, now);
                set.put(at, stored, quota, now);
                account.place = Place::Slot(at);
                result
            }
            Place::Shared | Place::Elsewhere => self.update_shared(account, quota, change),
        }
    }

    /// Applies `change` only if the key has an account of its own. For changes that lower the debt.
    pub(super) fn lower<T>(
        &mut self,
        account: &mut Located,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> Option<T> {
        account.has_slot().then(|| self.update(account, quota, change))
    }

    /// Applies `change`, which undoes a charge that was made at the instant `charged`.
    ///
    /// Does nothing if the key has no account of its own, or after a later reset of an account in the
    /// same group of sets. The quota may be older than the account, so the account expires no sooner
    /// than before.
    pub(super) fn undo(
        &mut self,
        account: &Located,
        quota: &A::Quota,
        charged: u64,
        change: impl FnOnce(&mut A),
    ) {
        let void_before = self.table.void_before.get().map(|all| &all[account.set % all.len()]);
        if charged < void_before.map_or(0, |instant| instant.load(Acquire)) {
            return;
        }
        // A shared account may not have the charge, because the key may have had an account of its own.
        if let Place::Slot(at) = account.place {
            self.sets[account.lock].undo(at, quota, self.now, change);
        }
    }

    /// Drops the key's own account, and prevents the undo of earlier charges.
    ///
    /// Calls `clock` while the account is locked, so that no earlier charge has a later instant.
    pub(super) fn reset(
        &mut self,
        account: &mut Located,
        quota: &A::Quota,
        clock: impl FnOnce() -> u64,
    ) {
        let _ = self.lower(account, quota, |stored| *stored = None);
        let groups = self.table.sets.len().min(RESET_GROUPS);
        let new = || (0..groups).map(|_| AtomicU64::new(0)).collect();
        let all = self.table.void_before.get_or_init(new);
        all[account.set % groups].fetch_max(clock() + 1, AcqRel);
    }

    /// Returns the initial state of a new account: the debt of the shared account, if any.
    #[cold]
    fn inherited(&mut self, account: &Located) -> Option<A> {
        let in_debt = self.table.overflow.may_be_in_debt(account.set, self.now);
        in_debt.then(|| self.shared(account).map(A::condensed)).flatten()
    }

    #[cold]
    fn shared(&mut self, account: &Located) -> Option<&A> {
        let now = self.now;
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.lock());
        let (expires_at, account) = accounts.get(&account.shared_address())?;
        (*expires_at > now).then_some(account)
    }

    #[cold]
    fn update_shared<T>(
        &mut self,
        account: &Located,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> T {
        let (now, address) = (self.now, account.shared_address());
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.lock());
        let stored = accounts.remove(&address).filter(|(expires_at, _)| *expires_at > now);
        let mut stored = stored.map(|(_, account)| account);
        let result = change(&mut stored);
        if let Some(stored) = stored {
            let expires_at = stored.expires_at(quota);
            self.table.overflow.extend_debt(account.set, expires_at);
            accounts.insert(address, (expires_at, stored));
        }
        result
    }
}
