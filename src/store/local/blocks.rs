//! Blocked keys, in a table beside the accounts.

use std::{
    sync::{
        OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use super::{ledger::Ledger, table::Table, warnings::OverflowWarning};
use crate::{
    decision::{Decision, Outcome, Source},
    quota::Quota,
    store::{Charge, nanos},
};

/// The number of account slots per block slot.
const SLOTS_PER_BLOCK: usize = 8;

/// The blocked keys of a store.
pub(super) struct Blocks {
    slots: usize,
    /// Allocated by the first block.
    table: OnceLock<Table>,
    /// The instant at which the last block ends.
    until: AtomicU64,
    warning: OverflowWarning,
}

impl Blocks {
    /// Creates blocks for a store with this number of account slots.
    pub(super) fn new(account_slots: usize) -> Self {
        Self {
            slots: account_slots / SLOTS_PER_BLOCK,
            table: OnceLock::new(),
            until: AtomicU64::new(0),
            warning: OverflowWarning::default(),
        }
    }

    /// Returns `false` if no key is blocked now.
    #[inline]
    pub(super) fn may_have(&self, now: u64) -> bool {
        self.until.load(Acquire) > now
    }

    /// Counts the blocked keys.
    pub(super) fn count(&self, now: u64) -> usize {
        self.table.get().map_or(0, |table| table.active(now))
    }

    /// Blocks a key until `until`. Returns `false` if there is no room.
    fn add(&self, key: u64, now: u64, until: u64) -> bool {
        let table = self.table.get_or_init(|| Table::new(self.slots));
        let is_kept = table.keep(key, now, until);
        if is_kept {
            self.until.fetch_max(until, Release);
        } else {
            self.warning.record_block(now, self.slots);
        }
        is_kept
    }

    /// Returns the nanoseconds until the block of a key ends, or 0 if it is not blocked.
    fn left(&self, key: u64, now: u64) -> u64 {
        self.table.get().map_or(0, |table| table.left(key, now))
    }
}

impl Ledger {
    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(nanos(time));
        if self.blocks.add(self.key_id(charge), now, until) {
            Decision::new(true, now)
        } else {
            Decision::new(false, now).with_source(Source::Overflow)
        }
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        if let Some(table) = self.blocks.table.get() {
            table.end(self.key_id(charge), self.clock.now());
        }
        Decision::allow()
    }

    /// Returns the denial of the charges if a key is blocked: for the longest of several blocks.
    #[cold]
    pub(super) fn blocked(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let now = self.clock.now();
        let deciding = charges.iter().filter(|charge| charge.may_deny());
        let left = deciding.map(|charge| (charge, self.blocks.left(self.key_id(charge), now)));
        let (charge, left) = left.max_by_key(|(_, left)| *left)?;
        if left == 0 {
            return None;
        }
        let limit = charge.quotas.first().map_or(1, Quota::limit);
        let outcome = Outcome::block(charge.rule, limit, Duration::from_nanos(left));
        let denial = Decision::new(false, now).with_blocked();
        Some(denial.with_outcome(outcome))
    }
}
