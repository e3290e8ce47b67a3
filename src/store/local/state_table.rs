//! Accounts of the windowed algorithms and the token bucket, which are more than one instant.
//!
//! The table has the bound and the rules of the [slot table](super::slots). A set has sixteen
//! entries. An expired entry can be claimed. If all entries of a set are in debt, new keys share an
//! account. Each set has one lock, so a change needs no atomics. The table is allocated with the
//! first account.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{
    overflow::{Overflow, SharedAddress},
    overflow_warning::OverflowWarning,
};
use crate::{algorithm::AccountState, quota::Quota, rule::RuleName};

const WAYS: usize = 16;

#[derive(Debug)]
pub(super) struct StateTable {
    table: OnceLock<Table>,
    entries: usize,
    warning: OverflowWarning,
}

#[derive(Debug)]
struct Table {
    sets: Box<[Mutex<Set>]>,
    overflow: Overflow<Option<AccountState>>,
}

#[derive(Debug, Default)]
struct Set {
    /// At most `WAYS`.
    entries: Vec<Entry>,
    /// Charges before this instant cannot be undone, because an account of the set was reset. That
    /// costs the other accounts of the set a few units.
    void_before: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// The instant from which the account equals a new one.
    expires_at: u64,
    state: AccountState,
}

/// The address of an account.
#[derive(Clone, Copy)]
pub(super) struct Address<'a> {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) quota_index: usize,
    pub(super) quota: &'a Quota,
}

impl StateTable {
    /// Creates a table with at least `entries` entries.
    pub(super) fn new(entries: usize) -> Self {
        Self { table: OnceLock::new(), entries, warning: OverflowWarning::default() }
    }

    /// Counts the accounts in debt. Reads every entry.
    pub(super) fn active(&self, now: u64) -> usize {
        let sets = self.table.get().into_iter().flat_map(|table| &table.sets);
        sets.map(|set| lock(set).entries.iter().filter(|entry| entry.expires_at > now).count())
            .sum()
    }

    pub(super) fn overflowed(&self) -> u64 {
        self.table.get().map_or(0, |table| table.overflow.decisions())
    }

    /// Calls `read` with the account.
    pub(super) fn look<R>(
        &self,
        address: Address<'_>,
        now: u64,
        read: impl FnOnce(Option<&AccountState>) -> R,
    ) -> R {
        let (table, number) = self.set(address.id);
        let set = table.lock(number);
        match set.entries.iter().find(|entry| entry.id == address.id) {
            Some(entry) => read(Some(&entry.state)),
            None => read(table.overflow.get(address.shared(number), now).as_ref()),
        }
    }

    /// Applies `change` to an account, for changes that return units. A key without an entry
    /// receives no units, because it shares its account; `read` then reads the shared account.
    pub(super) fn lower<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl FnOnce(&mut Option<AccountState>) -> R,
        read: impl FnOnce(Option<&AccountState>) -> R,
    ) -> R {
        let (table, number) = self.set(address.id);
        let mut set = table.lock(number);
        match set.find(address.id) {
            Some(found) => set.change(found, address, change),
            None => read(table.overflow.get(address.shared(number), now).as_ref()),
        }
    }

    /// Applies `change` to undo a charge made at the instant `charged`. If the account has no
    /// entry, the change applies to the shared account. Does nothing if an account of the set was
    /// reset since.
    pub(super) fn undo(
        &self,
        address: Address<'_>,
        charged: u64,
        change: impl FnOnce(&mut Option<AccountState>),
    ) {
        let (table, number) = self.set(address.id);
        let mut set = table.lock(number);
        if charged < set.void_before {
            return;
        }
        match set.find(address.id) {
            Some(found) => set.change(found, address, change),
            None => table.overflow.lower(address.shared(number), change),
        }
    }

    /// Removes the account, and calls `read` with the shared account. Charges up to the reading of
    /// `clock` are removed, and their receipts are void.
    pub(super) fn reset<R>(
        &self,
        address: Address<'_>,
        now: u64,
        read: impl FnOnce(Option<&AccountState>) -> R,
        clock: impl FnOnce() -> u64,
    ) -> R {
        let (table, number) = self.set(address.id);
        let mut set = table.lock(number);
        if let Some(found) = set.find(address.id) {
            set.entries.swap_remove(found);
        }
        set.void_before = set.void_before.max(clock() + 1);
        read(table.overflow.get(address.shared(number), now).as_ref())
    }

    /// Applies `change` to the account. For a new key, creates an entry if `change` leaves an
    /// account and `keep` returns `true`.
    pub(super) fn update<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl FnOnce(&mut Option<AccountState>) -> R,
        keep: impl FnOnce(&R) -> bool,
    ) -> R {
        let (table, number) = self.set(address.id);
        let mut set = table.lock(number);
        if let Some(found) = set.find(address.id) {
            return set.change(found, address, change);
        }
        set.entries.retain(|entry| entry.expires_at > now);
        let shared = address.shared(number);
        if set.entries.len() >= WAYS {
            let result = table.overflow.update(shared, |account| {
                let result = change(account);
                (account.as_ref().map_or(0, |state| state.expires_at(address.quota)), result)
            });
            drop(set);
            self.warning.record(now, self.entries);
            return result;
        }
        // A new account starts with the debt of the shared account, which the key may have used.
        let mut account = table.overflow.get(shared, now);
        let result = change(&mut account);
        if keep(&result) {
            set.entries.extend(account.map(|state| address.entry(state)));
        }
        result
    }

    /// Returns the table and the index of the account's set.
    fn set(&self, id: u64) -> (&Table, usize) {
        let table = self.table.get_or_init(|| Table::new(self.entries.div_ceil(WAYS).max(1)));
        let scaled = (u128::from(id) * table.sets.len() as u128) >> 64;
        (table, usize::try_from(scaled).unwrap_or(0))
    }
}

impl Table {
    fn new(sets: usize) -> Self {
        Self { sets: (0..sets).map(|_| Mutex::default()).collect(), overflow: Overflow::new(sets) }
    }

    fn lock(&self, set: usize) -> MutexGuard<'_, Set> {
        lock(&self.sets[set])
    }
}

impl Address<'_> {
    fn entry(&self, state: AccountState) -> Entry {
        Entry { id: self.id, expires_at: state.expires_at(self.quota), state }
    }

    pub(super) fn shared(&self, set: usize) -> SharedAddress {
        SharedAddress::new(set, self.rule, self.quota_index)
    }
}

impl Set {
    fn find(&self, id: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id)
    }

    /// Applies `change` to the account at `found`, and removes the entry if no account is left.
    fn change<R>(
        &mut self,
        found: usize,
        address: Address<'_>,
        change: impl FnOnce(&mut Option<AccountState>) -> R,
    ) -> R {
        let mut account = Some(self.entries.swap_remove(found).state);
        let result = change(&mut account);
        self.entries.extend(account.map(|state| address.entry(state)));
        result
    }
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}
