//! For tests: a clock that is driven, a store that limits nobody, and a conformance kit for stores.
//!
//! An application tests its limits with a [`FakeClock`], without sleeping:
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let limiter = Limiter::new(clock.store(100));
//! let quota = Quota::per_hour(1);
//!
//! assert!(limiter.take("alice", &quota, 1).now().is_allowed());
//! assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
//! clock.advance(Duration::from_secs(3600));
//! assert!(limiter.take("alice", &quota, 1).now().is_allowed());
//! ```
//!
//! The author of a [`Store`] makes it a [`Subject`] and runs the kit: the published
//! scenarios with [`play`], and the promises that no table can show with [`properties`].

mod clock;
mod no_limit;
pub mod properties;
#[cfg(feature = "redis")]
mod redis;
mod scenario;

use std::time::Duration;

#[cfg(feature = "redis")]
pub use self::redis::Redis;
pub use self::{
    clock::FakeClock,
    no_limit::NoLimit,
    scenario::{Case, CaseError, Mismatch, Played, play},
};
use crate::store::{LocalStore, Store};

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
