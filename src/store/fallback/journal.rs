//! A journal of units that were allowed locally and must still be charged to the inner store.

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
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{key::Key, name::RuleName, quota::Quota, store::Charge};

/// The maximum length of a key in the journal. Units of longer keys are dropped.
const LONGEST_KEY: usize = 256;

pub(super) type AccountId = (RuleName, Key);

#[derive(Debug, Default)]
pub(super) struct Journal {
    /// `true` if recorded units wait for a task that charges them.
    due: AtomicBool,
    /// `true` if the journal may contain units.
    written: AtomicBool,
    dropped_charges: AtomicU64,
    entries: Mutex<JournalEntries>,
}

#[derive(Debug, Default)]
struct JournalEntries {
    accounts: HashMap<AccountId, Admitted>,
    /// `true` while a task charges the recorded units to the inner store.
    replaying: bool,
    should_log: bool,
    paused_until: Option<Instant>,
}

/// The units that were allowed locally to one account. `units` is indexed by quota.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    pub(super) quotas: SmallVec<[Quota; 2]>,
    pub(super) units: SmallVec<[u64; 2]>,
}

impl Journal {
    pub(super) fn record(&self, charge: &Charge<'_>, units: u64, capacity: usize) {
        // Slots are not charged late.
        let rates = charge.charged_quotas().filter(|(_, quota)| !quota.is_concurrent());
        if units == 0 || rates.clone().next().is_none() {
            return;
        }
        let mut entries = self.entries();
        let full = entries.accounts.len() >= capacity || charge.key().len() > LONGEST_KEY;
        let admitted = match entries.accounts.entry((charge.rule(), charge.key().clone())) {
            Entry::Vacant(_) if full => {
                self.dropped_charges.fetch_add(1, Relaxed);
                return;
            }
            Entry::Vacant(entry) => entry.insert(Admitted::default()),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        if admitted.quotas.as_slice() != charge.quotas() {
            admitted.quotas = charge.quotas().into();
        }
        admitted.units.resize(charge.quotas().len(), 0);
        for (index, _) in rates {
            admitted.units[index] = admitted.units[index].saturating_add(units);
        }
        self.due.store(true, Release);
        self.written.store(true, Release);
    }

    /// Reduces the recorded units of a quota to at most `used`.
    pub(super) fn cap(&self, charge: &Charge<'_>, quota_index: usize, used: i64) {
        if !self.written.load(Acquire) {
            return;
        }
        let mut entries = self.entries();
        let admitted = entries.accounts.get_mut(&(charge.rule(), charge.key().clone()));
        if let Some(units) = admitted.and_then(|admitted| admitted.units.get_mut(quota_index)) {
            *units = (*units).min(used.max(0).unsigned_abs());
        }
    }

    /// Removes up to `units` recorded units of a charge. Returns the number removed.
    pub(super) fn remove_units(&self, charge: &Charge<'_>, units: u64) -> u64 {
        if units == 0 || !self.written.load(Acquire) {
            return 0;
        }
        let mut entries = self.entries();
        let address = (charge.rule(), charge.key().clone());
        let Some(admitted) = entries.accounts.get_mut(&address) else { return 0 };
        let recorded = |index: usize| admitted.units.get(index).copied().unwrap_or(0);
        let least = charge.charged_quotas().map(|(index, _)| recorded(index)).min().unwrap_or(0);
        let removed = units.min(least);
        charge.charged_quotas().for_each(|(index, _)| {
            if let Some(units) = admitted.units.get_mut(index) {
                *units -= removed;
            }
        });
        if admitted.units.iter().all(|units| *units == 0) {
            entries.accounts.remove(&address);
        }
        removed
    }

    pub(super) fn dropped_charges(&self) -> u64 {
        self.dropped_charges.load(Relaxed)
    }

    /// Requests a task that charges the recorded units.
    pub(super) fn mark_due(&self) {
        self.due.store(true, Release);
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.load(Acquire)
    }

    /// Returns `true` if the caller should start a task that charges the recorded units.
    ///
    /// Returns `false` while such a task runs, and during a [pause](Journal::pause).
    pub(super) fn start_replay(&self, should_log: bool) -> bool {
        let mut entries = self.entries();
        entries.should_log |= should_log;
        if entries.paused_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let free = !replace(&mut entries.replaying, true);
        if free {
            self.due.store(false, Release);
        }
        free
    }

    pub(super) fn end_replay(&self) {
        self.entries().replaying = false;
    }

    /// Prevents the start of a new task for `time`.
    pub(super) fn pause(&self, time: Duration) {
        self.entries().paused_until = Some(Instant::now() + time);
    }

    /// Returns and resets the flag `should_log`.
    pub(super) fn should_log(&self) -> bool {
        take(&mut self.entries().should_log)
    }

    /// Returns the accounts with recorded units.
    pub(super) fn addresses(&self) -> Vec<AccountId> {
        let mut entries = self.entries();
        if entries.accounts.is_empty() {
            // Outages are rare, so the memory is freed.
            entries.accounts = HashMap::new();
            self.written.store(false, Release);
        }
        entries.accounts.keys().cloned().collect()
    }

    pub(super) fn remove(&self, address: &AccountId) -> Option<Admitted> {
        self.entries().accounts.remove(address)
    }

    /// Puts back the units of an account that could not be charged.
    pub(super) fn restore(&self, address: AccountId, removed: Admitted) {
        match self.entries().accounts.entry(address) {
            Entry::Vacant(entry) => drop(entry.insert(removed)),
            Entry::Occupied(mut entry) => {
                for (units, more) in entry.get_mut().units.iter_mut().zip(removed.units) {
                    *units = units.saturating_add(more);
                }
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, JournalEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
