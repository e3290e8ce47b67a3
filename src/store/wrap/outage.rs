//! Says when a store begins to fail, and when it answers again: once each, and at most once a second.

use std::sync::Arc;

use super::health::Health;
use crate::{
    decision::Decision,
    store::{BoxError, BoxFuture, Condition},
};

/// Whether the inner store of a wrapper fails. A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    health: Arc<Health>,
    /// What becomes of requests.
    meanwhile: &'static str,
}

/// A question, since when it is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<O>(O, u64);

impl Outage {
    pub(super) fn new(meanwhile: &'static str) -> Self {
        Self { health: Arc::default(), meanwhile }
    }

    pub(super) fn health(
        &self,
        store: &'static str,
        inner: BoxFuture<Condition>,
    ) -> BoxFuture<Condition> {
        self.health.condition(store, inner, self.meanwhile.to_owned())
    }

    /// A question that begins now.
    pub(super) fn ask(&self) -> Asked<&Self> {
        Asked(self, self.health.now())
    }
}

impl Asked<&Outage> {
    /// For an answer that comes later.
    pub(super) fn kept(self) -> Asked<Outage> {
        Asked(self.0.clone(), self.1)
    }

    /// The decision, if there is one.
    pub(super) fn answered<E: Into<BoxError>>(
        self,
        answer: Result<Decision, E>,
    ) -> Option<Decision> {
        let Self(Outage { health, meanwhile }, begun) = self;
        match answer {
            Ok(decision) => {
                let asked = !decision.source().is_known();
                if asked && health.recovers(begun) && health.told() {
                    log_recovered();
                }
                Some(decision)
            }
            Err(error) => {
                if health.fails(begun) && health.tells() {
                    log_failed(meanwhile, &error.into());
                }
                None
            }
        }
    }
}

impl Asked<Outage> {
    pub(super) fn lent(&self) -> Asked<&Outage> {
        Asked(&self.0, self.1)
    }
}

#[cfg(feature = "tracing")]
fn log_failed(meanwhile: &str, error: &BoxError) {
    tracing::warn!("the store fails, and {meanwhile}: {error}");
}

#[cfg(not(feature = "tracing"))]
fn log_failed(_: &str, _: &BoxError) {}

#[cfg(feature = "tracing")]
fn log_recovered() {
    tracing::info!("the store answers again");
}

#[cfg(not(feature = "tracing"))]
fn log_recovered() {}
