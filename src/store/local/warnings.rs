//! Warnings about a store without room for new keys or blocks, and about layers that are built per
//! request or per connection.

use std::{
    collections::BTreeMap,
    panic::Location,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::{Clock, ENTRIES_PER_KEY};
use crate::{
    log::warn,
    observe::{block_denied, overflowed},
};

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
/// The time that must pass without an event before a new one of its kind is logged.
const QUIET: u64 = MINUTE;
/// The number of short-lived stores of a line of code, dropped within a minute, that is logged.
const REBUILDS: u32 = 32;

/// The short-lived stores that were dropped, by the line of code that created them.
static DROPPED: Mutex<BTreeMap<&Location<'_>, Dropped>> = Mutex::new(BTreeMap::new());

/// Counts events of one kind in a store that is full, or almost, and logs the first of them.
#[derive(Default)]
pub(super) struct OverflowWarning {
    /// The instant of the last event, accurate to a second. Zero before the first event.
    last: AtomicU64,
    count: AtomicU64,
}

impl OverflowWarning {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Records a decision on an account that several keys share.
    ///
    /// The caller must hold no lock, because a log subscriber may run any code.
    pub(super) fn record_shared(&self, now: u64, entries: usize) {
        overflowed();
        if self.is_first(now) {
            let keys = entries / ENTRIES_PER_KEY;
            warn!(
                "the local store has no room for a new key: new keys share accounts, and may be \
                 denied early; raise LocalStore::with_capacity({keys}) to the new keys per second, \
                 times the seconds until a key's quota is full again, times the quotas of a rule"
            );
        }
    }

    /// Records a request of a key for whose slots there is no room. The caller must hold no lock.
    pub(super) fn record_slots(&self, now: u64, entries: usize) {
        overflowed();
        if self.is_first(now) {
            let keys = entries / ENTRIES_PER_KEY;
            warn!(
                "the local store has no room for the slots of another key: requests of further keys are \
                 denied; raise LocalStore::with_capacity({keys}) above the keys whose requests run at \
                 once"
            );
        }
    }

    /// Logs that the store is almost full, unless an earlier call found it so within the last minute.
    pub(super) fn record_use(&self, now: u64, active: usize, entries: usize) {
        let keys = entries / ENTRIES_PER_KEY;
        if active * 5 >= keys * 4 && self.is_first(now) {
            warn!(
                "the local store is almost full: {active} keys are in debt, and its capacity is \
                 {keys}; raise LocalStore::with_capacity before new keys share accounts"
            );
        }
    }

    /// Records a block that could not be stored. The caller must hold no lock.
    pub(super) fn record_block(&self, now: u64, entries: usize) {
        block_denied();
        if self.is_first(now) {
            warn!(
                "the local store has no room for another block ({entries} entries): the key is not \
                 blocked; unblock other keys, or raise LocalStore::with_capacity"
            );
        }
    }

    /// Records an event. Returns `true` if no other was recorded during the last [`QUIET`].
    fn is_first(&self, now: u64) -> bool {
        self.count.fetch_add(1, Relaxed);
        let last = self.last.load(Relaxed);
        let quiet = now.saturating_sub(last);
        let first = last == 0;
        // One thread writes once per second, so that threads do not contend in a flood.
        (first || quiet >= SECOND)
            && self
                .last
                .compare_exchange(last, now.max(1), Relaxed, Relaxed)
                .is_ok()
            && (first || quiet > QUIET)
    }
}

/// Detects layers that are built per request or per connection. Such a layer starts with new
/// accounts, so it limits no client.
///
/// Counts dropped stores that had a layer and lived for less than a minute, by the line of code that
/// created them.
pub(super) struct RebuildDetector {
    clock: Clock,
    created: u64,
    location: &'static Location<'static>,
    has_layer: AtomicBool,
}

impl RebuildDetector {
    #[track_caller]
    pub(super) fn new(clock: Clock) -> Self {
        let created = clock.now();
        let location = Location::caller();
        Self {
            clock,
            created,
            location,
            has_layer: AtomicBool::new(false),
        }
    }

    /// Records that a layer uses the store.
    pub(super) fn layer_built(&self) {
        self.has_layer.store(true, Relaxed);
    }
}

impl Drop for RebuildDetector {
    fn drop(&mut self) {
        let now = self.clock.now();
        if !self.has_layer.load(Relaxed) || now.saturating_sub(self.created) >= MINUTE {
            return;
        }
        // A log subscriber may run any code, so the lock is released first.
        let stores = count_dropped(self.location, now);
        if stores == REBUILDS {
            let location = self.location;
            warn!(
                target: "tower_sluice::lint",
                lint = "layer_rebuilt",
                "layers are built and dropped repeatedly with the store that {location} creates: \
                 each starts with new accounts, so that no client is limited, and allocates a \
                 whole store; build the layer once, outside of the code that runs per request or \
                 connection, and clone it; in tests, ignore this warning"
            );
        }
    }
}

/// The short-lived stores of a line of code that were dropped within a minute.
struct Dropped {
    /// The start of the minute.
    since: u64,
    stores: u32,
}

/// Counts a short-lived store. Returns the stores of its line of code within the minute.
fn count_dropped(location: &'static Location<'static>, now: u64) -> u32 {
    let mut all = DROPPED.lock();
    let dropped = all.entry(location).or_insert(Dropped {
        since: now,
        stores: 0,
    });
    // A line of code that was logged counts on, so it is not logged again.
    if dropped.stores < REBUILDS && now.saturating_sub(dropped.since) >= MINUTE {
        dropped.since = now;
        dropped.stores = 0;
    }
    dropped.stores = dropped.stores.saturating_add(1);
    dropped.stores
}
