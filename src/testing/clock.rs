//! A clock that tests advance by hand.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    rule::Adaptive,
    store::{Clock, LocalStore},
};

/// Clock that advances only when [`advance`](FakeClock::advance) is called.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Limiter, Quota, testing::FakeClock};
///
/// let clock = FakeClock::new();
/// let limiter = Limiter::new(clock.store(100));
/// let quota = Quota::per_hour(1);
///
/// assert!(limiter.take("alice", &quota, 1).now().is_allowed());
/// assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
/// clock.advance(Duration::from_secs(3600));
/// assert!(limiter.take("alice", &quota, 1).now().is_allowed());
/// ```
#[derive(Clone)]
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
    #[must_use]
    #[track_caller]
    pub fn store(&self, keys: usize) -> LocalStore {
        LocalStore::on(self.clock.clone(), keys)
    }

    /// Creates a limit like `limit`, which measures with this clock.
    pub fn adaptive(&self, limit: Adaptive) -> Adaptive {
        limit.on(self.clock.clone())
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

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeClock").field("nanos", &self.hands.value()).finish_non_exhaustive()
    }
}
