//! Held slots, in a table beside the accounts.
//!
//! A key without held slots has no entry, so the memory is bounded by the requests that run. No
//! clock is read when slots are taken or freed.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;

use super::{
    slot_queue::{Order, SlotQueue},
    sync::{AtomicU32, Mutex, MutexGuard, OnceLock, Ordering},
};

/// The maximum number of shards.
const SHARDS: usize = 64;
/// An empty shard with room for more entries than this gives its memory back.
const KEPT_ENTRIES: usize = 64;
/// The longest expected wait before the first slot is freed, in nanoseconds.
const MAX_GUESS: u64 = 60_000_000_000;

/// The held slots of all keys.
#[derive(Debug)]
pub(super) struct HeldSlots {
    /// The maximum number of keys in a shard.
    capacity: usize,
    shards: usize,
    all: OnceLock<Box<[Arc<Shard>]>>,
    /// The number of requests that have waited for slots.
    tickets: AtomicU32,
}

impl HeldSlots {
    /// Creates a table with room for about `keys` keys with held slots.
    pub(super) fn new(keys: usize) -> Self {
        let shards = (keys / KEPT_ENTRIES).clamp(1, SHARDS);
        let (all, tickets) = (OnceLock::new(), AtomicU32::new(0));
        Self { capacity: keys.div_ceil(shards), shards, all, tickets }
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

    /// Returns a number for a request that waits, below that of a request that has not waited.
    ///
    /// After four billion requests the numbers start again, and two requests change their order.
    pub(super) fn ticket(&self) -> u32 {
        self.tickets.fetch_add(1, Ordering::Relaxed) % u32::MAX
    }

    /// Locks the shards of these accounts, in ascending order.
    pub(super) fn lock(&self, ids: impl Iterator<Item = u64>) -> LockedSlots<'_> {
        let mut shards: SmallVec<[_; 2]> = ids.map(|id| (self.index(id), id)).collect();
        shards.sort_unstable();
        shards.dedup_by_key(|(index, _)| *index);
        let lock = |(index, id)| (index, self.shard(id), self.shard(id).lock());
        let shards = shards.into_iter().map(lock).collect();
        LockedSlots { table: self, shards, full: false, called: Vec::new() }
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
    /// The tasks to wake once the shards are unlocked.
    called: Vec<Waker>,
}

impl Drop for LockedSlots<'_> {
    fn drop(&mut self) {
        self.shards.clear();
        self.called.drain(..).for_each(Waker::wake);
    }
}

impl<'a> LockedSlots<'a> {
    /// Returns the shard of an account, which [`HeldSlots::lock`] has locked.
    pub(super) fn get(&mut self, id: u64) -> Option<(&'a Arc<Shard>, &mut HeldKeys)> {
        let index = self.table.index(id);
        let (_, shard, keys) = self.shards.iter_mut().find(|(locked, ..)| *locked == index)?;
        Some((shard, keys))
    }

    pub(super) fn table(&self) -> &'a HeldSlots {
        self.table
    }

    /// Calls the next request that waits for slots of an account, if it fits under `limit`.
    pub(super) fn call_next(&mut self, id: u64, limit: u32) {
        let called = self.get(id).and_then(|(_, keys)| keys.call_next(id, limit));
        self.called.extend(called);
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
        let called = self.keys.lock().free(id, epoch, units);
        wake(called);
    }

    /// Sets the held slots of an account to 0.
    pub(super) fn reset(&self, id: u64) {
        let called = self.keys.lock().reset(id);
        wake(called);
    }

    /// Completes once the request may ask for its slots again.
    pub(super) fn poll_called(
        &self,
        id: u64,
        order: Order,
        ticket: u32,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut keys = self.keys.lock();
        let queue = keys.entries.get_mut(&id).and_then(|entry| entry.queue.as_deref_mut());
        let Some(queue) = queue else { return Poll::Ready(()) };
        let (polled, old) = queue.poll_called(order, ticket, cx);
        drop(keys);
        drop(old);
        polled
    }

    /// Removes a request from the queue of an account.
    pub(super) fn leave(&self, id: u64, order: Order, ticket: u32) {
        let mut keys = self.keys.lock();
        let Some(entry) = keys.entries.get_mut(&id) else { return };
        let Some(queue) = &mut entry.queue else { return };
        let left = queue.leave(order, ticket);
        let called = queue.call_next(entry.held);
        if queue.len() == 0 {
            entry.queue = None;
            if entry.is_unused() {
                keys.remove(id);
            }
        }
        drop(keys);
        drop(left);
        wake(called);
    }
}

/// Wakes a task. A waker may run any code, so no lock may be held.
pub(super) fn wake(called: Option<Waker>) {
    if let Some(waker) = called {
        waker.wake();
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
    queue: Option<Box<SlotQueue>>,
}

impl HeldEntry {
    /// Returns `true` if nothing is held and no request waits.
    #[inline]
    fn is_unused(&self) -> bool {
        self.held == 0 && self.queue.is_none()
    }

    /// Calls the next request that waits, if it fits. Returns the waker of its task.
    #[inline]
    fn call_next(&mut self) -> Option<Waker> {
        self.queue.as_mut()?.call_next(self.held)
    }
}

/// The state of an account before a decision.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// The number of held slots.
    Held(u64),
    /// Other requests wait for slots before this one. The number is that of the held slots.
    Behind(u64),
    /// There is no room for a new account.
    None,
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
    /// Returns the state of the account for a request of this order.
    #[inline]
    pub(super) fn room(&self, id: u64, order: Order) -> Room {
        match self.entries.get(&id) {
            Some(HeldEntry { held, queue: Some(queue), .. }) if queue.precedes(order) => {
                Room::Behind(*held)
            }
            Some(entry) => Room::Held(entry.held),
            None if self.entries.len() < self.capacity => Room::Held(0),
            None => Room::None,
        }
    }

    /// Adds held slots. Returns the epoch with which they are freed.
    #[inline]
    pub(super) fn hold(&mut self, id: u64, units: u64) -> u64 {
        let Self { epoch, entries, .. } = self;
        let entry = entries.entry(id).or_insert_with(|| {
            *epoch += 1;
            HeldEntry { held: 0, epoch: *epoch, exhaustion: None, queue: None }
        });
        entry.held = entry.held.saturating_add(units);
        entry.epoch
    }

    /// Frees slots. Returns the waker of the next request that waits, if it fits.
    #[inline]
    fn free(&mut self, id: u64, epoch: u64, units: u64) -> Option<Waker> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.epoch == epoch)?;
        entry.held = entry.held.saturating_sub(units);
        if let Some(exhaustion) = &mut entry.exhaustion {
            exhaustion.freed += units;
            // With two slots free, the key is no longer exhausted.
            if entry.held + 1 < exhaustion.held {
                entry.exhaustion = None;
            }
        }
        let called = entry.call_next();
        if entry.is_unused() {
            self.remove(id);
        }
        called
    }

    /// Sets the held slots to 0. The slots that are still held are then not counted.
    fn reset(&mut self, id: u64) -> Option<Waker> {
        let entry = self.entries.get_mut(&id)?;
        self.epoch += 1;
        (entry.held, entry.epoch, entry.exhaustion) = (0, self.epoch, None);
        let called = entry.call_next();
        if entry.is_unused() {
            self.remove(id);
        }
        called
    }

    /// Adds a denied request to the queue of the account.
    pub(super) fn join(&mut self, id: u64, order: Order, need: u64, ticket: u32, limit: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.queue.get_or_insert_default().join(order, need, ticket, limit);
        }
    }

    /// Updates the limit by which requests of the account's queue are called.
    pub(super) fn set_queue_limit(&mut self, id: u64, limit: u32) {
        let queue = self.entries.get_mut(&id).and_then(|entry| entry.queue.as_mut());
        queue.into_iter().for_each(|queue| queue.set_limit(limit.into()));
    }

    /// Calls the next request that waits, if it fits under `limit`. Returns the waker of its task.
    pub(super) fn call_next(&mut self, id: u64, limit: u32) -> Option<Waker> {
        let entry = self.entries.get_mut(&id)?;
        entry.queue.as_mut()?.set_limit(limit.into());
        entry.call_next()
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
    /// limit. Without a freed slot, the time since the first denial is a lower bound. A stream of a
    /// day would make it a day, so it is at most a minute.
    pub(super) fn deny(&mut self, id: u64, missing: u64, now: u64) -> u64 {
        let Some(entry) = self.entries.get_mut(&id) else { return 0 };
        let held = entry.held;
        entry.exhaustion.get_or_insert(Exhaustion { since: now, freed: 0, held }).held = held;
        self.expected_wait(id, missing, now)
    }

    /// Returns the time in which `missing` slots are probably freed.
    pub(super) fn expected_wait(&self, id: u64, missing: u64, now: u64) -> u64 {
        let Some(entry) = self.entries.get(&id) else { return 0 };
        let Some(exhaustion) = entry.exhaustion else { return 0 };
        let elapsed = now.saturating_sub(exhaustion.since);
        let waiting = entry.queue.as_ref().map_or(0, |queue| queue.len() as u64);
        let most = if exhaustion.freed == 0 { MAX_GUESS } else { u64::MAX };
        (elapsed / exhaustion.freed.max(1)).saturating_mul(missing + waiting).min(most)
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
