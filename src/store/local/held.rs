//! Held slots, and the requests that wait for slots, in a table beside the accounts.
//!
//! A key without held slots has no entry, except the last one of each shard, so the memory is bounded
//! by the requests that run. No clock is read when slots are taken or freed.
//!
//! Each key has a queue. A request that waits is woken when it is the first and its slots are
//! probably free. It stays in the queue until it asks again, so that no later request gets its
//! slots.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    mem,
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;

use crate::store::{
    sync::{Mutex, MutexGuard, OnceLock},
    waiter::{QueuePlace, Rank, SlotQueue, Waiter, Wake},
};

/// The maximum number of shards.
const SHARDS: usize = 64;
/// An empty shard with room for more entries than this gives its memory back.
const KEPT_ENTRIES: usize = 64;
/// The longest estimated wait before the first slot is freed, in nanoseconds.
const MAX_GUESS: u64 = 60_000_000_000;

/// A part of the table with one lock.
pub(super) type Shard = Mutex<HeldKeys>;

/// The held slots of all keys.
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
        Self {
            capacity: keys.div_ceil(shards),
            shards,
            all: OnceLock::new(),
        }
    }

    /// Returns the index of the shard of `id`.
    #[inline]
    fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.shards as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    #[inline]
    fn at(&self, index: usize) -> &Arc<Shard> {
        let all = self.all.get_or_init(|| {
            (0..self.shards)
                .map(|_| HeldKeys::shard(self.capacity))
                .collect()
        });
        &all[index]
    }

    #[inline]
    pub(super) fn shard(&self, id: u64) -> &Arc<Shard> {
        self.at(self.index(id))
    }

    /// Locks the shards of these accounts, if any, in ascending order. The request leaves its place, if it
    /// has one in the queue of one of these accounts.
    #[inline]
    pub(super) fn lock<'a>(
        &'a self,
        ids: impl Iterator<Item = u64> + Clone,
        waiter: Option<&'a Waiter>,
        place: Option<QueuePlace>,
    ) -> Option<LockedSlots<'a>> {
        let indexes = ids.map(|id| self.index(id));
        let mut next = Some(indexes.clone().min()?);
        let mut locked = LockedSlots {
            table: self,
            waiter,
            shards: SmallVec::new(),
            full: false,
            woken: Vec::new(),
            left: place,
        };
        while let Some(index) = next {
            locked.shards.push((index, self.at(index).lock()));
            next = indexes.clone().filter(|other| *other > index).min();
        }
        locked.leave_queue();
        Some(locked)
    }

    /// Sets the held slots of an account to 0.
    pub(super) fn reset(&self, id: u64) {
        let woken = self.shard(id).lock().reset(id);
        drop(woken);
    }

    /// Returns the numbers of keys with held slots and of held slots.
    pub(super) fn counts(&self) -> (usize, u64) {
        let mut keys = 0;
        let mut slots = 0;
        for shard in self.all.get().into_iter().flatten() {
            let shard = shard.lock();
            for entry in shard.entries.values().filter(|entry| entry.held > 0) {
                keys += 1;
                slots += entry.held;
            }
        }
        (keys, slots)
    }
}

/// The locked shards of the accounts of one decision.
///
/// The last fields run wakers when they are dropped, so the locks are dropped before them.
pub(super) struct LockedSlots<'a> {
    pub(super) table: &'a HeldSlots,
    pub(super) waiter: Option<&'a Waiter>,
    /// The index of each shard, and its lock.
    shards: SmallVec<[(usize, MutexGuard<'a, HeldKeys>); 2]>,
    /// `true` if there was no room for a new account.
    pub(super) full: bool,
    /// Wakes are made when they are dropped.
    woken: Vec<Wake>,
    /// The place that the request has left.
    left: Option<QueuePlace>,
}

impl<'a> LockedSlots<'a> {
    /// Returns the keys of the shard of an account, which [`HeldSlots::lock`] has locked.
    #[inline]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut HeldKeys> {
        let index = self.table.index(id);
        self.shards
            .iter_mut()
            .find(|(locked, _)| *locked == index)
            .map(|(_, keys)| &mut **keys)
    }

    /// Removes the request from the queue of the place that it leaves.
    fn leave_queue(&mut self) {
        if let Some(waiter) = self.waiter
            && let Some(QueuePlace { queue: id, .. }) = self.left
            && let Some(keys) = self.get(id)
        {
            // Its own wake wakes nobody, because it has left the place.
            let own = keys.leave(id, |queue| queue.remove(waiter));
            self.woken.extend(own);
        }
    }

    /// Adds the request to the queue of an account. It must have a waiter.
    pub(super) fn join(&mut self, id: u64, headroom: u32, limit: u64, max_wait: u64) {
        let Some(waiter) = self.waiter else { return };
        let shard = self.table.shard(id).clone();
        let Some(entry) = self.get(id).and_then(|keys| keys.entries.get_mut(&id)) else {
            return;
        };
        let rank = Rank::new(Some(waiter), headroom);
        let wake = waiter.wait(id, Duration::from_nanos(max_wait), move || {
            leave(&shard, id, rank);
        });
        let queue = entry.queue.get_or_insert_default();
        queue.limit = limit;
        let _ = queue.waiting.insert(rank, Some(wake));
    }

    /// Wakes the next request that waits for slots of an account, if it fits under `limit`.
    pub(super) fn wake_next(&mut self, id: u64, limit: u64) {
        let woken = self.get(id).and_then(|keys| {
            let entry = keys.entries.get_mut(&id)?;
            entry.queue.as_mut()?.limit = limit;
            entry.wake_next()
        });
        self.woken.extend(woken);
    }
}

/// Removes a request, which has left its place, from the queue of an account. The next request may then be
/// woken.
fn leave(shard: &Shard, id: u64, rank: Rank) {
    let mut keys = shard.lock();
    let own = keys.leave(id, |queue| queue.waiting.remove(&rank).flatten());
    let woken = keys.entries.get_mut(&id).and_then(HeldEntry::wake_next);
    drop(keys);
    drop((own, woken));
}

/// Frees slots, unless the account was reset since `epoch`.
#[inline]
pub(super) fn free(shard: &Shard, id: u64, epoch: u64, units: u64) {
    // A waker may run any code, so the lock is released first.
    let woken = shard.lock().free(id, epoch, units);
    drop(woken);
}

/// The keys of a shard.
pub(super) struct HeldKeys {
    capacity: usize,
    /// The number of entries and resets so far. It distinguishes an entry from an earlier one of its key.
    epoch: u64,
    /// The key that was the last to become unused, or 0. Its entry stays, because the next request
    /// is often one of the same key.
    kept: u64,
    pub(super) entries: HashMap<u64, HeldEntry, BuildHasherDefault<IdHasher>>,
}

pub(super) struct HeldEntry {
    held: u64,
    epoch: u64,
    exhaustion: Option<Exhaustion>,
    queue: Option<Box<SlotQueue>>,
}

/// The slots of an account, as a request finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) held: u64,
    /// `true` if no other request waits before this one.
    pub(super) is_next: bool,
}

/// Slots that a request has just taken.
pub(super) struct Held {
    /// The slots of the account that were held before.
    pub(super) before: u64,
    /// The epoch with which the slots are freed.
    pub(super) epoch: u64,
}

/// The slots that were freed since the first denial.
#[derive(Clone, Copy)]
struct Exhaustion {
    since: u64,
    freed: u64,
    /// The slots that were held at the last denial.
    held: u64,
}

impl HeldEntry {
    /// Returns `true` if nothing is held and no request waits.
    #[inline]
    fn is_unused(&self) -> bool {
        self.held == 0 && self.queue.is_none()
    }

    /// Returns `true` if no other request waits before one of this rank.
    #[inline]
    fn is_next(&self, rank: Rank) -> bool {
        let queue = self.queue.as_ref();
        !queue.is_some_and(|queue| queue.is_before(rank))
    }

    /// Returns the time in which `missing` slots are probably freed.
    ///
    /// The time between two freed slots of an exhausted key is its mean hold time divided by its
    /// limit. Without a freed slot, the time since the first denial is a lower bound. A stream of a
    /// day would make it a day, so it is at most a minute.
    fn estimated_wait(&self, missing: u64, now: u64) -> u64 {
        let Some(exhaustion) = self.exhaustion else {
            return 0;
        };
        let elapsed = now.saturating_sub(exhaustion.since);
        let queue = self.queue.as_ref();
        let waiting = queue.map_or(0, |queue| queue.waiting.len() as u64);
        let wait = (elapsed / exhaustion.freed.max(1)).saturating_mul(missing + waiting);
        if exhaustion.freed == 0 {
            wait.min(MAX_GUESS)
        } else {
            wait
        }
    }

    #[inline]
    fn free(&mut self, units: u64) {
        self.held = self.held.saturating_sub(units);
        if let Some(exhaustion) = &mut self.exhaustion {
            exhaustion.freed += units;
            // With two slots free, the key is no longer exhausted.
            if self.held + 1 < exhaustion.held {
                self.exhaustion = None;
            }
        }
    }

    /// Returns the wake for the first request that waits, if it fits.
    #[inline]
    fn wake_next(&mut self) -> Option<Wake> {
        let queue = self.queue.as_mut()?;
        let mut first = queue.waiting.first_entry()?;
        let headroom = first.key().headroom.into();
        // With no slot held, the limit may be too low, and nothing else would wake it.
        let fits = self.held == 0 || self.held.saturating_add(headroom) < queue.limit;
        if fits { first.get_mut().take() } else { None }
    }
}

impl HeldKeys {
    pub(super) fn shard(capacity: usize) -> Arc<Shard> {
        Arc::new(Mutex::new(Self {
            capacity,
            epoch: 0,
            kept: 0,
            entries: HashMap::default(),
        }))
    }

    /// Returns what a request of this rank finds, or `None` if there is no room for a new account.
    #[inline]
    pub(super) fn room(&mut self, id: u64, rank: Rank) -> Option<Room> {
        if let Some(entry) = self.entries.get(&id) {
            return Some(Room {
                held: entry.held,
                is_next: entry.is_next(rank),
            });
        }
        if self.entries.len() >= self.capacity {
            self.keep(0);
        }
        (self.entries.len() < self.capacity).then_some(Room {
            held: 0,
            is_next: true,
        })
    }

    /// Adds held slots if at most `most` are held, and if no request waits that comes before one with
    /// this headroom.
    #[inline]
    pub(super) fn hold_within(
        &mut self,
        most: u64,
        id: u64,
        headroom: u32,
        units: u64,
    ) -> Option<Held> {
        let rank = Rank::new(None, headroom);
        let Some(entry) = self.entries.get_mut(&id) else {
            self.room(id, rank)?;
            let epoch = self.hold(id, units);
            return Some(Held { before: 0, epoch });
        };
        let before = entry.held;
        if before > most || !entry.is_next(rank) {
            return None;
        }
        entry.held += units;
        Some(Held {
            before,
            epoch: entry.epoch,
        })
    }

    pub(super) fn held(&self, id: u64) -> u64 {
        self.entries.get(&id).map_or(0, |entry| entry.held)
    }

    /// Adds held slots. Returns the epoch with which they are freed.
    #[inline]
    pub(super) fn hold(&mut self, id: u64, units: u64) -> u64 {
        let Self { epoch, entries, .. } = self;
        let entry = entries.entry(id).or_insert_with(|| {
            *epoch += 1;
            HeldEntry {
                held: 0,
                epoch: *epoch,
                exhaustion: None,
                queue: None,
            }
        });
        entry.held = entry.held.saturating_add(units);
        entry.epoch
    }

    /// Frees slots. Returns the wake for the next request that waits, if it fits.
    #[inline]
    fn free(&mut self, id: u64, epoch: u64, units: u64) -> Option<Wake> {
        self.change(id, |entry| {
            if entry.epoch != epoch {
                return None;
            }
            entry.free(units);
            entry.wake_next()
        })
    }

    /// Sets the held slots to 0. The slots that are still held are then not counted.
    fn reset(&mut self, id: u64) -> Option<Wake> {
        self.epoch += 1;
        let epoch = self.epoch;
        self.change(id, |entry| {
            (entry.held, entry.epoch, entry.exhaustion) = (0, epoch, None);
            entry.wake_next()
        })
    }

    /// Removes a request from the queue of the account, by `remove`.
    fn leave(
        &mut self,
        id: u64,
        remove: impl FnOnce(&mut SlotQueue) -> Option<Wake>,
    ) -> Option<Wake> {
        self.change(id, |entry| {
            let left = remove(entry.queue.as_mut()?);
            entry.queue.take_if(|queue| queue.waiting.is_empty());
            left
        })
    }

    /// Changes an entry, which may become unused.
    #[inline]
    fn change(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut HeldEntry) -> Option<Wake>,
    ) -> Option<Wake> {
        let entry = self.entries.get_mut(&id)?;
        let wake = change(entry);
        if entry.is_unused() {
            entry.exhaustion = None;
            self.keep(id);
        }
        wake
    }

    /// Keeps the entry of an unused key instead of the one that was kept before.
    #[inline]
    fn keep(&mut self, id: u64) {
        let last = mem::replace(&mut self.kept, id);
        if last != id && self.entries.get(&last).is_some_and(HeldEntry::is_unused) {
            self.entries.remove(&last);
            if self.entries.len() <= 1 && self.entries.capacity() > KEPT_ENTRIES {
                self.entries.shrink_to(KEPT_ENTRIES / 2);
            }
        }
    }

    /// Records a denial.
    pub(super) fn deny(&mut self, id: u64, now: u64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let held = entry.held;
        let first = Exhaustion {
            since: now,
            freed: 0,
            held,
        };
        entry.exhaustion.get_or_insert(first).held = held;
    }

    /// Returns the time in which `missing` slots are probably freed.
    pub(super) fn estimated_wait(&self, id: u64, missing: u64, now: u64) -> u64 {
        let entry = self.entries.get(&id);
        entry.map_or(0, |entry| entry.estimated_wait(missing, now))
    }
}

/// Uses an id, which is already a hash with a random seed, as its own hash.
#[derive(Default)]
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
