//! Warnings and counters for a store without room for new keys or blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ledger::SLOTS_PER_KEY;
use crate::{
    log::warn,
    observe::{block_denied, overflowed},
};

const SECOND: u64 = 1_000_000_000;
/// The time that must pass without an overflow before a new overflow is logged.
const QUIET: u64 = 60 * SECOND;

/// Counts decisions and blocks for which the store has no free slot, and logs the first of them.
#[derive(Debug, Default)]
pub(super) struct OverflowWarning {
    /// The instant of the last overflow, accurate to a second. Zero before the first overflow.
    last: AtomicU64,
}

impl OverflowWarning {
    /// Records a decision on an account that several keys share.
    ///
    /// The caller must hold no lock, because a log subscriber may run any code.
    pub(super) fn record(&self, now: u64, slots: usize) {
        overflowed();
        if self.is_first(now) {
            warn(slots / SLOTS_PER_KEY);
        }
    }

    /// Records a block that could not be stored. The caller must hold no lock.
    pub(super) fn record_block(&self, now: u64, slots: usize) {
        block_denied();
        if self.is_first(now) {
            warn_block(slots);
        }
    }

    /// Records an overflow. Returns `true` if no other was recorded during the last [`QUIET`].
    fn is_first(&self, now: u64) -> bool {
        let last = self.last.load(Relaxed);
        let quiet = now.saturating_sub(last);
        let first = last == 0;
        // One thread writes once per second, so that threads do not contend in a flood.
        (first || quiet >= SECOND)
            && self.last.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_ok()
            && (first || quiet > QUIET)
    }
}

fn warn(keys: usize) {
    warn!(
        "the local store has no room for a new key: new keys share accounts, and may be denied early; \
         raise LocalStore::with_capacity({keys}) to the new keys per second, times the seconds until \
         a key's quota is full again, times the quotas of a rule"
    );
}

fn warn_block(slots: usize) {
    warn!(
        "the local store has no room for another block ({slots} slots): the key is not blocked; \
         unblock other keys, or raise LocalStore::with_capacity"
    );
}
