//! Held slots, in a table beside the accounts.
//!
//! A key without held slots has no entry, so the memory is bounded by the requests that run. No
//! clock is read when slots are taken or freed.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use smallvec::SmallVec;

use super::sync::{Mutex, MutexGuard, OnceLock};

/// The maximum number of shards.
const SHARDS: usize = 64;
/// An empty shard with room for more entries than this gives its memory back.
const KEPT_ENTRIES: usize = 64;

/// The held slots of all keys.
#[derive(Debug)]
pub(super) struct HeldSlots {
    /// The maximum number of keys in a shard.
    capacity: usize,
    shards: usize,
    all: OnceLock<Box<[Arc<Shard>]>>,
}

impl HeldSlots {
    /// Creates a table with room for about `keys` keys with held slots.
    pub(super) fn new(keys: usize) -> Self {
        let shards = (keys / KEPT_ENTRIES).clamp(1, SHARDS);
        Self { capacity: keys.div_ceil(shards), shards, all: OnceLock::new() }
    }

    /// Returns the index of the shard of `id`.
    #[inline]
    pub(super) fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.shards as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    #[inline]
    pub(super) fn shard(&self, id: u64) -> &Arc<Shard> {
        let new = || (0..self.shards).map(|_| Arc::new(Shard::new(self.capacity))).collect();
        &self.all.get_or_init(new)[self.index(id)]
    }

    /// Locks the shards of these accounts, in ascending order.
    pub(super) fn lock(&self, ids: impl Iterator<Item = u64>) -> LockedSlots<'_> {
        let mut shards: SmallVec<[_; 2]> = ids.map(|id| (self.index(id), id)).collect();
        shards.sort_unstable();
        shards.dedup_by_key(|(index, _)| *index);
        let lock = |(index, id)| (index, self.shard(id), self.shard(id).lock());
        LockedSlots { table: self, shards: shards.into_iter().map(lock).collect(), full: false }
    }

    /// Returns the numbers of keys with held slots and of held slots.
    pub(super) fn counts(&self) -> (usize, u64) {
        let shards = self.all.get().into_iter().flatten();
        shards.fold((0, 0), |(keys, slots), shard| {
            let entries = &shard.keys.lock().entries;
            (keys + entries.len(), slots + entries.values().map(|entry| entry.held).sum::<u64>())
        })
    }
}

/// The locked shards of the accounts of one decision.
pub(super) struct LockedSlots<'a> {
    table: &'a HeldSlots,
    /// The index of each shard, the shard, and its lock.
    shards: SmallVec<[(usize, &'a Arc<Shard>, MutexGuard<'a, HeldKeys>); 2]>,
    full: bool,
}

impl<'a> LockedSlots<'a> {
    /// Returns the shard of an account, which [`HeldSlots::lock`] has locked.
    pub(super) fn get(&mut self, id: u64) -> Option<(&'a Arc<Shard>, &mut HeldKeys)> {
        let index = self.table.index(id);
        let (_, shard, keys) = self.shards.iter_mut().find(|(locked, ..)| *locked == index)?;
        Some((shard, keys))
    }

    /// Records that there was no room for a new account.
    pub(super) fn set_full(&mut self) {
        self.full = true;
    }

    /// Returns `true` if there was no room for a new account.
    pub(super) fn are_full(&self) -> bool {
        self.full
    }
}

/// A part of the table with one lock.
#[derive(Debug)]
pub(super) struct Shard {
    keys: Mutex<HeldKeys>,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self { keys: Mutex::new(HeldKeys { capacity, epoch: 0, entries: HashMap::default() }) }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, HeldKeys> {
        self.keys.lock()
    }

    /// Frees slots, unless the account was reset since `epoch`.
    #[inline]
    pub(super) fn free(&self, id: u64, epoch: u64, units: u64) {
        self.keys.lock().free(id, epoch, units);
    }
}

/// The keys of a shard.
#[derive(Debug)]
pub(super) struct HeldKeys {
    capacity: usize,
    /// The number of entries so far. It distinguishes an entry from an earlier one of its key.
    epoch: u64,
    pub(super) entries: HashMap<u64, HeldEntry, BuildHasherDefault<IdHasher>>,
}

#[derive(Debug)]
pub(super) struct HeldEntry {
    held: u64,
    epoch: u64,
    exhaustion: Option<Exhaustion>,
}

/// The slots that were freed since the first denial.
#[derive(Clone, Copy, Debug)]
struct Exhaustion {
    since: u64,
    freed: u64,
    /// The slots that were held at the last denial.
    held: u64,
}

impl HeldKeys {
    /// Returns the held slots of the account, or `None` if there is no room for a new account.
    #[inline]
    pub(super) fn held(&self, id: u64) -> Option<u64> {
        match self.entries.get(&id) {
            Some(entry) => Some(entry.held),
            None => (self.entries.len() < self.capacity).then_some(0),
        }
    }

    /// Adds held slots. Returns the epoch with which they are freed.
    #[inline]
    pub(super) fn hold(&mut self, id: u64, units: u64) -> u64 {
        let Self { epoch, entries, .. } = self;
        let entry = entries.entry(id).or_insert_with(|| {
            *epoch += 1;
            HeldEntry { held: 0, epoch: *epoch, exhaustion: None }
        });
        entry.held = entry.held.saturating_add(units);
        entry.epoch
    }

    #[inline]
    fn free(&mut self, id: u64, epoch: u64, units: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.epoch == epoch) else {
            return;
        };
        entry.held = entry.held.saturating_sub(units);
        if let Some(exhaustion) = &mut entry.exhaustion {
            exhaustion.freed += units;
            // With two slots free, the key is no longer exhausted.
            if entry.held + 1 < exhaustion.held {
                entry.exhaustion = None;
            }
        }
        if entry.held == 0 {
            self.remove(id);
        }
    }

    /// Removes the account. The slots that are still held are then not counted.
    pub(super) fn reset(&mut self, id: u64) {
        self.remove(id);
    }

    fn remove(&mut self, id: u64) {
        self.entries.remove(&id);
        if self.entries.is_empty() && self.entries.capacity() > KEPT_ENTRIES {
            self.entries = HashMap::default();
        }
    }

    /// Records a denial, and returns the time in which `missing` slots are probably freed.
    ///
    /// The time between two freed slots of an exhausted key is its mean hold time divided by its
    /// limit. Without a freed slot, the time since the first denial is a lower bound.
    pub(super) fn deny(&mut self, id: u64, missing: u64, now: u64) -> u64 {
        let Some(entry) = self.entries.get_mut(&id) else { return 0 };
        let held = entry.held;
        let exhaustion = entry.exhaustion.get_or_insert(Exhaustion { since: now, freed: 0, held });
        exhaustion.held = held;
        let elapsed = now.saturating_sub(exhaustion.since);
        (elapsed / exhaustion.freed.max(1)).saturating_mul(missing)
    }
}

/// Uses an id, which is already a hash with a random seed, as its own hash.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        // The highest bits, which select the shard, are equal within it. hashbrown uses the
        // highest seven.
        self.0 = id.rotate_left(32);
    }
}
