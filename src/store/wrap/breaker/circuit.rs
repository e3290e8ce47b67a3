//! The state of a breaker: closed, open, or open with a probe on its way.
//!
//! It is one word, so that a call is let through or turned away by a load. The lowest two bits say
//! which state; the others are the instant until which it is open, in nanoseconds since the circuit
//! was made, or, closed, how often it has closed. An answer counts only while the word stands under
//! which its call was made: what was asked before an outage and times out after it does not open
//! the breaker again.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use super::tally::Tally;
use crate::observe::circuit;

const STATE: u64 = 3;
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const PROBING: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) failures: u32,
    pub(super) percent: u32,
    pub(super) answers: u32,
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            failures: 5,
            percent: 50,
            answers: 20,
            first: Duration::from_millis(100),
            longest: Duration::from_secs(1),
        }
    }
}

impl Settings {
    fn trips(&self, tally: &Tally, now: Duration) -> bool {
        let (answers, failures) = tally.last_second(now);
        tally.in_a_row() >= self.failures
            || (answers >= self.answers.into()
                && failures * 100 >= answers * u64::from(self.percent))
    }
}

#[derive(Debug)]
pub(super) struct Circuit {
    settings: Settings,
    made: Instant,
    word: AtomicU64,
    /// Held to open or to close.
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    tally: Tally,
    closings: u64,
    /// How long it was open last, uncut; zero when it has been closed since.
    open_for: Duration,
}

impl Circuit {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            made: Instant::now(),
            word: AtomicU64::new(CLOSED),
            history: Mutex::default(),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    pub(super) fn is_open(&self) -> bool {
        self.word.load(Acquire) & STATE != CLOSED
    }

    /// Lets a call through, or says how long to stay away.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Permit, Duration> {
        let mut word = self.word.load(Acquire);
        if word & STATE != CLOSED {
            word = self.probe(word)?;
        }
        Ok(Permit { circuit: self.clone(), word })
    }

    /// The place of the probe, if it is time and nobody has it.
    fn probe(&self, word: u64) -> Result<u64, Duration> {
        let left = Duration::from_nanos(word >> 2).saturating_sub(self.made.elapsed());
        if !left.is_zero() {
            return Err(left);
        }
        let probing = word & !STATE | PROBING;
        let first = word & STATE == OPEN
            && self.word.compare_exchange(word, probing, AcqRel, Acquire).is_ok();
        // should the probe fail, nobody goes through before
        if !first {
            return Err(self.settings.first / 2);
        }
        circuit(1);
        Ok(probing)
    }

    fn answered(&self, word: u64, ok: bool) {
        let now = self.made.elapsed();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if self.word.load(Acquire) != word {
            return;
        }
        let probe = word & STATE == PROBING;
        if !probe {
            history.tally.add(now, ok);
        }
        if probe && ok {
            history.close();
            self.word.store(history.closings << 2 | CLOSED, Release);
            drop(history);
            circuit(0);
            log_closed();
        } else if probe || self.settings.trips(&history.tally, now) {
            let time = history.open(&self.settings);
            let until = u64::try_from(now.saturating_add(time).as_nanos()).unwrap_or(u64::MAX);
            self.word.store(until.min(u64::MAX >> 2) << 2 | OPEN, Release);
            drop(history);
            circuit(2);
            if !probe {
                log_opened(time);
            }
        }
    }

    /// Frees the place of a probe that will not answer.
    fn abandoned(&self, word: u64) {
        if word & STATE == PROBING {
            let open = word & !STATE | OPEN;
            // fails where the probe has answered
            if self.word.compare_exchange(word, open, AcqRel, Acquire).is_ok() {
                circuit(2);
            }
        }
    }
}

impl History {
    fn close(&mut self) {
        *self = Self { closings: self.closings + 1, ..Self::default() };
    }

    /// How long to be open now.
    fn open(&mut self, settings: &Settings) -> Duration {
        let doubled = self.open_for.saturating_mul(2);
        self.open_for = doubled.clamp(settings.first, settings.longest);
        cut(self.open_for)
    }
}

/// Between half of `time` and all of it, at random: processes that failed together do not come back
/// together.
fn cut(time: Duration) -> Duration {
    let half = time / 2;
    let more = u64::try_from((time - half).as_nanos()).unwrap_or(u64::MAX - 1);
    half + Duration::from_nanos(RandomState::new().hash_one(0) % (more + 1))
}

/// A call that was let through. Dropped without an answer it tells nothing, and frees the place of
/// the probe if it is the probe's.
#[derive(Debug)]
pub(super) struct Permit {
    circuit: Arc<Circuit>,
    word: u64,
}

impl Permit {
    pub(super) fn answered(self, ok: bool) {
        self.circuit.answered(self.word, ok);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.circuit.abandoned(self.word);
    }
}

#[cfg(feature = "tracing")]
fn log_opened(time: Duration) {
    tracing::warn!("the breaker of a store opened: it fails, and is not asked for {time:?}");
}

#[cfg(not(feature = "tracing"))]
fn log_opened(_: Duration) {}

#[cfg(feature = "tracing")]
fn log_closed() {
    tracing::info!("the breaker of a store closed: it answers again");
}

#[cfg(not(feature = "tracing"))]
fn log_closed() {}
