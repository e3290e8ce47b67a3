//! What the conformance kit tests: a store, and the clock it lives by.

use std::time::Duration;

use super::FakeClock;
use crate::{
    quota::Algorithm,
    store::{LocalStore, Store},
};

/// A store under test and the clock it lives by.
pub trait Subject {
    /// The store.
    type Store: Store;

    /// A store without accounts.
    fn open(&mut self) -> Self::Store;

    /// Sets the store's clock, as Unix time. It is only set back where
    /// [`steps_back`](Subject::steps_back) says that it can be.
    fn set(&mut self, now: Duration);

    /// Whether the clock is one that may step back: a wall clock.
    fn steps_back(&self) -> bool {
        false
    }

    /// Whether the store counts by `algorithm`; cases with any other are
    /// [skipped](super::Played::Skipped). Defaults to every algorithm.
    fn supports(&self, algorithm: Algorithm) -> bool {
        let _ = algorithm;
        true
    }
}

/// The embedded store on a [`FakeClock`].
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
