//! The state of a wrapped store: working or failing.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    log::warn,
    store::{BoxError, BoxFuture, Health, Status, Store},
};

/// The minimum time between two log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The number of state changes: even while the store works, odd while it fails.
///
/// Only a call that began after the latest change can cause the next change.
#[derive(Debug, Default)]
pub(super) struct OutageState {
    epoch: AtomicU64,
    /// The time of the last logged failure.
    last_logged: Mutex<Option<Instant>>,
    /// `true` if the current failure was logged.
    logged: AtomicBool,
    /// `true` if the inner store logs its own failures.
    is_silent: bool,
}

impl OutageState {
    /// Creates the state of `inner`. While one server of several fails, calls fail and succeed in
    /// turn. A store of several servers therefore logs each of them by itself.
    pub(super) fn of(inner: &impl Store) -> Self {
        Self { is_silent: inner.isolates_failures(), ..Self::default() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(super) fn is_failing(&self) -> bool {
        is_failing(self.epoch())
    }

    /// Records the failure of a call. If an outage begins, logs it and returns `true`.
    pub(super) fn record_failure(
        &self,
        epoch: u64,
        effect: &str,
        error: impl Into<BoxError>,
    ) -> bool {
        let begins = !is_failing(epoch) && self.advance(epoch);
        if begins && self.should_log() {
            warn!("the store failed; {effect}: {}", error.into());
        }
        begins
    }

    /// Records the success of a call. Returns `true` if an outage ends whose beginning was logged.
    pub(super) fn record_success(&self, epoch: u64) -> bool {
        is_failing(epoch) && self.advance(epoch) && self.logged.swap(false, AcqRel)
    }

    fn should_log(&self) -> bool {
        let mut last = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let should_log = !self.is_silent && last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if should_log {
            *last = Some(Instant::now());
        }
        self.logged.store(should_log, Release);
        should_log
    }

    /// Returns the health of a wrapper.
    ///
    /// The wrapper is failing if its store is failing, or if the store's health is unknown and the
    /// last call failed. `effect` describes how requests are handled during a failure.
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

fn is_failing(epoch: u64) -> bool {
    epoch % 2 == 1
}
