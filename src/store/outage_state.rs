//! The state of a wrapped store: working or failing.

use std::sync::{
    Mutex, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use crate::{
    log::{LogLimit, warn},
    store::{BoxError, BoxFuture, Health, Status, Store},
};

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
    /// Creates the state of `inner`. Does not log failures if `inner` logs them itself.
    pub(super) fn of(inner: &impl Store) -> Self {
        Self { is_silent: inner.isolates_failures(), ..Self::default() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(super) fn is_failing(&self) -> bool {
        is_failing(self.epoch())
    }

    /// Records the failure of a call. Logs the outage, unless another was logged shortly before.
    pub(super) fn record_failure(&self, epoch: u64, effect: &str, error: impl Into<BoxError>) {
        if !is_failing(epoch) {
            self.advance(epoch);
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_silent && self.is_failing() && log.should_log_failure() {
            drop(log);
            warn!("the store failed; {effect}: {}", error.into());
        }
    }

    /// Records the success of a call. Returns `true` if this ends an outage that was logged.
    pub(super) fn record_success(&self, epoch: u64) -> bool {
        let ended = is_failing(epoch) && self.advance(epoch);
        ended && self.log.lock().unwrap_or_else(PoisonError::into_inner).should_log_recovery()
    }

    /// Returns the health of a wrapper. `effect` describes the handling of requests during an
    /// outage.
    ///
    /// The wrapper is failing if its store is failing. If the health of that store is unknown, the
    /// wrapper is failing if the last call failed.
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
