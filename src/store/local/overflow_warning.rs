//! The warning and the counters of a store that has no room for new keys or blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ledger::SLOTS_PER_KEY;
use crate::observe::{block_denied, overflowed};

const SECOND: u64 = 1_000_000_000;
/// The time without an overflow after which the next one is logged again.
const QUIET: u64 = 60 * SECOND;

/// Counts decisions over shared accounts, and logs the first of each overflow. A line per decision
/// would amplify the flood that causes the overflow.
#[derive(Debug, Default)]
pub(super) struct OverflowWarning {
    /// The instant of the last overflow, to a second. 0 before the first.
    last: AtomicU64,
}

impl OverflowWarning {
    /// Records a decision over a shared account of a table with `slots` slots. The caller must hold
    /// no lock, because a log subscriber may run any code.
    pub(super) fn record(&self, now: u64, slots: usize) {
        overflowed();
        if self.is_first(now) {
            warn(slots / SLOTS_PER_KEY);
        }
    }

    /// Records a block that did not fit into a table with `slots` slots. The caller must hold no
    /// lock.
    pub(super) fn record_block(&self, now: u64, slots: usize) {
        block_denied();
        if self.is_first(now) {
            warn_block(slots);
        }
    }

    /// Returns `true` for the first overflow, and for the first one after a quiet time.
    fn is_first(&self, now: u64) -> bool {
        let last = self.last.load(Relaxed);
        let quiet = now.saturating_sub(last);
        let first = last == 0;
        // One thread writes once per second, so that threads do not contend for it in a flood.
        (first || quiet >= SECOND)
            && self.last.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_ok()
            && (first || quiet > QUIET)
    }
}

#[cfg(feature = "tracing")]
fn warn(keys: usize) {
    tracing::warn!(
        "the local store has no room for a new key: new keys share accounts, and may be denied early; \
         raise LocalStore::with_capacity({keys}) to the new keys per second, times the seconds until \
         a key's quota is full again, times the quotas of a rule"
    );
}

#[cfg(feature = "tracing")]
fn warn_block(slots: usize) {
    tracing::warn!(
        "the local store has no room for another block ({slots} slots): the key is not blocked; \
         unblock other keys, or raise LocalStore::with_capacity"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn(_: usize) {}

#[cfg(not(feature = "tracing"))]
fn warn_block(_: usize) {}
