//! All accounts of a store, for every algorithm, and the blocked keys.
//!
//! A decision locks the sets of its accounts in ascending order, and the shared accounts last. No
//! line is logged and no user code runs under these locks.

use std::{array, borrow::BorrowMut, collections::HashMap};

use smallvec::SmallVec;

use super::sync::{
    AtomicU32, AtomicU64, Mutex, MutexGuard, OnceLock,
    Ordering::{AcqRel, Acquire, Release},
    WAYS,
};
use crate::name::RuleName;

/// The maximum number of groups of sets. A group keeps one instant: its latest reset.
const RESET_GROUPS: usize = 1_024;
/// The maximum number of groups of sets with the same shared accounts.
const SHARED_GROUPS: usize = 2_048;
const SECOND: u64 = 1_000_000_000;

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

    #[expect(clippy::cast_possible_truncation, reason = "a rule has at most 255 quotas")]
    fn shared_address(&self) -> SharedAddress {
        let (group, quota_index) = ((self.set % SHARED_GROUPS) as u16, self.quota_index as u8);
        SharedAddress { rule: self.rule, group, quota_index }
    }
}

#[derive(Debug)]
pub(super) struct Table<A> {
    pub(super) sets: Sets<A>,
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

    /// Applies `change` to several accounts with different ids, if the state of each is one instant.
    /// Otherwise, returns `None`.
    ///
    /// `change` returns the new instants. `None` keeps the old instant.
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
            locked.now = locked.now.max(set.dropped_at);
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
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.accounts.lock());
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
        let accounts = self.overflow.get_or_insert_with(|| self.table.overflow.accounts.lock());
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

/// An account that is kept in a slot.
pub(super) trait Stored: Clone {
    /// The quota of the account.
    type Quota;

    /// Creates an account whose whole state is `instant`.
    fn from_instant(instant: u64) -> Self;

    /// Returns the state of the account if it is a single instant.
    fn as_instant(&self, expires_at: u64) -> Option<u64>;

    /// Returns the instant at which the account expires. An expired account equals a new account.
    fn expires_at(&self, quota: &Self::Quota) -> u64;

    /// Returns an account with the same debt and a state of bounded size.
    #[must_use]
    fn condensed(&self) -> Self;
}

#[derive(Clone, Copy, Debug, Default)]
struct TableSlot {
    id: u64,
    expires_at: u64,
}

/// A set of slots.
#[derive(Debug)]
pub(super) struct Set<A> {
    slots: [TableSlot; WAYS],
    /// The states of accounts that need more than one instant, allocated on first use.
    states: Option<Box<[Option<A>; WAYS]>>,
    /// The latest instant at which an account was dropped.
    ///
    /// New accounts start at this instant or later. Otherwise, a thread with an older reading of
    /// the clock could charge the same window twice.
    dropped_at: u64,
}

impl<A> Default for Set<A> {
    fn default() -> Self {
        Self { slots: Default::default(), states: None, dropped_at: 0 }
    }
}

impl<A> Set<A> {
    /// Returns the slot that holds `id`, if any.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let first = first(id);
        if self.slots[first].id == id { Some(first) } else { self.search(id) }
    }

    #[inline(never)]
    fn search(&self, id: u64) -> Option<usize> {
        probe(id).find(|at| self.slots[*at].id == id)
    }

    /// Returns a free slot for `id` for which `except` returns `false`: the one that expired first. A
    /// slot that expired later may belong to a key that comes back soon.
    pub(super) fn room(&self, id: u64, now: u64, except: impl Fn(usize) -> bool) -> Option<usize> {
        let is_free = |at: &usize| self.slots[*at].expires_at <= now && !except(*at);
        probe(id).filter(is_free).min_by_key(|at| self.slots[*at].expires_at)
    }

    /// Assigns the free slot `at` to `id`.
    pub(super) fn claim(&mut self, at: usize, id: u64, now: u64) {
        self.slots[at].id = id;
        if let Some(states) = &mut self.states {
            states[at] = None;
        }
        self.dropped_at = self.dropped_at.max(now);
    }

    /// Returns the number of accounts that have not expired.
    pub(super) fn active(&self, now: u64) -> usize {
        self.slots.iter().filter(|slot| slot.expires_at > now).count()
    }

    /// Returns the instant at which the account in this slot expires.
    #[inline]
    pub(super) fn expires_at(&self, at: usize) -> u64 {
        self.slots[at % WAYS].expires_at
    }

    /// Returns the account in this slot, if its state is a single instant.
    #[inline]
    pub(super) fn instant(&mut self, at: usize) -> Option<&mut u64> {
        let is_instant = self.state(at).is_none();
        is_instant.then(|| &mut self.slots[at % WAYS].expires_at)
    }

    /// Stores an account whose state is a single instant.
    pub(super) fn store_instant(&mut self, at: usize, instant: u64) {
        self.slots[at % WAYS].expires_at = instant;
    }

    /// Returns the state of the account in this slot, if the state is more than one instant.
    #[inline]
    pub(super) fn state(&self, at: usize) -> Option<&A> {
        self.states.as_ref()?[at % WAYS].as_ref()
    }
}

impl<A: Stored> Set<A> {
    /// Takes the account out of this slot, unless it has expired.
    #[inline]
    pub(super) fn take(&mut self, at: usize, now: u64) -> Option<A> {
        let expires_at = self.expires_at(at);
        let state = self.states.as_mut().and_then(|states| states[at % WAYS].take());
        (expires_at > now).then(|| state.unwrap_or_else(|| A::from_instant(expires_at)))
    }

    /// Stores an account in this slot. `None` drops the account.
    #[inline]
    pub(super) fn put(&mut self, at: usize, account: Option<A>, quota: &A::Quota, now: u64) {
        let old = self.expires_at(at);
        if account.is_none() && old > now {
            self.dropped_at = self.dropped_at.max(now);
        }
        let expires_at = account.as_ref().map_or(old.min(now), |it| it.expires_at(quota));
        self.store(at, account, expires_at);
    }

    /// Applies `change`, which undoes a charge. An account whose state is more than one instant
    /// expires no sooner than before.
    pub(super) fn undo(
        &mut self,
        at: usize,
        quota: &A::Quota,
        now: u64,
        change: impl FnOnce(&mut A),
    ) {
        let before = self.expires_at(at);
        let Some(mut account) = self.take(at, now) else { return };
        change(&mut account);
        let by_quota = account.expires_at(quota);
        let is_instant = account.as_instant(by_quota).is_some();
        let expires_at = if is_instant { by_quota } else { by_quota.max(before) };
        self.store(at, Some(account), expires_at);
    }

    #[inline]
    fn store(&mut self, at: usize, account: Option<A>, expires_at: u64) {
        self.store_instant(at, expires_at);
        let state = account.filter(|account| account.as_instant(expires_at).is_none());
        if state.is_some() || self.states.is_some() {
            self.states.get_or_insert_with(|| Box::new([const { None }; WAYS]))[at % WAYS] = state;
        }
    }
}

/// A table of slots with fixed memory, divided into sets with one lock each.
///
/// A slot holds one account: a fingerprint of its address, and the instant at which the account
/// expires. For a plain GCRA quota, that instant is the whole state. Other states are kept beside
/// the slots.
///
/// A lookup usually reads one slot, and at most sixteen. The slot of an expired account can be
/// reused, so no sweep is needed.
#[derive(Debug)]
pub(super) struct Sets<A>(Box<[Mutex<Set<A>>]>);

impl<A> Sets<A> {
    /// Creates sets with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        Self((0..slots.div_ceil(WAYS).max(1)).map(|_| Mutex::default()).collect())
    }

    /// Returns the number of sets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.len() * WAYS
    }

    /// Counts the accounts that have not expired. Reads every slot.
    pub(super) fn active(&self, now: u64) -> usize {
        self.0.iter().map(|set| set.lock().active(now)).sum()
    }

    /// Returns the index of the set for `id`.
    #[inline]
    pub(super) fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.0.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    #[inline]
    pub(super) fn lock(&self, index: usize) -> MutexGuard<'_, Set<A>> {
        self.0[index].lock()
    }
}

/// Returns the first slot in the search order of `id`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
fn first(id: u64) -> usize {
    id as usize % WAYS
}

/// Returns all slots in the search order of `id`.
fn probe(id: u64) -> impl Iterator<Item = usize> {
    (first(id)..WAYS).chain(0..first(id))
}

/// The address of a shared account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SharedAddress {
    rule: RuleName,
    group: u16,
    quota_index: u8,
}

/// Shared accounts, each with the instant at which it expires.
type SharedAccounts<A> = HashMap<SharedAddress, (u64, A)>;

/// The accounts that new keys share if their set has no free slot.
///
/// The sets are divided into groups. Each group has one shared account per rule and quota, which
/// limits all new keys of the group together. A key that later gets a slot starts with the debt of
/// the shared account. A flood of new keys therefore neither frees an exhausted key nor affects
/// other rules.
///
/// Each set records the instant until which its new keys may be in debt. Otherwise, one full set
/// would put the new keys of its whole group into debt.
#[derive(Debug)]
struct Overflow<A> {
    /// The end of possible debt of new keys, per set, in seconds of Unix time.
    until: Box<[AtomicU32]>,
    /// The shared accounts. The caller must not lock a set while it holds this lock.
    accounts: Mutex<SharedAccounts<A>>,
}

impl<A> Overflow<A> {
    /// Creates the shared accounts of a table with `sets` sets.
    fn new(sets: usize) -> Self {
        let until = (0..sets).map(|_| AtomicU32::new(0)).collect();
        Self { until, accounts: Mutex::default() }
    }

    /// Returns `true` if new keys of this set are possibly in debt.
    fn may_be_in_debt(&self, set: usize, now: u64) -> bool {
        u64::from(self.until[set].load(Acquire)) > now / SECOND
    }

    /// Records that new keys of this set may be in debt until this instant.
    fn extend_debt(&self, set: usize, until: u64) {
        let second = u32::try_from(until / SECOND + 1).unwrap_or(u32::MAX);
        self.until[set].fetch_max(second, Release);
    }
}

/// The instants at which blocks end, in a table beside the accounts. The first block allocates it.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The instant at which the last block ends.
    latest: AtomicU64,
    sets: OnceLock<Sets<()>>,
}

impl Blocks {
    /// Blocks `id` until `until`. Returns `false` if there is no room.
    pub(super) fn set(&self, id: u64, now: u64, until: u64, slots: usize) -> bool {
        let sets = self.sets.get_or_init(|| Sets::new(slots));
        let mut set = sets.lock(sets.index(id));
        let found = set.find(id).or_else(|| set.room(id, now, |_| false));
        if let Some(at) = found {
            set.claim(at, id, now);
            set.store_instant(at, until);
            self.latest.fetch_max(until, Release);
        }
        found.is_some()
    }

    pub(super) fn end(&self, id: u64, now: u64) {
        let Some(sets) = self.sets.get() else { return };
        let mut set = sets.lock(sets.index(id));
        if let Some(at) = set.find(id) {
            set.store_instant(at, now);
        }
    }

    /// Counts the keys that are blocked now, by reading every slot.
    pub(super) fn len(&self, now: u64) -> usize {
        self.sets.get().map_or(0, |sets| sets.active(now))
    }

    /// Returns `false` if no key is blocked now. Returns `true` if some key is possibly blocked.
    #[inline]
    pub(super) fn any(&self, now: u64) -> bool {
        self.latest.load(Acquire) > now
    }

    /// Returns the nanoseconds until the block of `id` ends, or 0 if `id` is not blocked.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let Some(sets) = self.sets.get() else { return 0 };
        let set = sets.lock(sets.index(id));
        set.find(id).map_or(0, |at| set.expires_at(at).saturating_sub(now))
    }
}
