//! What apps write down of every decision.

use std::{
    collections::BTreeMap,
    sync::LazyLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tower_sluice::Source;

/// When this program began, by both clocks.
static EPOCH: LazyLock<(Instant, SystemTime)> =
    LazyLock::new(|| (Instant::now(), SystemTime::now()));

/// The time since this program began; all times of a log are such.
pub(crate) fn now() -> Duration {
    EPOCH.0.elapsed()
}

/// When this program began, in Unix time: what makes the times of two processes comparable.
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
    /// It was there when the store was asked: nothing was sent.
    pub(crate) at_once: bool,
}

impl Entry {
    pub(crate) fn took(&self) -> Duration {
        self.answered.saturating_sub(self.asked)
    }

    pub(crate) fn is_from_redis(&self) -> bool {
        self.source == Source::Redis
    }

    /// The time in which it was decided, as narrow as is known: what was decided locally was
    /// decided when the answer came.
    pub(crate) fn decided(&self) -> (Duration, Duration) {
        let first = if self.is_from_redis() { self.asked } else { self.answered };
        (first, self.answered)
    }
}

/// A time in which a thread that wanted to run could not, though nothing of ours ran on it.
pub(crate) type Stall = (Duration, Duration);

/// All that one app wrote down.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    /// Errors of the store inside the policy, by kind; calls that the breaker spared are none.
    pub(crate) errors: BTreeMap<String, u64>,
    /// A text of each kind.
    pub(crate) texts: BTreeMap<String, String>,
    /// What the store inside the policy answered, late charges among them.
    pub(crate) answered: u64,
    /// Accounts whose place held something broken.
    pub(crate) healed: u64,
    pub(crate) stalls: Vec<Stall>,
    /// How late the control task was at worst.
    pub(crate) lag: Duration,
}

impl Log {
    /// How long the machine stalled, in all.
    pub(crate) fn stalled(&self) -> Duration {
        self.stalls.iter().map(|(from, to)| *to - *from).sum()
    }
}
