//! Detects stores that are made for layers and dropped again all the time: a layer that is built
//! per request, or per connection, starts to count from zero each time and limits nobody.
//!
//! One store is no sign: tests drop stores, and so does a server that stops. Stores that a layer had
//! are counted when they are dropped, by the line that makes them. Three patterns are reported:
//!
//! - 16 in a row that decided about one request each: built per request;
//! - 1 000 in a minute, each of which lived for less than that;
//! - 32 in one minute and in the next, which outlasts a suite of tests: built per connection.
//!
//! Stores that are kept are never counted, however many they are.

use std::{
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    },
};

use super::clock::Clock;

const MINUTE: u64 = 60 * 1_000_000_000;
/// Stores in a row that decided once.
const ONCE: u32 = 16;
/// Stores dropped in one minute and in the next.
const SOME: u32 = 32;
/// Stores of a short life, dropped in one minute.
const MANY: u32 = 1_000;
/// Lines of code that are told apart.
const PLACES: usize = 64;

static DROPPED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// The start of a store's life, and its use.
#[derive(Debug)]
pub(super) struct Life {
    clock: Clock,
    born: u64,
    place: &'static Location<'static>,
    layered: AtomicBool,
    /// Decisions, counted up to two.
    decisions: AtomicU8,
}

impl Life {
    #[track_caller]
    pub(super) fn new(clock: Clock) -> Self {
        let (born, place) = (clock.now(), Location::caller());
        let (layered, decisions) = (AtomicBool::new(false), AtomicU8::new(0));
        Self { clock, born, place, layered, decisions }
    }

    /// A layer is built over the store.
    pub(super) fn layered(&self) {
        self.layered.store(true, Relaxed);
    }
    /// The store decides about a request.
    #[inline]
    pub(super) fn decides(&self) {
        if self.decisions.load(Relaxed) < 2 {
            self.decisions.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if !self.layered.load(Relaxed) {
            return;
        }
        let now = self.clock.now();
        let ended = Ended {
            now,
            is_short: now.saturating_sub(self.born) < MINUTE,
            decisions: self.decisions.load(Relaxed),
        };
        let mut places = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let says = note(&mut places, self.place, &ended);
        // a log is others' code
        drop(places);
        if says {
            warn(self.place);
        }
    }
}

/// A store that was dropped.
struct Ended {
    now: u64,
    is_short: bool,
    decisions: u8,
}

/// The dropped stores that one line made.
struct Place {
    line: &'static Location<'static>,
    minute: u64,
    dropped: u32,
    /// The number of those that lived for less than a minute.
    short: u32,
    /// Dropped in the minute before.
    before: u32,
    /// Stores in a row that decided once.
    once: u32,
    said: bool,
}

impl Place {
    fn new(line: &'static Location<'static>, minute: u64) -> Self {
        Self { line, minute, dropped: 0, short: 0, before: 0, once: 0, said: false }
    }

    /// Counts a store, and returns whether one of the patterns is there.
    fn count(&mut self, ended: &Ended) -> bool {
        let minute = ended.now / MINUTE;
        if self.minute != minute {
            self.before = if self.minute + 1 == minute { self.dropped } else { 0 };
            (self.minute, self.dropped, self.short) = (minute, 0, 0);
        }
        self.dropped = self.dropped.saturating_add(1);
        self.short = self.short.saturating_add(ended.is_short.into());
        match ended.decisions {
            // rules are tried with a store of their own before they are used
            0 => {}
            1 => self.once = self.once.saturating_add(1),
            _ => self.once = 0,
        }
        self.once >= ONCE || self.short >= MANY || self.dropped.min(self.before) >= SOME
    }
}

/// Counts a store that was dropped, and returns whether that is to be logged: once for each line.
fn note(places: &mut Vec<Place>, line: &'static Location<'static>, ended: &Ended) -> bool {
    if !places.iter().any(|place| place.line == line) && places.len() < PLACES {
        places.push(Place::new(line, ended.now / MINUTE));
    }
    let Some(place) = places.iter_mut().find(|place| place.line == line) else { return false };
    place.count(ended) && !std::mem::replace(&mut place.said, true)
}

#[cfg(feature = "tracing")]
fn warn(line: &Location<'_>) {
    tracing::warn!(
        target: "tower_sluice::lint",
        lint = "layer_rebuilt",
        "layers are built and dropped all the time with the store that {line} makes: each starts to \
         count from zero, so that nobody is limited, and sets memory aside for a whole store; build the \
         layer once, outside of what runs per request or connection, and clone it; if these are \
         tests, all is well"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn(_: &Location<'_>) {}
