//! Keys that an operator refuses for a while: records of their own, beside the accounts.

use super::{
    slots::Slots,
    sync::{
        AtomicU64, OnceLock,
        Ordering::{Acquire, Release},
    },
};

/// Made with the first block; most stores never have one.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// When the last block ends: past it there is nothing to look up.
    latest: AtomicU64,
    records: OnceLock<Slots>,
}

impl Blocks {
    /// Refuses `id` until `until`; `false` where there is no room for the record.
    pub(super) fn set(&self, id: u64, now: u64, until: u64, room: usize) -> bool {
        let records = self.records.get_or_init(|| Slots::new(room));
        let set = |_| (Some(until), true);
        let done = records.update(id, set);
        let done = done.unwrap_or_else(|| records.claim(id, now, set, set, |_| false));
        if done {
            self.latest.fetch_max(until, Release);
        }
        done
    }

    pub(super) fn end(&self, id: u64, now: u64) {
        if let Some(records) = self.records.get() {
            let _ = records.lower(id, now, |_, floor| (Some(floor), ()));
        }
    }

    /// Keys that are blocked now. Looks at every slot.
    pub(super) fn len(&self, now: u64) -> usize {
        self.records.get().map_or(0, |records| records.in_debt(now))
    }

    /// Whether anybody may be blocked now.
    #[inline]
    pub(super) fn any(&self, now: u64) -> bool {
        self.latest.load(Acquire) > now
    }

    /// For how long `id` is blocked yet.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let until = self.records.get().and_then(|records| records.look(id, |until| until));
        until.map_or(0, |until| until.saturating_sub(now))
    }
}
