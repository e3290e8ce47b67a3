//! The state of a breaker: closed, open, or probing (open, with one trial call in flight).
//!
//! One atomic word holds the state and a number. In a closed circuit, the number counts how often
//! the circuit has closed. Otherwise, the number is the end of the open time.
//!
//! An answer counts only if the word has not changed since the call began. A late timeout from a
//! past outage therefore does not open the circuit again.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    log::{LogLimit, info, warn},
    observe::circuit,
};

const STATE: u64 = 3;
const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const PROBING: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct BreakerConfig {
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
            max_open: Duration::from_secs(1),
        }
    }
}

impl BreakerConfig {
    fn trips(&self, stats: &CallStats, now: Duration) -> bool {
        let (answers, failures) = stats.last_second(now);
        stats.consecutive_failures() >= self.failures
            || (answers >= self.answers.into()
                && failures * 100 >= answers * u64::from(self.percent))
    }
}

#[derive(Debug)]
pub(in crate::store) struct Circuit {
    /// The address of the server, for a circuit of one server of a cluster.
    server: Option<String>,
    config: BreakerConfig,
    created: Instant,
    word: AtomicU64,
    /// Locked while the circuit opens or closes.
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    stats: CallStats,
    closings: u64,
    log: LogLimit,
    /// The last open time, without jitter. Zero while the circuit is closed.
    open_for: Duration,
}

impl Circuit {
    pub(super) fn new(config: BreakerConfig) -> Self {
        Self {
            server: None,
            config,
            created: Instant::now(),
            word: AtomicU64::new(CLOSED),
            history: Mutex::default(),
        }
    }

    /// Creates the circuit of one server of a cluster.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn of_server(config: BreakerConfig, address: String) -> Self {
        Self { server: Some(address), ..Self::new(config) }
    }

    pub(super) fn config(&self) -> BreakerConfig {
        self.config
    }

    pub(in crate::store) fn is_open(&self) -> bool {
        self.word.load(Acquire) & STATE != CLOSED
    }

    /// Permits a call, or returns the time until a call is permitted.
    pub(in crate::store) fn acquire(self: &Arc<Self>) -> Result<Permit, Duration> {
        let mut word = self.word.load(Acquire);
        if word & STATE != CLOSED {
            word = self.probe(word)?;
        }
        Ok(Permit { circuit: self.clone(), word })
    }

    /// Returns the time until a call is permitted, or `None` if a call is permitted now.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn retry_after(&self) -> Option<Duration> {
        let word = self.word.load(Acquire);
        let left = Duration::from_nanos(word >> 2).saturating_sub(self.created.elapsed());
        match word & STATE {
            CLOSED => None,
            OPEN => Some(left).filter(|left| !left.is_zero()),
            _ => Some(self.config.min_open / 2),
        }
    }

    /// Closes the circuit of a server that has left the cluster.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn retire(&self) {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_open() {
            let should_log = self.close(history);
            if let Some(server) = self.server.as_ref().filter(|_| should_log) {
                info!("redis: other servers have replaced {server}");
            }
        }
    }

    /// Permits a probe if the open time is over and no other probe is in flight.
    fn probe(&self, word: u64) -> Result<u64, Duration> {
        let left = Duration::from_nanos(word >> 2).saturating_sub(self.created.elapsed());
        if !left.is_zero() {
            return Err(left);
        }
        let probing = word & !STATE | PROBING;
        let is_probe = word & STATE == OPEN
            && self.word.compare_exchange(word, probing, AcqRel, Acquire).is_ok();
        // The next open time is at least half of the shortest one.
        if !is_probe {
            return Err(self.config.min_open / 2);
        }
        self.report(1);
        Ok(probing)
    }

    fn record(&self, word: u64, ok: bool) {
        let now = self.created.elapsed();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if self.word.load(Acquire) != word {
            return;
        }
        let probe = word & STATE == PROBING;
        if !probe {
            history.stats.record(now, ok);
        }
        if probe && ok {
            let should_log = self.close(history);
            match &self.server {
                _ if !should_log => {}
                Some(server) => info!("redis: {server} recovered"),
                None => info!("the breaker of a store closed: the store recovered"),
            }
        } else if probe || self.config.trips(&history.stats, now) {
            let time = history.open(&self.config);
            let until = u64::try_from(now.saturating_add(time).as_nanos()).unwrap_or(u64::MAX);
            self.word.store(until.min(u64::MAX >> 2) << 2 | OPEN, Release);
            let should_log = history.log.should_log_failure();
            drop(history);
            self.report(2);
            if should_log {
                log_opened(self.server.as_deref(), time);
            }
        }
    }

    /// Permits another probe, because this probe was not answered.
    fn abandon(&self, word: u64) {
        if word & STATE == PROBING {
            let open = word & !STATE | OPEN;
            // The exchange fails if the probe was answered.
            if self.word.compare_exchange(word, open, AcqRel, Acquire).is_ok() {
                self.report(2);
            }
        }
    }

    /// Closes the circuit. Returns `true` if the end of the outage should be logged.
    fn close(&self, mut history: MutexGuard<'_, History>) -> bool {
        let (should_log, closings) = (history.log.should_log_recovery(), history.closings + 1);
        *history = History { closings, log: history.log, ..History::default() };
        self.word.store(closings << 2 | CLOSED, Release);
        drop(history);
        self.report(0);
        should_log
    }

    /// Updates the metric of the state.
    fn report(&self, state: u8) {
        circuit(self.server.as_deref(), state);
    }
}

impl History {
    /// Doubles the open time, and returns it with jitter.
    fn open(&mut self, config: &BreakerConfig) -> Duration {
        let doubled = self.open_for.saturating_mul(2);
        self.open_for = doubled.clamp(config.min_open, config.max_open);
        jitter(self.open_for)
    }
}

/// Returns a random time from half of `time` to `time`, so that processes do not retry together.
fn jitter(time: Duration) -> Duration {
    let half = time / 2;
    let more = u64::try_from((time - half).as_nanos()).unwrap_or(u64::MAX - 1);
    half + Duration::from_nanos(RandomState::new().hash_one(0) % (more + 1))
}

/// A permit for one call. Dropping an unanswered probe permits another probe.
#[derive(Debug)]
pub(in crate::store) struct Permit {
    circuit: Arc<Circuit>,
    word: u64,
}

impl Permit {
    pub(in crate::store) fn record(self, ok: bool) {
        self.circuit.record(self.word, ok);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.circuit.abandon(self.word);
    }
}

fn log_opened(server: Option<&str>, time: Duration) {
    match server {
        Some(server) => warn!(
            "redis: {server} failed and is not called for {time:?}; requests for its keys fail"
        ),
        None => {
            warn!("the breaker of a store opened: the store failed and is not called for {time:?}");
        }
    }
}

const BUCKETS: usize = 10;

/// Consecutive failures, and the answers of the last second in buckets of 100 ms.
#[derive(Debug, Default)]
struct CallStats {
    consecutive_failures: u32,
    buckets: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: usize,
    answers: u32,
    failures: u32,
}

impl CallStats {
    fn record(&mut self, now: Duration, ok: bool) {
        self.consecutive_failures =
            if ok { 0 } else { self.consecutive_failures.saturating_add(1) };
        let number = bucket_number(now);
        let bucket = &mut self.buckets[number % BUCKETS];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket.answers = bucket.answers.saturating_add(1);
        bucket.failures = bucket.failures.saturating_add(u32::from(!ok));
    }

    fn consecutive_failures(&self) -> u32 {
        self.consecutive_failures
    }

    /// Returns the answers of the last second, and the failures among them.
    fn last_second(&self, now: Duration) -> (u64, u64) {
        let recent = |bucket: &&Bucket| bucket.number + BUCKETS > bucket_number(now);
        let add = |(answers, failures), bucket: &Bucket| {
            (answers + u64::from(bucket.answers), failures + u64::from(bucket.failures))
        };
        self.buckets.iter().filter(recent).fold((0, 0), add)
    }
}

fn bucket_number(now: Duration) -> usize {
    usize::try_from(now.as_millis() / 100).unwrap_or(0)
}
