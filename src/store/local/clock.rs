//! One monotonic clock, shared by every store of the process.

use std::{
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// Building a clock takes microseconds on a virtual machine (it asks the processor for its
/// features, which traps), so it is built once.
static SHARED: LazyLock<Clock> = LazyLock::new(|| {
    let ticks = quanta::Clock::new();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(0);
    let epoch = unix.saturating_sub(ticks.delta_as_nanos(0, ticks.raw()));
    Clock { ticks, epoch }
});

/// Nanoseconds of Unix time as it was when the clock was built and has run on since, whatever
/// becomes of the wall clock: windows are aligned to it, and it never steps back.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ticks: quanta::Clock,
    epoch: u64,
}

impl Clock {
    pub(crate) fn shared() -> Self {
        SHARED.clone()
    }

    /// A clock at the Unix epoch that stands still until its hands are moved.
    #[cfg_attr(
        not(any(feature = "simulate", feature = "testing")),
        expect(dead_code, reason = "driven in simulations and tests")
    )]
    pub(crate) fn driven() -> (Self, Arc<quanta::Mock>) {
        let (ticks, hands) = quanta::Clock::mock();
        (Self { ticks, epoch: 0 }, hands)
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.epoch + self.ticks.delta_as_nanos(0, self.ticks.raw())
    }
}
