//! The state of a wrapped store: working or failing.

use std::{
    mem::take,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::store::{BoxFuture, Health, Status, Store};

/// The minimum time between two logged outages.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The state of a wrapped store: working or failing.
///
/// The epoch counts the state changes. An even epoch means working, and an odd epoch means failing.
/// A call changes the state only if the epoch has not changed since the call began.
#[derive(Debug, Default)]
pub(super) struct OutageState {
    epoch: AtomicU64,
    log: Mutex<LogLimit>,
    /// `true` if the inner store logs its own failures.
    is_silent: bool,
}

impl OutageState {
    /// Creates the state of `inner`. A store that isolates failures logs its own failures.
    pub(super) fn of(inner: &impl Store) -> Self {
        Self { is_silent: inner.isolates_failures(), ..Self::default() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(super) fn is_failing(&self) -> bool {
        is_failing(self.epoch())
    }

    /// Records the failure of a call. Returns `true` if an outage begins.
    pub(super) fn record_failure(&self, epoch: u64) -> bool {
        !is_failing(epoch) && self.advance(epoch)
    }

    /// Records the success of a call. Returns `true` if an outage ends.
    pub(super) fn record_success(&self, epoch: u64) -> bool {
        is_failing(epoch) && self.advance(epoch)
    }

    /// Returns `true` if the store is failing and the outage should be logged now.
    pub(super) fn should_log_failure(&self) -> bool {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_silent && self.is_failing() && log.should_log_failure()
    }

    /// Returns `true` if the beginning of the outage was logged.
    pub(super) fn should_log_recovery(&self) -> bool {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).should_log_recovery()
    }

    /// Returns the health of a wrapper. `effect` describes the handling of requests during an
    /// outage.
    ///
    /// The wrapper is failing if its store is failing. If the store's health is unknown, the last
    /// call decides.
    pub(super) fn health(
        &self,
        store: &'static str,
        inner: BoxFuture<Health>,
        effect: String,
    ) -> BoxFuture<Health> {
        let failing = self.is_failing();
        Health::wrapping(store, inner, move |inner| match inner.status {
            _ if !inner.is_healthy() => (Status::Failing, effect),
            Status::Unknown if failing => (Status::Failing, effect),
            _ if failing => (Status::Healthy, "failed on the last call".to_owned()),
            _ => (Status::Healthy, String::new()),
        })
    }

    fn advance(&self, epoch: u64) -> bool {
        self.epoch.compare_exchange(epoch, epoch + 1, AcqRel, Acquire).is_ok()
    }
}

/// Limits the log lines of a store that fails and recovers again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogLimit {
    /// The time of the last logged failure.
    last: Option<Instant>,
    /// `true` if the current outage was logged.
    logged: bool,
}

impl LogLimit {
    /// Returns `true` for the first failure of an outage that is due to be logged.
    ///
    /// An outage that begins soon after a logged one is logged later, if it lasts.
    pub(super) fn should_log_failure(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        let should_log = !self.logged && is_due;
        if should_log {
            *self = Self { last: Some(Instant::now()), logged: true };
        }
        should_log
    }

    /// Returns `true` if the outage that ends was logged.
    pub(super) fn should_log_recovery(&mut self) -> bool {
        take(&mut self.logged)
    }
}

fn is_failing(epoch: u64) -> bool {
    epoch % 2 == 1
}
