//! Blocked keys, kept in a table beside the accounts.

use super::{
    slots::Slots,
    sync::{
        AtomicU64, OnceLock,
        Ordering::{Acquire, Release},
    },
};

/// The instants at which blocks end. The table is allocated with the first block, because most
/// stores never block a key.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The instant at which the last block ends. After it, no lookup is needed.
    latest: AtomicU64,
    records: OnceLock<Slots>,
}

impl Blocks {
    /// Blocks `id` until `until`. Returns `false` if there is no room. The first block creates the
    /// table, with `slots` slots.
    pub(super) fn set(&self, id: u64, now: u64, until: u64, slots: usize) -> bool {
        let records = self.records.get_or_init(|| Slots::new(slots));
        let set = |_| (Some(until), true);
        let is_set = records.update(id, set);
        let is_set = is_set.unwrap_or_else(|| records.claim(id, now, set, set, |_| false));
        if is_set {
            self.latest.fetch_max(until, Release);
        }
        is_set
    }

    pub(super) fn end(&self, id: u64, now: u64) {
        if let Some(records) = self.records.get() {
            let _ = records.lower(id, now, |_, floor| (Some(floor), ()));
        }
    }

    /// Counts the keys that are blocked now. Reads every slot.
    pub(super) fn len(&self, now: u64) -> usize {
        self.records.get().map_or(0, |records| records.active(now))
    }

    /// Returns `true` if a key may be blocked now.
    #[inline]
    pub(super) fn any(&self, now: u64) -> bool {
        self.latest.load(Acquire) > now
    }

    /// Returns the nanoseconds until the block of `id` ends, or 0 if it is not blocked.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let until = self.records.get().and_then(|records| records.look(id, |until| until));
        until.map_or(0, |until| until.saturating_sub(now))
    }
}
