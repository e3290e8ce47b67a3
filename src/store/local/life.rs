//! Whether stores are made for layers and dropped again all the time: a layer that is built per
//! request, or per connection, begins to count anew each time and limits nobody.
//!
//! One store says nothing: tests drop them, and a server that stops. So those are counted that a
//! layer had and that lived for less than a minute, by the line that makes them, and told are two
//! patterns: a thousand in a minute, or some in one minute and in the next, which outlasts a suite
//! of tests. Stores that are kept are never counted, however many they are.

use std::{
    panic::Location,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::clock::Clock;

const MINUTE: u64 = 60 * 1_000_000_000;
/// Stores dropped in one minute and in the next, and in one alone, that are told.
const SOME: u32 = 32;
const MANY: u32 = 1_000;
/// Lines of code that are told apart.
const PLACES: usize = 64;

static DROPPED: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// How long a store has lived, and whether a layer had it.
#[derive(Debug)]
pub(super) struct Life {
    clock: Clock,
    born: u64,
    place: &'static Location<'static>,
    layered: AtomicBool,
}

impl Life {
    #[track_caller]
    pub(super) fn new(clock: Clock) -> Self {
        let (born, place) = (clock.now(), Location::caller());
        Self { clock, born, place, layered: AtomicBool::new(false) }
    }

    /// A layer is built over the store.
    pub(super) fn layered(&self) {
        self.layered.store(true, Relaxed);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let now = self.clock.now();
        if self.layered.load(Relaxed) && now.saturating_sub(self.born) < MINUTE {
            let mut places = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
            let tells = note(&mut places, self.place, now);
            // a log is others' code
            drop(places);
            if tells {
                warn(self.place);
            }
        }
    }
}

/// What was dropped of the stores that one line makes.
struct Place {
    line: &'static Location<'static>,
    minute: u64,
    dropped: u32,
    /// In the minute before.
    before: u32,
    told: bool,
}

/// Counts a store that was dropped, and says whether that is to be told: once for each line.
fn note(places: &mut Vec<Place>, line: &'static Location<'static>, now: u64) -> bool {
    let minute = now / MINUTE;
    if !places.iter().any(|place| place.line == line) && places.len() < PLACES {
        places.push(Place { line, minute, dropped: 0, before: 0, told: false });
    }
    let Some(place) = places.iter_mut().find(|place| place.line == line) else { return false };
    if place.minute != minute {
        place.before = if place.minute + 1 == minute { place.dropped } else { 0 };
        (place.minute, place.dropped) = (minute, 0);
    }
    place.dropped = place.dropped.saturating_add(1);
    let often = place.dropped >= MANY || place.dropped.min(place.before) >= SOME;
    often && !std::mem::replace(&mut place.told, true)
}

#[cfg(feature = "tracing")]
fn warn(line: &Location<'_>) {
    tracing::warn!(
        target: "tower_sluice::lint",
        lint = "layer_rebuilt",
        "layers are built and dropped all the time with the store that {line} makes: each begins to \
         count anew, so that nobody is limited, and sets memory aside for a whole store; build the \
         layer once, outside of what runs per request or connection, and clone it"
    );
}

#[cfg(not(feature = "tracing"))]
fn warn(_: &Location<'_>) {}
