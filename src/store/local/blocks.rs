//! Blocked keys, in a table beside the accounts.

use std::sync::{
    OnceLock,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use super::{table::Table, warnings::OverflowWarning};

/// The number of account entries per block entry.
const ENTRIES_PER_BLOCK: usize = 8;

/// The blocked keys of a store.
pub(super) struct Blocks {
    entries: usize,
    /// Allocated by the first block.
    table: OnceLock<Table>,
    /// The latest instant until which a key was blocked, also if its block was ended earlier.
    until: AtomicU64,
    warning: OverflowWarning,
}

impl Blocks {
    /// Creates blocks for a store with this number of account entries.
    pub(super) fn new(account_entries: usize) -> Self {
        Self {
            entries: account_entries / ENTRIES_PER_BLOCK,
            table: OnceLock::new(),
            until: AtomicU64::new(0),
            warning: OverflowWarning::default(),
        }
    }

    /// Returns `true` if no key was ever blocked.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.until.load(Acquire) == 0
    }

    /// Returns `false` if certainly no key is blocked now.
    #[inline]
    pub(super) fn may_have(&self, now: u64) -> bool {
        self.until.load(Acquire) > now
    }

    /// Counts the blocked keys.
    pub(super) fn count(&self, now: u64) -> usize {
        self.table.get().map_or(0, |table| table.active(now))
    }

    /// Blocks a key until `until`. Returns `false` if there is no room.
    pub(super) fn add(&self, key: u64, now: u64, until: u64) -> bool {
        let table = self.table.get_or_init(|| Table::new(self.entries));
        let is_kept = table.keep(key, now, until);
        if is_kept {
            self.until.fetch_max(until, Release);
        } else {
            self.warning.record_block(now, self.entries);
        }
        is_kept
    }

    /// Returns the nanoseconds until the block of a key ends, or 0 if it is not blocked.
    pub(super) fn left(&self, key: u64, now: u64) -> u64 {
        self.table.get().map_or(0, |table| table.left(key, now))
    }

    /// Ends the block of a key.
    pub(super) fn end(&self, key: u64, now: u64) {
        if let Some(table) = self.table.get() {
            table.end(key, now);
        }
    }
}
