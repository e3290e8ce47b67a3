//! Accounts that hold more than one instant: the windowed algorithms and the token bucket.
//!
//! The same bound and the same rule as the [slot table](super::slots): sets of sixteen entries, an
//! entry whose account may be forgotten is free to claim, and when a set holds only debt newcomers
//! share an account. A set is small and locked as a whole, so that a step is plain code. The table
//! is made with the first such account.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{
    crowd::Crowd,
    overflow::{Address, Overflow},
};
use crate::{algorithm::State, name::RuleName, quota::Quota};

const WAYS: usize = 16;

#[derive(Debug)]
pub(super) struct Windows {
    table: OnceLock<Table>,
    entries: usize,
    crowd: Crowd,
}

#[derive(Debug)]
struct Table {
    sets: Box<[Mutex<Set>]>,
    overflow: Overflow<Option<State>>,
}

#[derive(Debug, Default)]
struct Set {
    /// At most `WAYS`.
    entries: Vec<Entry>,
    /// The instant of the latest reset. Earlier charges of every account in the set cannot be undone,
    /// which costs the neighbours of the reset account a few units.
    void: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// When the account may be forgotten.
    until: u64,
    state: State,
}

/// Where an account lives.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) id: u64,
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) quota: &'a Quota,
}

impl Windows {
    /// A table of at least so many entries.
    pub(super) fn new(entries: usize) -> Self {
        Self { table: OnceLock::new(), entries, crowd: Crowd::default() }
    }

    /// Entries that cannot be forgotten now.
    pub(super) fn in_debt(&self, now: u64) -> usize {
        let sets = self.table.get().into_iter().flat_map(|table| &table.sets);
        sets.map(|set| lock(set).entries.iter().filter(|entry| entry.until > now).count()).sum()
    }

    pub(super) fn overflowed(&self) -> u64 {
        self.table.get().map_or(0, |table| table.overflow.decisions())
    }

    /// Shows the account to `read`.
    pub(super) fn look<R>(
        &self,
        at: Place<'_>,
        now: u64,
        read: impl FnOnce(Option<&State>) -> R,
    ) -> R {
        let (table, number) = self.set(at.id);
        let set = table.lock(number);
        match set.entries.iter().find(|entry| entry.id == at.id) {
            Some(entry) => read(Some(&entry.state)),
            None => read(table.overflow.get(at.address(number), now).as_ref()),
        }
    }

    /// Runs `step` on an account that has an entry: for steps that give something back, which those
    /// who share an account have no claim to. Where there is no entry, shows that one to `read`.
    pub(super) fn lower<R>(
        &self,
        at: Place<'_>,
        now: u64,
        step: impl FnOnce(&mut Option<State>) -> R,
        read: impl FnOnce(Option<&State>) -> R,
    ) -> R {
        let (table, number) = self.set(at.id);
        let mut set = table.lock(number);
        match set.find(at.id) {
            Some(found) => set.change(found, at, step),
            None => read(table.overflow.get(at.address(number), now).as_ref()),
        }
    }

    /// Undoes by `step` what was `charged` to an account at that instant, or to what keys without
    /// an entry share, unless an account of the set was reset since.
    pub(super) fn undo(&self, at: Place<'_>, charged: u64, step: impl FnOnce(&mut Option<State>)) {
        let (table, number) = self.set(at.id);
        let mut set = table.lock(number);
        if charged < set.void {
            return;
        }
        match set.find(at.id) {
            Some(found) => set.change(found, at, step),
            None => table.overflow.lower(at.address(number), step),
        }
    }

    /// Ends the account, and shows to `read` what there is without it. What was charged up to the
    /// reading of `clock` is gone, and receipts of it are void.
    pub(super) fn end<R>(
        &self,
        at: Place<'_>,
        now: u64,
        read: impl FnOnce(Option<&State>) -> R,
        clock: impl FnOnce() -> u64,
    ) -> R {
        let (table, number) = self.set(at.id);
        let mut set = table.lock(number);
        if let Some(found) = set.find(at.id) {
            set.entries.swap_remove(found);
        }
        set.void = set.void.max(clock() + 1);
        read(table.overflow.get(at.address(number), now).as_ref())
    }

    /// Runs `step` on the account, which is opened where the step leaves one; `opens` says of a
    /// newcomer whether that is worth an entry.
    pub(super) fn update<R>(
        &self,
        at: Place<'_>,
        now: u64,
        step: impl FnOnce(&mut Option<State>) -> R,
        opens: impl FnOnce(&R) -> bool,
    ) -> R {
        let (table, number) = self.set(at.id);
        let mut set = table.lock(number);
        if let Some(found) = set.find(at.id) {
            return set.change(found, at, step);
        }
        set.entries.retain(|entry| entry.until > now);
        let address = at.address(number);
        if set.entries.len() >= WAYS {
            let said = table.overflow.update(address, |account| {
                let said = step(account);
                (account.as_ref().map_or(0, |state| state.forget_at(at.quota)), said)
            });
            drop(set);
            self.crowd.note(now, self.entries);
            return said;
        }
        // A newcomer inherits the debt it may have had part in.
        let mut account = table.overflow.get(address, now);
        let said = step(&mut account);
        if opens(&said) {
            set.entries.extend(account.map(|state| at.entry(state)));
        }
        said
    }

    /// The table, and the number of the account's set.
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

impl Place<'_> {
    fn entry(&self, state: State) -> Entry {
        Entry { id: self.id, until: state.forget_at(self.quota), state }
    }

    pub(super) fn address(&self, set: usize) -> Address {
        Address::new(set, self.rule, self.place)
    }
}

impl Set {
    fn find(&self, id: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id)
    }

    /// Runs `step` on the account at `found`, whose entry goes where the account ends.
    fn change<R>(
        &mut self,
        found: usize,
        at: Place<'_>,
        step: impl FnOnce(&mut Option<State>) -> R,
    ) -> R {
        let mut account = Some(self.entries.swap_remove(found).state);
        let said = step(&mut account);
        self.entries.extend(account.map(|state| at.entry(state)));
        said
    }
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}
