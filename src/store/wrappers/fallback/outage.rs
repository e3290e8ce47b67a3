//! The state of a wrapped store: working or failing.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::{
    log::{LogLimit, info, warn},
    store::BoxError,
};

/// The time without a failure after which the outage of some servers of a store has ended.
const QUIET: Duration = Duration::from_secs(1);

/// The state of a wrapped store: working or failing.
///
/// The epoch counts the state changes. An even epoch means working, and an odd epoch means failing.
/// A call changes the state only if the epoch has not changed since the call began.
#[derive(Debug, Default)]
pub(super) struct OutageState {
    epoch: AtomicU64,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    last_failure: Option<Instant>,
    log: LogLimit,
}

impl OutageState {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    pub(super) fn is_failing(&self) -> bool {
        is_failing(self.epoch())
    }

    /// Records the failure of a call. Logs the outage, unless another was logged shortly before.
    pub(super) fn record_failure(&self, epoch: u64, effect: &str, error: impl Into<BoxError>) {
        let mut history = self.history.lock();
        if !is_failing(epoch) && epoch == self.epoch() {
            self.epoch.store(epoch + 1, Release);
        }
        if self.is_failing() {
            history.last_failure = Some(Instant::now());
            if history.log.should_log_failure() {
                drop(history);
                warn!("the store failed; {effect}: {}", error.into());
            }
        }
    }

    /// Records the success of a call. If `is_partial`, other servers of the store may still fail.
    pub(super) fn record_success(&self, epoch: u64, is_partial: impl FnOnce() -> bool) {
        if !is_failing(epoch) {
            return;
        }
        let is_partial = is_partial();
        let mut history = self.history.lock();
        let is_quiet = history.last_failure.is_none_or(|last| last.elapsed() >= QUIET);
        if epoch == self.epoch() && (is_quiet || !is_partial) {
            self.epoch.store(epoch + 1, Release);
            if history.log.should_log_recovery() {
                drop(history);
                info!("the store recovered");
            }
        }
    }
}

fn is_failing(epoch: u64) -> bool {
    epoch % 2 == 1
}
