//! Logs the beginning and the end of each outage, at most one outage in ten seconds.

use std::sync::Arc;

use crate::store::outage_state::OutageState;
use crate::{
    decision::Decision,
    store::{BoxError, BoxFuture, Health, Store},
};

/// Logs the outages of a wrapped store. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct OutageLog {
    state: Arc<OutageState>,
    /// The handling of requests during an outage, as text.
    effect: &'static str,
}

/// A call to the inner store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<L> {
    log: L,
    epoch: u64,
}

impl OutageLog {
    pub(super) fn new(inner: &impl Store, effect: &'static str) -> Self {
        Self { state: Arc::new(OutageState::of(inner)), effect }
    }

    pub(super) fn health(
        &self,
        store: &'static str,
        inner: BoxFuture<Health>,
    ) -> BoxFuture<Health> {
        self.state.health(store, inner, self.effect.to_owned())
    }

    /// Starts a call.
    pub(super) fn start(&self) -> Attempt<&Self> {
        Attempt { log: self, epoch: self.state.epoch() }
    }
}

impl Attempt<&OutageLog> {
    /// Returns an owned attempt.
    pub(super) fn into_owned(self) -> Attempt<OutageLog> {
        Attempt { log: self.log.clone(), epoch: self.epoch }
    }

    /// Records the result of the call. Returns the decision, or `None` if the call failed.
    pub(super) fn finish<E: Into<BoxError>>(self, answer: Result<Decision, E>) -> Option<Decision> {
        let Self { log: OutageLog { state, effect }, epoch } = self;
        match answer {
            Ok(decision) => {
                let called = !decision.source().is_known();
                if called && state.record_success(epoch) && state.should_log_recovery() {
                    log_recovered();
                }
                Some(decision)
            }
            Err(error) => {
                state.record_failure(epoch);
                if state.should_log_failure() {
                    log_failed(effect, &error.into());
                }
                None
            }
        }
    }
}

impl Attempt<OutageLog> {
    pub(super) fn by_ref(&self) -> Attempt<&OutageLog> {
        Attempt { log: &self.log, epoch: self.epoch }
    }
}

#[cfg(feature = "tracing")]
fn log_failed(effect: &str, error: &BoxError) {
    tracing::warn!("the store failed; {effect}: {error}");
}

#[cfg(not(feature = "tracing"))]
fn log_failed(_: &str, _: &BoxError) {}

#[cfg(feature = "tracing")]
fn log_recovered() {
    tracing::info!("the store recovered");
}

#[cfg(not(feature = "tracing"))]
fn log_recovered() {}
