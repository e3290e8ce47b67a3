//! The monotonic clock of all stores in the process.

use std::{
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// The shared clock, created once because creating a clock can take microseconds.
static SHARED: LazyLock<Clock> = LazyLock::new(|| {
    let ticks = quanta::Clock::new();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(0);
    let epoch = unix.saturating_sub(ticks.delta_as_nanos(0, ticks.raw()));
    Clock { ticks, epoch }
});

/// A clock that never goes back.
///
/// The clock starts with the Unix time. Later changes of the wall clock have no effect.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ticks: quanta::Clock,
    epoch: u64,
}

impl Clock {
    pub(crate) fn shared() -> Self {
        SHARED.clone()
    }

    /// Creates a clock at the Unix epoch that advances only with the returned mock.
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "used in tests"))]
    pub(crate) fn driven() -> (Self, Arc<quanta::Mock>) {
        let (ticks, mock) = quanta::Clock::mock();
        (Self { ticks, epoch: 0 }, mock)
    }

    /// Returns the Unix time in nanoseconds.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.epoch + self.ticks.delta_as_nanos(0, self.ticks.raw())
    }
}
