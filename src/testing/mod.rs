//! Test support: a fake clock, a store without limits, and a conformance kit for stores.
//!
//! With a [`FakeClock`], an application tests its limits without sleeping:
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
//! To test a [`Store`](crate::Store), implement [`Subject`] and run the conformance kit. [`play`]
//! runs the published [`TABLES`] of scenarios. [`properties`] checks properties that a table of
//! expected results cannot express.

mod clock;
mod no_limit;
pub mod properties;
#[cfg(feature = "redis")]
mod redis;
mod scenario;
mod subject;
mod tables;

pub use self::clock::FakeClock;
#[cfg(feature = "redis")]
pub use self::redis::Redis;
pub use self::{
    no_limit::NoLimit,
    scenario::{Case, CaseError, Played, play},
    subject::{Local, Subject},
    tables::TABLES,
};
