//! What was admitted here and the inner store has not heard of.

use std::{
    collections::{HashMap, hash_map::Entry},
    mem::{replace, take},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use smallvec::SmallVec;

use crate::{key::Key, name::RuleName, quota::Quota, store::Charge};

/// Longer keys are not kept, so that an account has a size.
const LONGEST_KEY: usize = 256;

pub(super) type Address = (RuleName, Key);

#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Whether something was recorded since it was last opened, and since it was last empty.
    due: AtomicBool,
    written: AtomicBool,
    forgotten: AtomicU64,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    accounts: HashMap<Address, Admitted>,
    /// Whether somebody reads it, and is to tell when that is done.
    read: bool,
    tell: bool,
}

/// What one account was admitted, by the places of its quotas.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    pub(super) quotas: SmallVec<[Quota; 2]>,
    pub(super) units: SmallVec<[u64; 2]>,
}

impl Journal {
    pub(super) fn record(&self, charge: &Charge<'_>, units: u64, room: usize) {
        if units == 0 || charge.quotas().is_empty() {
            return;
        }
        let mut pages = self.pages();
        let full = pages.accounts.len() >= room || charge.key().len() > LONGEST_KEY;
        let admitted = match pages.accounts.entry((charge.rule(), charge.key().clone())) {
            Entry::Vacant(_) if full => {
                self.forgotten.fetch_add(1, Relaxed);
                return;
            }
            Entry::Vacant(place) => place.insert(Admitted::default()),
            Entry::Occupied(place) => place.into_mut(),
        };
        if admitted.quotas.as_slice() != charge.quotas() {
            admitted.quotas = charge.quotas().into();
        }
        admitted.units.resize(charge.quotas().len(), 0);
        for (place, _) in charge.placed() {
            admitted.units[place] = admitted.units[place].saturating_add(units);
        }
        self.due.store(true, Release);
        self.written.store(true, Release);
    }

    /// Leaves at most so many units to be charged for the quota at `place`: the account owes no
    /// more, and what it comes to owe now is of another origin.
    pub(super) fn cap(&self, charge: &Charge<'_>, place: usize, owed: i64) {
        if !self.written.load(Acquire) {
            return;
        }
        let mut pages = self.pages();
        let admitted = pages.accounts.get_mut(&(charge.rule(), charge.key().clone()));
        if let Some(units) = admitted.and_then(|admitted| admitted.units.get_mut(place)) {
            *units = (*units).min(owed.max(0).unsigned_abs());
        }
    }

    /// Strikes out up to `units` of what the charge was admitted, and says how many.
    pub(super) fn take_back(&self, charge: &Charge<'_>, units: u64) -> u64 {
        if units == 0 || !self.written.load(Acquire) {
            return 0;
        }
        let mut pages = self.pages();
        let address = (charge.rule(), charge.key().clone());
        let Some(admitted) = pages.accounts.get_mut(&address) else { return 0 };
        let known = |place: usize| admitted.units.get(place).copied().unwrap_or(0);
        let least = charge.placed().map(|(place, _)| known(place)).min().unwrap_or(0);
        let back = units.min(least);
        charge.placed().for_each(|(place, _)| {
            if let Some(units) = admitted.units.get_mut(place) {
                *units -= back;
            }
        });
        if admitted.units.iter().all(|units| *units == 0) {
            pages.accounts.remove(&address);
        }
        back
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    /// Has it read again: what could not be charged before may be now.
    pub(super) fn remind(&self) {
        self.due.store(true, Release);
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.load(Acquire)
    }

    /// Whether the caller is to read it, since nobody does; who reads it tells, if anybody asks.
    pub(super) fn open(&self, tell: bool) -> bool {
        let mut pages = self.pages();
        pages.tell |= tell;
        let free = !replace(&mut pages.read, true);
        if free {
            self.due.store(false, Release);
        }
        free
    }

    pub(super) fn close(&self) {
        self.pages().read = false;
    }

    /// Whether the reader is to tell.
    pub(super) fn tells(&self) -> bool {
        take(&mut self.pages().tell)
    }

    /// The accounts to read.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let mut pages = self.pages();
        if pages.accounts.is_empty() {
            // an outage is rare, and its memory is not kept
            pages.accounts = HashMap::new();
            self.written.store(false, Release);
        }
        pages.accounts.keys().cloned().collect()
    }

    pub(super) fn tear_out(&self, address: &Address) -> Option<Admitted> {
        self.pages().accounts.remove(address)
    }

    /// Puts an account back that could not be charged.
    pub(super) fn put_back(&self, address: Address, torn: Admitted) {
        match self.pages().accounts.entry(address) {
            Entry::Vacant(place) => drop(place.insert(torn)),
            Entry::Occupied(mut place) => {
                for (units, more) in place.get_mut().units.iter_mut().zip(torn.units) {
                    *units = units.saturating_add(more);
                }
            }
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
