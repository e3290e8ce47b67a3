//! Warnings and counters for a store without room for new keys or blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ledger::SLOTS_PER_KEY;
use crate::{
    log::warn,
    observe::{block_denied, overflowed},
};

const SECOND: u64 = 1_000_000_000;
/// The time without an overflow after which the next overflow is logged.
const QUIET: u64 = 60 * SECOND;

/// Counts decisions about shared accounts, and logs when keys begin to share accounts.
#[derive(Debug, Default)]
pub(super) struct OverflowWarning {
    /// The second of the last overflow, or 0 before the first overflow.
    last: AtomicU64,
}

impl OverflowWarning {
    /// Records a decision about a shared account.
    ///
    /// The caller must hold no lock, because a log subscriber may run any code.
    pub(super) fn record(&self, now: u64, slots: usize) {
        overflowed();
        if self.is_first(now) {
            warn(slots / SLOTS_PER_KEY);
        }
    }

    /// Records a block without room. The caller must hold no lock.
    pub(super) fn record_block(&self, now: u64, slots: usize) {
        block_denied();
        if self.is_first(now) {
            warn_block(slots);
        }
    }

    /// Returns `true` for the first overflow, and for the first overflow after a quiet time.
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
