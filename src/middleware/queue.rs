//! The charge of a request in the queue.

use std::{sync::Arc, time::Duration};

use super::waiters::Waiter;
use crate::{
    decision::Decision,
    store::{Charge, OwnedCharges, Store},
};

/// A queued charge. Dropping this value undoes the charge.
pub(crate) struct QueuedCharge<S: Store> {
    store: Arc<S>,
    charged: Option<Box<(Decision, OwnedCharges)>>,
    _waiter: Waiter,
}

impl<S: Store> QueuedCharge<S> {
    pub(super) fn new(
        store: Arc<S>,
        decision: Decision,
        charges: &[Charge<'_>],
        waiter: Waiter,
    ) -> Self {
        Self { store, charged: Some(Box::new((decision, charges.into()))), _waiter: waiter }
    }

    /// Returns the time in the queue.
    pub(super) fn wait(&self) -> Duration {
        self.charged.as_ref().map_or(Duration::ZERO, |charged| charged.0.wait())
    }

    /// Keeps the charge and leaves the queue.
    pub(super) fn into_charged(mut self) -> Option<(Decision, OwnedCharges)> {
        self.charged.take().map(|charged| *charged)
    }
}

impl<S: Store> Drop for QueuedCharge<S> {
    fn drop(&mut self) {
        if let Some((decision, charges)) = self.charged.as_deref() {
            charges.with(|charges| self.store.undo(charges, decision, None));
        }
    }
}
