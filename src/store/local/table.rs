//! The accounts of a store, for every algorithm, or its blocked keys.
//!
//! A decision locks the sets of its accounts in ascending order, and the shared accounts last. Its
//! instant is its reading of the clock, or the latest change in these sets if that is later. No line is
//! logged and no user code runs under these locks.

use std::{array, collections::HashMap};

use smallvec::SmallVec;

use crate::{
    algorithm::AccountState,
    name::RuleName,
    quota::{Quota, QuotaAddress},
    store::sync::{
        AtomicU64, Mutex, MutexGuard, OnceLock,
        Ordering::{AcqRel, Acquire},
        WAYS,
    },
};

/// The maximum number of groups of sets. A group keeps one instant: its latest reset.
const RESET_GROUPS: usize = 1_024;
/// The maximum number of groups of sets with the same shared accounts.
const SHARED_GROUPS: usize = 2_048;
/// The number of quotas of a rule with shared accounts in a group. New keys under other quotas are
/// denied.
const SHARED_QUOTAS: usize = 32;
const SECOND: u64 = 1_000_000_000;

/// An account of a decision: its address, and its place in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
    pub(super) address: QuotaAddress,
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
    pub(super) fn new(
        id: u64,
        rule: RuleName,
        quota_index: usize,
        address: QuotaAddress,
        has_slots: bool,
    ) -> Self {
        let (place, set) = match has_slots {
            true => (Place::Elsewhere, usize::MAX),
            false => (Place::Shared, 0),
        };
        Self {
            id,
            rule,
            quota_index,
            address,
            set,
            lock: 0,
            place,
        }
    }

    /// Returns `true` if the key has an account of its own.
    pub(super) fn has_slot(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// Returns `true` if there is a free slot for a new account of the key.
    pub(super) fn has_room(&self) -> bool {
        matches!(self.place, Place::Room(_))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are at most 2,048 groups"
    )]
    fn shared_group(&self) -> SharedGroup {
        SharedGroup {
            rule: self.rule,
            group: (self.set % SHARED_GROUPS) as u16,
        }
    }

    /// Returns `true` if both keys are new and share one account.
    pub(super) fn shares(&self, other: &Self) -> bool {
        self.place == Place::Shared
            && other.place == Place::Shared
            && self.shared_group() == other.shared_group()
            && self.address == other.address
    }
}

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

/// The locks of the accounts of one decision.
pub(super) struct LockedAccounts<'a> {
    table: &'a Table,
    /// The sets, in ascending order of their indexes.
    sets: SmallVec<[MutexGuard<'a, Set>; 4]>,
    shared: Option<MutexGuard<'a, SharedAccounts>>,
    /// The instant of the decision.
    pub(super) now: u64,
    /// `true` if some account is shared by new keys.
    pub(super) overflowed: bool,
}

impl LockedAccounts<'_> {
    /// Finds a free slot for each new account.
    #[cold]
    #[inline(never)]
    fn find_rooms<A>(&mut self, accounts: &mut [A])
    where
        A: AsRef<Located> + AsMut<Located>,
    {
        for index in 0..accounts.len() {
            let Located {
                id, lock, place, ..
            } = *accounts[index].as_ref();
            if place != Place::Shared {
                continue;
            }
            let room = self.sets[lock].room(id, self.now, |at| {
                let mut all = accounts
                    .iter()
                    .map(A::as_ref)
                    .filter(|other| other.lock == lock);
                all.any(|other| [Place::Slot(at), Place::Room(at)].contains(&other.place))
            });
            match room {
                Some(at) => accounts[index].as_mut().place = Place::Room(at),
                None => self.overflowed = true,
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
    pub(super) fn look<T>(
        &mut self,
        account: &Located,
        read: impl FnOnce(Option<&AccountState>) -> T,
    ) -> T {
        let now = self.now;
        match account.place {
            Place::Slot(at) => {
                let set = &self.sets[account.lock];
                match (set.state(at), set.expires_at[at % WAYS]) {
                    (_, expires_at) if expires_at <= now => read(None),
                    (Some(state), _) => read(Some(state)),
                    (None, instant) => read(Some(&AccountState::Gcra(instant))),
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
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let now = self.now;
        let (at, mut stored) = match account.place {
            Place::Slot(at) => (at, self.sets[account.lock].take(at, now)),
            Place::Room(at) => (at, self.inherited(account)),
            Place::Shared | Place::Elsewhere => return self.update_shared(account, quota, change),
        };
        let result = change(&mut stored);
        let set = &mut self.sets[account.lock];
        if !account.has_slot() {
            set.claim(at, account.id, now);
            account.place = Place::Slot(at);
        }
        set.put(at, stored, quota, now);
        result
    }

    /// Applies `change`, which undoes a charge that was made at the instant `charged`.
    ///
    /// Does nothing if the key has no account of its own, or after a later reset of an account in the
    /// same group of sets. The quota may be older than the account, so the account expires no sooner
    /// than before.
    pub(super) fn undo(
        &mut self,
        account: &Located,
        quota: &Quota,
        charged: u64,
        change: impl FnOnce(&mut AccountState),
    ) {
        let void_before = self
            .table
            .void_before
            .get()
            .map(|all| &all[account.set % all.len()]);
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
        quota: &Quota,
        clock: impl FnOnce() -> u64,
    ) {
        if account.has_slot() {
            self.update(account, quota, |stored| *stored = None);
        }
        let groups = self.table.sets.len().min(RESET_GROUPS);
        let all = self
            .table
            .void_before
            .get_or_init(|| (0..groups).map(|_| AtomicU64::new(0)).collect());
        all[account.set % groups].fetch_max(clock() + 1, AcqRel);
    }

    /// Returns the initial state of a new account: the debt of the shared account, if any.
    #[cold]
    fn inherited(&mut self, account: &Located) -> Option<AccountState> {
        let until = self.sets[account.lock].in_debt_until;
        let in_debt = u64::from(until) > self.now / SECOND;
        in_debt
            .then(|| self.shared(account).map(AccountState::condensed))
            .flatten()
    }

    #[cold]
    fn shared(&mut self, account: &Located) -> Option<&AccountState> {
        let now = self.now;
        let accounts = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let mut all = accounts.get(&account.shared_group())?.iter();
        let found =
            all.find(|shared| shared.address == account.address && shared.expires_at > now)?;
        Some(&found.state)
    }

    /// Returns the time until the quota of a new key can have a shared account, or `None` if it has
    /// one, can have one, or needs none.
    #[cold]
    pub(super) fn shared_wait(&mut self, account: &Located) -> Option<u64> {
        if account.place != Place::Shared || self.shared(account).is_some() {
            return None;
        }
        let accounts = self.shared.as_ref()?.get(&account.shared_group())?;
        let left = accounts
            .iter()
            .map(|account| account.expires_at.saturating_sub(self.now));
        let left = left.filter(|left| *left > 0);
        if left.clone().count() < SHARED_QUOTAS {
            None
        } else {
            left.min()
        }
    }

    #[cold]
    fn update_shared<T>(
        &mut self,
        account: &Located,
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let now = self.now;
        let all = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let accounts = all.entry(account.shared_group()).or_default();
        if accounts.len() >= SHARED_QUOTAS {
            accounts.retain(|shared| shared.expires_at > now || shared.address == account.address);
        }
        let at = accounts
            .iter()
            .position(|shared| shared.address == account.address);
        let stored = at
            .map(|at| accounts.swap_remove(at))
            .filter(|account| account.expires_at > now);
        let mut stored = stored.map(|account| account.state);
        let result = change(&mut stored);
        if let Some(state) = stored {
            let expires_at = state.expires_at(quota);
            let second = u32::try_from(expires_at / SECOND + 1).unwrap_or(u32::MAX);
            let until = &mut self.sets[account.lock].in_debt_until;
            *until = second.max(*until);
            // Most rules have one quota.
            accounts.reserve_exact(1);
            accounts.push(Shared {
                address: account.address,
                expires_at,
                state,
            });
        }
        result
    }
}

/// A set and its lock, in as few cache lines as possible. They are loaded in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned(Mutex<Set>);

/// A set of slots. A slot holds one account: a part of its id, and the instant at which it expires.
/// For a plain GCRA quota, that instant is the whole state. Other states are kept beside the slots.
///
/// The fields are in the order in which a lookup needs them, so that it reads few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Set {
    /// The states of accounts that need more than one instant, allocated on first use.
    states: Option<Box<[Option<AccountState>; WAYS]>>,
    /// The latest instant at which an account was changed or dropped. The changes of plain GCRA accounts
    /// are left out: their state is an instant that no older reading of the clock moves back.
    ///
    /// Decisions are made at this instant or later. Otherwise, a thread with an older reading of the clock
    /// could charge the same window twice, or its charge could join a newer one and not be found by its
    /// receipt.
    newest: u64,
    /// The end of possible debt of new keys, in seconds of Unix time. Otherwise, one full set would
    /// put the new keys of its whole group into debt.
    in_debt_until: u32,
    /// The low bits of the ids. The set has been selected by the high bits.
    ids: [[u8; 6]; WAYS],
    expires_at: [u64; WAYS],
}

impl Set {
    /// Returns the slot that holds `id`, if any.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let first = first(id);
        if self.ids[first] == low(id) {
            Some(first)
        } else {
            self.search(id)
        }
    }

    #[inline(never)]
    fn search(&self, id: u64) -> Option<usize> {
        probe(id).find(|at| self.ids[*at] == low(id))
    }

    /// Returns a free slot for `id` for which `except` returns `false`: the one that expired first. A
    /// slot that expired later may belong to a key that comes back soon.
    pub(super) fn room(&self, id: u64, now: u64, except: impl Fn(usize) -> bool) -> Option<usize> {
        let mut room = None;
        let mut least = now.saturating_add(1);
        for at in probe(id) {
            if self.expires_at[at] < least && !except(at) {
                (room, least) = (Some(at), self.expires_at[at]);
            }
            if least == 0 {
                break; // a slot that was never used
            }
        }
        room
    }

    /// Assigns a free slot to a new account, if it starts at `now` and without debt.
    #[inline(never)]
    fn claim_without_debt(
        &mut self,
        id: u64,
        now: u64,
        except: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let has_debt = self.newest > now || u64::from(self.in_debt_until) > now / SECOND;
        let at = self.room(id, now, except).filter(|_| !has_debt)?;
        self.claim(at, id, now);
        Some(at)
    }

    /// Assigns the free slot `at` to `id`.
    fn claim(&mut self, at: usize, id: u64, now: u64) {
        self.ids[at % WAYS] = low(id);
        if let Some(states) = &mut self.states {
            states[at % WAYS] = None;
        }
        self.newest = self.newest.max(now);
    }

    /// Returns the account in this slot, if its state is a single instant.
    #[inline]
    pub(super) fn instant(&mut self, at: usize) -> Option<&mut u64> {
        let is_instant = self.state(at).is_none();
        is_instant.then(|| &mut self.expires_at[at % WAYS])
    }

    /// Returns the state of the account in this slot, if the state is more than one instant.
    #[inline]
    fn state(&self, at: usize) -> Option<&AccountState> {
        self.states.as_ref()?[at % WAYS].as_ref()
    }

    /// Takes the account out of this slot, unless it has expired.
    #[inline]
    fn take(&mut self, at: usize, now: u64) -> Option<AccountState> {
        let expires_at = self.expires_at[at % WAYS];
        let state = self
            .states
            .as_mut()
            .and_then(|states| states[at % WAYS].take());
        (expires_at > now).then(|| state.unwrap_or(AccountState::Gcra(expires_at)))
    }

    /// Stores an account in this slot. `None` drops the account.
    #[inline]
    fn put(&mut self, at: usize, account: Option<AccountState>, quota: &Quota, now: u64) {
        self.newest = self.newest.max(now);
        let old = self.expires_at[at % WAYS];
        let expires_at = account
            .as_ref()
            .map_or(old.min(now), |account| account.expires_at(quota));
        self.store(at, account, expires_at);
    }

    /// Applies `change`, which undoes a charge. An account whose state is more than one instant
    /// expires no sooner than before.
    fn undo(&mut self, at: usize, quota: &Quota, now: u64, change: impl FnOnce(&mut AccountState)) {
        let before = self.expires_at[at % WAYS];
        let Some(mut account) = self.take(at, now) else {
            return;
        };
        self.newest = self.newest.max(now);
        change(&mut account);
        let by_quota = account.expires_at(quota);
        let expires_at = if is_instant(&account, by_quota) {
            by_quota
        } else {
            by_quota.max(before)
        };
        self.store(at, Some(account), expires_at);
    }

    #[inline]
    fn store(&mut self, at: usize, account: Option<AccountState>, expires_at: u64) {
        self.expires_at[at % WAYS] = expires_at;
        let state = account.filter(|account| !is_instant(account, expires_at));
        if state.is_some() || self.states.is_some() {
            self.states
                .get_or_insert_with(|| Box::new([const { None }; WAYS]))[at % WAYS] = state;
        }
    }
}

/// Returns `true` if the instant at which the account expires is its whole state.
fn is_instant(account: &AccountState, expires_at: u64) -> bool {
    matches!(account, AccountState::Gcra(tat) if *tat == expires_at)
}

/// Returns the bits of an id that a set keeps.
#[inline]
fn low(id: u64) -> [u8; 6] {
    let [low @ .., _, _] = id.to_le_bytes();
    low
}

/// Returns the first slot in the search order of `id`.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest bits are wanted"
)]
fn first(id: u64) -> usize {
    id as usize % WAYS
}

/// Returns all slots in the search order of `id`.
fn probe(id: u64) -> impl Iterator<Item = usize> {
    (0..WAYS).map(move |n| (first(id) + n) % WAYS)
}

/// The shared accounts of a rule in a group of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SharedGroup {
    rule: RuleName,
    group: u16,
}

/// A shared account.
#[derive(Debug)]
struct Shared {
    address: QuotaAddress,
    expires_at: u64,
    state: AccountState,
}

type SharedAccounts = HashMap<SharedGroup, Vec<Shared>>;
