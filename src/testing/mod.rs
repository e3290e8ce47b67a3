//! Test support: a fake clock, and a conformance kit for stores.
//!
//! With a [`FakeClock`], an application tests its limits without sleeping:
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let limiter = Limiter::named("default", clock.store(100));
//! let quota = Quota::per_hour(1);
//!
//! assert!(limiter.take("alice", &quota, 1).now().is_allowed());
//! assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
//! clock.advance(Duration::from_secs(3600));
//! assert!(limiter.take("alice", &quota, 1).now().is_allowed());
//! ```
//!
//! To test a [`Store`], implement [`Subject`] and run the conformance kit. [`play`] runs the published
//! [`TABLES`] of scenarios. [`properties`] checks properties that a table of expected results cannot
//! express.

mod attempts;
mod play;
pub mod properties;
#[cfg(feature = "redis")]
mod redis;
mod scenario;

use std::{future::ready, sync::Arc, time::Duration};

pub use self::{
    attempts::{Taken, peek, take},
    play::play,
    scenario::{Case, TABLES},
};
use crate::{
    rule::{Adaptive, FairRule},
    store::{BoxFuture, Clock, LocalStore, Store},
};

/// Clock that advances only when [`advance`](FakeClock::advance) is called.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Limiter, Quota, testing::FakeClock};
///
/// let clock = FakeClock::new();
/// let limiter = Limiter::named("default", clock.store(100));
/// let quota = Quota::per_hour(1);
///
/// assert!(limiter.take("alice", &quota, 1).now().is_allowed());
/// assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
/// clock.advance(Duration::from_secs(3600));
/// assert!(limiter.take("alice", &quota, 1).now().is_allowed());
/// ```
#[derive(Clone, Debug)]
pub struct FakeClock {
    clock: Clock,
    hands: Arc<quanta::Mock>,
}

impl FakeClock {
    /// Creates an independent clock.
    #[must_use]
    pub fn new() -> Self {
        let (clock, hands) = Clock::driven();
        Self { clock, hands }
    }

    /// Creates an embedded store for `keys` keys with this clock.
    #[track_caller]
    pub fn store(&self, keys: usize) -> LocalStore {
        LocalStore::on(self.clock.clone(), keys)
    }

    /// Creates a limit like `limit`, which measures with this clock.
    pub fn adaptive(&self, limit: Adaptive) -> Adaptive {
        limit.on(self.clock.clone())
    }

    /// Creates a rule like `rule`, which forgets clients by this clock.
    pub fn fair<K>(&self, rule: FairRule<K>) -> FairRule<K> {
        rule.on(self.clock.clone())
    }

    /// Advances the clock.
    pub fn advance(&self, time: Duration) {
        self.hands.increment(time);
    }

    /// Returns the time of the clock, since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.hands.value())
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

/// The embedded store as a [`Subject`]. [`open`](Subject::open) starts a new clock.
impl Subject for FakeClock {
    type Store = LocalStore;

    fn open(&mut self) -> LocalStore {
        *self = Self::new();
        self.store(1_024)
    }

    fn set(&mut self, now: Duration) {
        self.advance(now.saturating_sub(self.now()));
    }
}

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
    /// Otherwise, [`play`] skips cases with an undo.
    fn undoes(&self) -> bool {
        true
    }

    /// Returns a store of another process on the accounts of the last opened store, or `None` by
    /// default. The process loses slots that it does not renew for the time `lease`.
    ///
    /// Without such stores, [`play`] skips cases with several processes.
    fn join(&mut self, _lease: Duration) -> Option<Self::Store> {
        None
    }

    /// Renews the slots that the process of a store holds. By default, does nothing, because the
    /// store counts its slots itself.
    fn renew(&mut self, _store: &Self::Store) -> BoxFuture<()> {
        Box::pin(ready(()))
    }

    /// Waits until undone charges and freed slots have taken effect. By default, does not wait.
    fn finish(&mut self, _store: &Self::Store) -> BoxFuture<()> {
        Box::pin(ready(()))
    }
}
