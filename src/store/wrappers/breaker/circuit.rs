//! The servers of a store, each with a circuit: closed, open, or probing (open, with one trial call
//! in flight).

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{self, Duration},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{
    log::{LogLimit, info, warn},
    observe::circuit,
};

const SECOND: Duration = Duration::from_secs(1);
/// The values of the metric of the state.
const CLOSED: u8 = 0;
const PROBING: u8 = 1;
const OPEN: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct BreakerConfig {
    pub(super) failures: u32,
    pub(super) percent: u32,
    pub(super) answers: u32,
    pub(super) min_open: Duration,
    pub(super) max_open: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            percent: 50,
            answers: 20,
            min_open: Duration::from_millis(100),
            max_open: SECOND,
        }
    }
}

/// Server of a store, which may fail while other servers of the store do not.
///
/// A store with several servers returns them from
/// [`failure_domains`](crate::Store::failure_domains). A [`Breaker`](crate::store::Breaker) then
/// stops the calls to a failed server only. Clones are the same server, and all breakers around the
/// store share its state.
#[derive(Clone, Debug)]
pub struct FailureDomain(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    /// The name of the server. Empty for a whole store.
    name: String,
    circuit: Mutex<Circuit>,
}

#[derive(Debug, Default)]
struct Circuit {
    state: CircuitState,
    /// Counts the changes of `state`. An answer counts only if the state has not changed since the
    /// call began, so that a late timeout of a past outage does not open the circuit again.
    epoch: u64,
    /// The start of the latest answered call.
    answered: Option<time::Instant>,
    failures_in_a_row: u32,
    /// The start of the current second, its answers, and the failures among them.
    second: Option<Instant>,
    answers: u64,
    failures: u64,
    /// The last open time, without jitter. Zero while the circuit is closed.
    open_for: Duration,
    log: LogLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CircuitState {
    #[default]
    Closed,
    Open {
        until: Instant,
    },
    Probing,
}

impl FailureDomain {
    /// Creates a server. The name appears in logs and as the label `server` of a metric.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Domain {
            name: name.into(),
            circuit: Mutex::default(),
        }))
    }

    /// Records that the server answered a call, which was sent at `start`.
    ///
    /// If an operation on several servers fails, its failure counts for those that have answered no call that
    /// was sent since its start.
    pub fn answered(&self, start: time::Instant) {
        let mut circuit = self.0.circuit.lock();
        circuit.answered = circuit.answered.max(Some(start));
    }

    /// Closes the breaker of this server, because the store no longer calls it.
    pub fn retire(&self) {
        let circuit = self.0.circuit.lock();
        if circuit.state != CircuitState::Closed {
            self.close(circuit, "is no longer called");
        }
    }

    /// Returns `true` if the breaker is open or probing.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.circuit.lock().state != CircuitState::Closed
    }

    pub(super) fn has_answered_since(&self, start: time::Instant) -> bool {
        self.0.circuit.lock().answered >= Some(start)
    }

    /// Returns the time until a call is permitted, if none is now.
    pub(super) fn wait(&self, config: &BreakerConfig) -> Option<Duration> {
        self.0.circuit.lock().wait(config)
    }

    /// Permits a call, unless calls have to wait.
    pub(super) fn acquire(&self, config: &BreakerConfig) -> Option<Permit> {
        let mut circuit = self.0.circuit.lock();
        if circuit.wait(config).is_some() {
            return None;
        }
        let is_probe = circuit.state != CircuitState::Closed;
        if is_probe {
            circuit.set(CircuitState::Probing);
        }
        let permit = Permit {
            domain: self.clone(),
            epoch: circuit.epoch,
        };
        drop(circuit);
        if is_probe {
            self.report(PROBING);
        }
        Some(permit)
    }

    fn close(&self, mut circuit: MutexGuard<'_, Circuit>, what: &str) {
        let should_log = circuit.log.should_log_recovery();
        *circuit = Circuit {
            epoch: circuit.epoch + 1,
            answered: circuit.answered,
            log: circuit.log,
            ..Circuit::default()
        };
        drop(circuit);
        self.report(CLOSED);
        if should_log {
            info!("the breaker of a store closed: {} {what}", self.name());
        }
    }

    fn open(&self, mut circuit: MutexGuard<'_, Circuit>, config: &BreakerConfig, now: Instant) {
        let time = circuit.open(config, now);
        let should_log = circuit.log.should_log_failure();
        drop(circuit);
        self.report(OPEN);
        if should_log {
            let name = self.name();
            warn!("the breaker of a store opened: {name} failed and is not called for {time:?}");
        }
    }

    fn name(&self) -> &str {
        if self.0.name.is_empty() {
            "the store"
        } else {
            &self.0.name
        }
    }

    /// Updates the metric of the state.
    fn report(&self, state: u8) {
        circuit(Some(&*self.0.name).filter(|name| !name.is_empty()), state);
    }
}

impl PartialEq for FailureDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Circuit {
    fn wait(&self, config: &BreakerConfig) -> Option<Duration> {
        match self.state {
            CircuitState::Closed => None,
            // If the probe fails, the circuit is open for at least half of the shortest time.
            CircuitState::Probing => Some(config.min_open / 2),
            CircuitState::Open { until } => {
                let left = until.saturating_duration_since(Instant::now());
                Some(left).filter(|left| !left.is_zero())
            }
        }
    }

    fn set(&mut self, state: CircuitState) {
        self.state = state;
        self.epoch += 1;
    }

    /// Opens the circuit, for longer each time. Returns the time.
    fn open(&mut self, config: &BreakerConfig, now: Instant) -> Duration {
        let doubled = self.open_for.saturating_mul(2);
        self.open_for = doubled.clamp(config.min_open, config.max_open);
        let time = jitter(self.open_for);
        self.set(CircuitState::Open { until: now + time });
        time
    }

    /// Counts an answer, which is `ok` unless the server failed. Returns `true` if the circuit must open.
    fn count(&mut self, config: &BreakerConfig, now: Instant, ok: bool) -> bool {
        if self.second.is_none_or(|start| now - start >= SECOND) {
            self.second = Some(now);
            self.answers = 0;
            self.failures = 0;
        }
        self.failures_in_a_row = if ok {
            0
        } else {
            self.failures_in_a_row.saturating_add(1)
        };
        self.answers += 1;
        self.failures += u64::from(!ok);
        let is_rate = self.failures * 100 >= self.answers * u64::from(config.percent);
        self.failures_in_a_row >= config.failures
            || is_rate && self.answers >= config.answers.into()
    }
}

/// Returns a random time from half of `time` to `time`, so that processes do not retry together.
pub(in crate::store) fn jitter(time: Duration) -> Duration {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    let half = time.min(CENTURY) / 2;
    let random = u32::try_from(RandomState::new().hash_one(0) % 1_001).unwrap_or(0);
    half + half * random / 1_000
}

/// A permit for one call. Dropping an unanswered probe permits another probe.
#[derive(Debug)]
pub(super) struct Permit {
    pub(super) domain: FailureDomain,
    epoch: u64,
}

impl Permit {
    /// Records the answer, which is `ok` unless the server failed. The permit is then dropped without effect,
    /// because an answered probe has changed the epoch.
    pub(super) fn record(self, config: &BreakerConfig, ok: bool) {
        let domain = &self.domain;
        let now = Instant::now();
        let mut circuit = domain.0.circuit.lock();
        if circuit.epoch != self.epoch {
            return;
        }
        let probe = circuit.state == CircuitState::Probing;
        if probe && ok {
            domain.close(circuit, "recovered");
        } else if probe || circuit.count(config, now, ok) {
            domain.open(circuit, config, now);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut circuit = self.domain.0.circuit.lock();
        if circuit.state == CircuitState::Probing && circuit.epoch == self.epoch {
            circuit.set(CircuitState::Open {
                until: Instant::now(),
            });
            drop(circuit);
            self.domain.report(OPEN);
        }
    }
}
