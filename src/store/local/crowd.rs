//! The log line and the counter of a store without room for new keys or blocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ledger::SLOTS_PER_KEY;
use crate::observe::{block_denied, overflowed};

const SECOND: u64 = 1_000_000_000;
/// How long all newcomers must have found room before it is news that one does not.
const QUIET: u64 = 60 * SECOND;

/// Counts decisions over accounts that newcomers share, and tells when they begin: once per crowd,
/// because a line per decision would amplify the flood that causes it.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// When newcomers last shared, to a second; 0: never.
    last: AtomicU64,
}

impl Crowd {
    /// Newcomers share at `now`, for want of more than `slots`. No lock may be held: a log is
    /// others' code.
    pub(super) fn note(&self, now: u64, slots: usize) {
        overflowed();
        if self.begins(now) {
            warn(slots / SLOTS_PER_KEY);
        }
    }

    /// A key is not blocked at `now`, for want of more than `slots`. No lock may be held.
    pub(super) fn note_block(&self, now: u64, slots: usize) {
        block_denied();
        if self.begins(now) {
            warn_block(slots);
        }
    }

    fn begins(&self, now: u64) -> bool {
        let last = self.last.load(Relaxed);
        let quiet = now.saturating_sub(last);
        let first = last == 0;
        // written once a second, by one thread: a flood is not to fight over it
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
