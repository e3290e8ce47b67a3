//! One monotonic clock, shared by every store of the process.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// Building a clock takes microseconds on a virtual machine (it asks the processor for its
/// features, which traps), so it is built once.
static SHARED: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

/// Nanoseconds since some instant before the process; never 0, which means "never" in a slot.
#[derive(Clone, Debug)]
pub(crate) struct Clock(quanta::Clock);

impl Clock {
    pub(crate) fn shared() -> Self {
        Self(SHARED.clone())
    }

    /// A clock that stands still until its hands are moved.
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "driven in tests"))]
    pub(crate) fn driven() -> (Self, Arc<quanta::Mock>) {
        let (clock, hands) = quanta::Clock::mock();
        hands.increment(Duration::from_secs(1));
        (Self(clock), hands)
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.delta_as_nanos(0, self.0.raw()) + 1
    }
}
