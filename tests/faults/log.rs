//! The log that apps keep of every decision.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tower_sluice::decision::Source;
use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::util::SubscriberInitExt;

/// The start of this program, by both clocks.
static EPOCH: LazyLock<(Instant, SystemTime)> =
    LazyLock::new(|| (Instant::now(), SystemTime::now()));

/// Returns the time since this program began. All times of a log are relative to it.
pub(crate) fn now() -> Duration {
    EPOCH.0.elapsed()
}

/// Returns the start of this program in Unix time, which makes the times of two processes
/// comparable.
pub(crate) fn epoch() -> Duration {
    EPOCH.1.duration_since(UNIX_EPOCH).expect("after 1970")
}

/// One decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u16,
    pub(crate) asked: Duration,
    pub(crate) answered: Duration,
    pub(crate) allowed: bool,
    pub(crate) source: Source,
    /// The answer was immediate: nothing was sent.
    pub(crate) at_once: bool,
}

impl Entry {
    pub(crate) fn took(&self) -> Duration {
        self.answered.saturating_sub(self.asked)
    }

    pub(crate) fn is_from_redis(&self) -> bool {
        self.source == Source::Redis
    }

    /// Returns the interval of the decision, as narrow as is known. A local decision was made when
    /// the answer arrived.
    pub(crate) fn decided(&self) -> (Duration, Duration) {
        let first = if self.is_from_redis() { self.asked } else { self.answered };
        (first, self.answered)
    }
}

/// A time in which a runnable thread could not run, although no code of the suite ran on it.
pub(crate) type Stall = (Duration, Duration);

/// The log of one app.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    /// Errors of the store inside the policy, by kind. Calls that the breaker rejected do not
    /// count.
    pub(crate) errors: BTreeMap<String, u64>,
    /// A text of each kind.
    pub(crate) texts: BTreeMap<String, String>,
    /// Answers of the store inside the policy, including late charges.
    pub(crate) answered: u64,
    /// Accounts whose key held an invalid value.
    pub(crate) healed: u64,
    pub(crate) stalls: Vec<Stall>,
    /// The longest delay of the control task.
    pub(crate) lag: Duration,
    /// The lines that the app logged at info or above, and those of the crates that it uses.
    pub(crate) lines: usize,
}

/// Counts the lines that this thread logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineCount(Arc<AtomicUsize>);

impl LineCount {
    /// Starts to count. The count ends when the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let count = Self::default();
        let writer = count.clone();
        let lines = tracing_subscriber::fmt().with_max_level(Level::INFO);
        let guard = lines.with_writer(move || writer.clone()).finish().set_default();
        (count, guard)
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl io::Write for LineCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.fetch_add(bytes.iter().filter(|byte| **byte == b'\n').count(), Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The total time for which the machine stalled.
    pub(crate) fn stalled(&self) -> Duration {
        self.stalls.iter().map(|(from, to)| *to - *from).sum()
    }
}
