//! The subject of the conformance kit: a store with its clock.

use std::{future::ready, time::Duration};

use super::FakeClock;
use crate::{
    quota::Algorithm,
    store::{BoxFuture, LocalStore, Store},
};

/// Store under test, with its clock.
pub trait Subject {
    /// The type of the store.
    type Store: Store;

    /// Returns a store without accounts.
    fn open(&mut self) -> Self::Store;

    /// Sets the store's clock to a Unix time.
    ///
    /// The clock goes back only if [`steps_back`](Subject::steps_back) returns `true`.
    fn set(&mut self, now: Duration);

    /// Returns `true` if the clock may go back, as a wall clock does. Defaults to `false`.
    fn steps_back(&self) -> bool {
        false
    }

    /// Returns `true` if the store undoes charges ([`Store::undo`]). Defaults to `true`.
    ///
    /// Otherwise, cases with an undo are [skipped](super::Played::Skipped).
    fn undoes(&self) -> bool {
        true
    }

    /// Returns a store of another process on the accounts of the last opened store, or `None` by
    /// default. The process loses slots that it does not renew for the time `lease`.
    ///
    /// Without such stores, cases with several processes are [skipped](super::Played::Skipped).
    fn join(&mut self, lease: Duration) -> Option<Self::Store> {
        let _ = lease;
        None
    }

    /// Waits until slots that the process of a store has freed are free. By default, does not wait.
    fn freed(&mut self, store: &Self::Store) -> BoxFuture<()> {
        let _ = store;
        Box::pin(ready(()))
    }

    /// Renews the slots that the process of a store holds. By default, does nothing, because the
    /// store counts its slots itself.
    fn renew(&mut self, store: &Self::Store) -> BoxFuture<()> {
        let _ = store;
        Box::pin(ready(()))
    }

    /// Waits until earlier calls of [`Store::undo`] have taken effect. By default, does not wait.
    fn undone(&mut self) -> BoxFuture<()> {
        Box::pin(ready(()))
    }

    /// Returns `true` if the store supports `algorithm`. Defaults to `true`.
    ///
    /// Cases with other algorithms are [skipped](super::Played::Skipped).
    fn supports(&self, algorithm: Algorithm) -> bool {
        let _ = algorithm;
        true
    }
}

/// Embedded store with a [`FakeClock`].
#[derive(Clone, Debug, Default)]
pub struct Local(FakeClock);

impl Subject for Local {
    type Store = LocalStore;

    fn open(&mut self) -> LocalStore {
        self.0 = FakeClock::new();
        self.0.store(1_024)
    }

    fn set(&mut self, now: Duration) {
        self.0.advance(now.saturating_sub(self.0.now()));
    }
}
