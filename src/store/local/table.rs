//! All accounts of a store, for every algorithm.
//!
//! A decision locks the sets of its accounts in ascending order, so it reads and changes them as if
//! it were alone. The lock of the shared accounts is always the last. Under these locks no line is
//! logged and no code of the user runs.

use smallvec::SmallVec;

use super::{
    overflow::{Overflow, SharedAccounts, SharedAddress},
    sets::{Set, Sets, Stored},
    sync::{
        AtomicU64, MutexGuard, OnceLock,
        Ordering::{AcqRel, Acquire},
    },
};
use crate::rule::RuleName;

/// Groups of sets that share the instant of the latest reset.
const RESET_GROUPS: usize = 1_024;

/// The address of an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
}

#[derive(Debug)]
pub(super) struct Table<A> {
    sets: Sets<A>,
    overflow: Overflow<A>,
    /// Charges before these instants cannot be undone, because an account of the group was reset.
    /// That costs the other accounts of the group a few units. Allocated with the first reset.
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

    /// Applies `change` to an account that is one instant. `change` also returns the instant to
    /// store, or `None` to leave it. Returns `None` if there is no such account.
    #[inline]
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

    fn void_before(&self, set: usize) -> Option<&AtomicU64> {
        self.void_before.get().map(|groups| &groups[set % groups.len()])
    }
}

impl<A: Stored> Table<A> {
    /// Locks the accounts of a decision, whose addresses must differ.
    pub(super) fn lock(&self, addresses: &[Address], now: u64) -> LockedAccounts<'_, A> {
        let index = |address: &Address| self.sets.index(address.id);
        let mut order: SmallVec<[usize; 4]> = addresses.iter().map(index).collect();
        order.sort_unstable();
        order.dedup();
        let sets: SmallVec<[_; 4]> =
            order.iter().map(|index| (*index, self.sets.lock(*index))).collect();
        let now = sets.iter().map(|(_, set)| set.dropped_at()).fold(now, u64::max);
        let accounts = SmallVec::new();
        let mut locked =
            LockedAccounts { table: self, sets, overflow: None, accounts, now, overflowed: false };
        for address in addresses {
            locked.locate(address);
        }
        for account in 0..addresses.len() {
            if let Place::Shared(shared) = locked.accounts[account].place {
                locked.find_room(account, shared);
            }
        }
        locked
    }
}

/// The accounts of one decision, under the locks of their sets.
pub(super) struct LockedAccounts<'a, A> {
    table: &'a Table<A>,
    /// The sets with their indexes, ascending.
    sets: SmallVec<[(usize, MutexGuard<'a, Set<A>>); 4]>,
    overflow: Option<MutexGuard<'a, SharedAccounts<A>>>,
    accounts: SmallVec<[Located; 4]>,
    now: u64,
    overflowed: bool,
}

/// An account and its place.
#[derive(Clone, Copy)]
struct Located {
    id: u64,
    /// The index in the locked sets.
    set: usize,
    place: Place,
}

#[derive(Clone, Copy)]
enum Place {
    Slot(usize),
    /// The key has no account. A new account can use this slot. It starts with the debt of the
    /// shared account, which the key may have used.
    Room(usize, SharedAddress),
    /// The key has no account, and there is no room for one.
    Shared(SharedAddress),
}

impl<A: Stored> LockedAccounts<'_, A> {
    /// Returns the instant of the decision.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Returns `true` if an account is one that new keys share.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the index of the first account that is the same as this one. Two new keys may share
    /// an account.
    pub(super) fn first_of(&self, account: usize) -> usize {
        let Place::Shared(address) = self.accounts[account].place else { return account };
        let same = |other: &Located| matches!(other.place, Place::Shared(at) if at == address);
        self.accounts.iter().position(same).unwrap_or(account)
    }

    #[inline]
    fn locate(&mut self, address: &Address) {
        let Address { id, rule, quota_index } = *address;
        let index = self.table.sets.index(id);
        let set = self.sets.iter().position(|(locked, _)| *locked == index).unwrap_or(0);
        let shared = || Place::Shared(SharedAddress::new(index, rule, quota_index));
        let place = self.sets[set].1.find(id).map_or_else(shared, Place::Slot);
        self.accounts.push(Located { id, set, place });
    }

    /// Finds a slot for a new account, apart from those of the other accounts.
    #[cold]
    #[inline(never)]
    fn find_room(&mut self, account: usize, address: SharedAddress) {
        let (now, Located { id, set, .. }) = (self.now, self.accounts[account]);
        let is_used = |at| {
            let mut all = self.accounts.iter().filter(|other| other.set == set);
            all.any(|other| matches!(other.place, Place::Slot(used) | Place::Room(used, _) if used == at))
        };
        match self.sets[set].1.room(id, now, is_used) {
            Some(at) => self.accounts[account].place = Place::Room(at, address),
            None => self.overflowed = true,
        }
    }

    /// Calls `read` with the account.
    #[inline]
    pub(super) fn look<T>(&mut self, account: usize, read: impl FnOnce(Option<&A>) -> T) -> T {
        let now = self.now;
        let Located { set, place, .. } = self.accounts[account];
        match place {
            Place::Slot(at) => {
                let set = &self.sets[set].1;
                match (set.state(at), set.expires_at(at)) {
                    (_, expires_at) if expires_at <= now => read(None),
                    (Some(state), _) => read(Some(state)),
                    (None, instant) => read(Some(&A::from_instant(instant))),
                }
            }
            Place::Room(_, address) => read(self.inherited(account, address).as_ref()),
            Place::Shared(address) => read(self.shared(address)),
        }
    }

    /// Applies `change` to the account, and creates it if `change` does.
    #[inline]
    pub(super) fn update<T>(
        &mut self,
        account: usize,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> T {
        let (now, Located { id, set, place }) = (self.now, self.accounts[account]);
        match place {
            Place::Slot(at) => {
                let set = &mut self.sets[set].1;
                let mut stored = set.take(at, now);
                let result = change(&mut stored);
                set.put(at, stored, quota, now);
                result
            }
            Place::Room(at, address) => {
                let mut stored = self.inherited(account, address);
                let result = change(&mut stored);
                let set = &mut self.sets[set].1;
                set.claim(at, id, now);
                set.put(at, stored, quota, now);
                self.accounts[account].place = Place::Slot(at);
                result
            }
            Place::Shared(address) => self.update_shared(account, address, quota, change),
        }
    }

    /// Applies `change` to the key's own account, to lower its debt. Returns `None` if the key has
    /// none.
    pub(super) fn lower<T>(
        &mut self,
        account: usize,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> Option<T> {
        self.has_slot(account).then(|| self.update(account, quota, change))
    }

    /// Returns `true` if the key has an account of its own.
    pub(super) fn has_slot(&self, account: usize) -> bool {
        matches!(self.accounts[account].place, Place::Slot(_))
    }

    /// Applies `change` to undo a charge made at the instant `charged`. A key without an account
    /// was charged in the shared account. Does nothing if an account of the group was reset since.
    pub(super) fn undo(
        &mut self,
        account: usize,
        quota: &A::Quota,
        charged: u64,
        change: impl FnOnce(&mut Option<A>),
    ) {
        let Located { set, place, .. } = self.accounts[account];
        let void_before = self.table.void_before(self.sets[set].0);
        if charged < void_before.map_or(0, |instant| instant.load(Acquire)) {
            return;
        }
        match place {
            Place::Slot(_) => self.update(account, quota, change),
            Place::Room(_, address) | Place::Shared(address) => {
                self.update_shared(account, address, quota, change);
            }
        }
    }

    /// Drops the key's own account, if it has one, and voids the receipts of its charges. `clock` is
    /// read after that: other threads may have charged by later readings than this one.
    pub(super) fn reset(&mut self, account: usize, quota: &A::Quota, clock: impl FnOnce() -> u64) {
        let _ = self.lower(account, quota, |stored| *stored = None);
        let groups = self.table.sets.len().min(RESET_GROUPS);
        let new = || (0..groups).map(|_| AtomicU64::new(0)).collect();
        let all = self.table.void_before.get_or_init(new);
        let set = self.sets[self.accounts[account].set].0;
        all[set % groups].fetch_max(clock() + 1, AcqRel);
    }

    /// Returns the account with which a new account starts.
    #[cold]
    fn inherited(&mut self, account: usize, address: SharedAddress) -> Option<A> {
        let set = self.sets[self.accounts[account].set].0;
        let in_debt = self.table.overflow.may_be_in_debt(set, self.now);
        in_debt.then(|| self.shared(address).map(A::condensed)).flatten()
    }

    fn shared(&mut self, address: SharedAddress) -> Option<&A> {
        let now = self.now;
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.lock());
        let (expires_at, account) = accounts.get(&address)?;
        (*expires_at > now).then_some(account)
    }

    #[cold]
    fn update_shared<T>(
        &mut self,
        account: usize,
        address: SharedAddress,
        quota: &A::Quota,
        change: impl FnOnce(&mut Option<A>) -> T,
    ) -> T {
        let now = self.now;
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.lock());
        let stored = accounts.remove(&address).filter(|(expires_at, _)| *expires_at > now);
        let mut stored = stored.map(|(_, account)| account);
        let result = change(&mut stored);
        if let Some(stored) = stored {
            let expires_at = stored.expires_at(quota);
            self.table.overflow.extend_debt(self.sets[self.accounts[account].set].0, expires_at);
            accounts.insert(address, (expires_at, stored));
        }
        result
    }
}
