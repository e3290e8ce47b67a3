//! Blocked keys, kept in a table beside the accounts.

use super::{
    sets::Sets,
    sync::{
        AtomicU64, OnceLock,
        Ordering::{Acquire, Release},
    },
};

/// The instants at which blocks end. The first block allocates the table.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The instant at which the last block ends.
    latest: AtomicU64,
    sets: OnceLock<Sets<()>>,
}

impl Blocks {
    /// Blocks `id` until `until`. Returns `false` if there is no room.
    pub(super) fn set(&self, id: u64, now: u64, until: u64, slots: usize) -> bool {
        let sets = self.sets.get_or_init(|| Sets::new(slots));
        let mut set = sets.lock(sets.index(id));
        let found = set.find(id).or_else(|| set.room(id, now, |_| false));
        if let Some(at) = found {
            set.claim(at, id, now);
            set.store_instant(at, until);
            self.latest.fetch_max(until, Release);
        }
        found.is_some()
    }

    pub(super) fn end(&self, id: u64, now: u64) {
        let Some(sets) = self.sets.get() else { return };
        let mut set = sets.lock(sets.index(id));
        if let Some(at) = set.find(id) {
            set.store_instant(at, now);
        }
    }

    /// Counts the keys that are blocked now, by reading every slot.
    pub(super) fn len(&self, now: u64) -> usize {
        self.sets.get().map_or(0, |sets| sets.active(now))
    }

    /// Returns `false` if no key is blocked now. Returns `true` if some key is possibly blocked.
    #[inline]
    pub(super) fn any(&self, now: u64) -> bool {
        self.latest.load(Acquire) > now
    }

    /// Returns the nanoseconds until the block of `id` ends, or 0 if `id` is not blocked.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let Some(sets) = self.sets.get() else { return 0 };
        let set = sets.lock(sets.index(id));
        set.find(id).map_or(0, |at| set.expires_at(at).saturating_sub(now))
    }
}
