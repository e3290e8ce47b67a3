//! Detects layers that are built per request or per connection.
//!
//! Such a layer starts with new accounts, so it limits no client.
//!
//! The detector counts dropped stores that had a layer, by the line of code that created the store.
//! A warning is logged for three patterns:
//!
//! - 16 stores in a row decided one request each: the layer is built per request.
//! - 1 000 stores were dropped in one minute, each less than a minute old.
//! - 32 stores were dropped in one minute and 32 in the next: the layer is built per connection.

use std::{
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
};

use super::clock::Clock;
use crate::log::warn;

const MINUTE: u64 = 60 * 1_000_000_000;
/// The warning threshold for consecutive stores with one decision each.
const MIN_SINGLE_USE: u32 = 16;
/// The warning threshold for stores dropped per minute, in two consecutive minutes.
const MIN_DROPPED: u32 = 32;
/// The warning threshold for short-lived stores dropped in one minute.
const MIN_SHORT_LIVED: u32 = 1_000;
/// The maximum number of lines of code that are tracked.
const MAX_SITES: usize = 64;

static SITES: Mutex<Vec<Site>> = Mutex::new(Vec::new());

/// Records the creation and the use of one store. Counts the store when it is dropped.
#[derive(Debug)]
pub(super) struct RebuildDetector {
    clock: Clock,
    created: u64,
    location: &'static Location<'static>,
    has_layer: AtomicBool,
    /// The number of decisions, counted up to 2.
    decisions: AtomicU8,
}

impl RebuildDetector {
    #[track_caller]
    pub(super) fn new(clock: Clock) -> Self {
        let (created, location) = (clock.now(), Location::caller());
        let (has_layer, decisions) = (AtomicBool::new(false), AtomicU8::new(0));
        Self { clock, created, location, has_layer, decisions }
    }

    /// Records that a layer uses the store.
    pub(super) fn layer_built(&self) {
        self.has_layer.store(true, Relaxed);
    }

    /// Records a decision.
    #[inline]
    pub(super) fn decided(&self) {
        if self.decisions.load(Relaxed) < 2 {
            self.decisions.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for RebuildDetector {
    fn drop(&mut self) {
        if !self.has_layer.load(Relaxed) {
            return;
        }
        let now = self.clock.now();
        let store = DroppedStore {
            now,
            is_short_lived: now.saturating_sub(self.created) < MINUTE,
            decisions: self.decisions.load(Relaxed),
        };
        let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
        let should_warn = count(&mut sites, self.location, &store);
        // A log subscriber may run any code, so the lock is released first.
        drop(sites);
        if should_warn {
            warn(self.location);
        }
    }
}

/// A store that was dropped.
struct DroppedStore {
    now: u64,
    is_short_lived: bool,
    decisions: u8,
}

/// The dropped stores that one line of code created.
struct Site {
    location: &'static Location<'static>,
    minute: u64,
    /// The number of stores dropped in this minute.
    dropped: u32,
    /// The number of stores dropped in this minute that were less than a minute old.
    short_lived: u32,
    /// The number of stores dropped in the previous minute.
    previous: u32,
    /// The number of consecutive stores with one decision each.
    single_use: u32,
    warned: bool,
}

impl Site {
    fn new(location: &'static Location<'static>, minute: u64) -> Self {
        Self {
            location,
            minute,
            dropped: 0,
            short_lived: 0,
            previous: 0,
            single_use: 0,
            warned: false,
        }
    }

    /// Counts a dropped store. Returns `true` if one of the three patterns matches.
    fn matches_after(&mut self, store: &DroppedStore) -> bool {
        let minute = store.now / MINUTE;
        if self.minute != minute {
            self.previous = if self.minute + 1 == minute { self.dropped } else { 0 };
            (self.minute, self.dropped, self.short_lived) = (minute, 0, 0);
        }
        self.dropped = self.dropped.saturating_add(1);
        self.short_lived = self.short_lived.saturating_add(store.is_short_lived.into());
        match store.decisions {
            // The layer may have been built only to check its rules.
            0 => {}
            1 => self.single_use = self.single_use.saturating_add(1),
            _ => self.single_use = 0,
        }
        self.single_use >= MIN_SINGLE_USE
            || self.short_lived >= MIN_SHORT_LIVED
            || self.dropped.min(self.previous) >= MIN_DROPPED
    }
}

/// Counts a dropped store. Returns `true` at most once per line of code, if a pattern matches.
fn count(
    sites: &mut Vec<Site>,
    location: &'static Location<'static>,
    store: &DroppedStore,
) -> bool {
    if !sites.iter().any(|site| site.location == location) && sites.len() < MAX_SITES {
        sites.push(Site::new(location, store.now / MINUTE));
    }
    let Some(site) = sites.iter_mut().find(|site| site.location == location) else { return false };
    site.matches_after(store) && !std::mem::replace(&mut site.warned, true)
}

fn warn(location: &Location<'_>) {
    warn!(
        target: "tower_sluice::lint",
        lint = "layer_rebuilt",
        "layers are built and dropped repeatedly with the store that {location} creates: each starts \
         with new accounts, so that no client is limited, and allocates a whole store; build the \
         layer once, outside of the code that runs per request or connection, and clone it; in \
         tests, ignore this warning"
    );
}
