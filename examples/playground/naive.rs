//! The usual first attempt: a counter that restarts with every period of the clock.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use crate::limit::Told;

#[derive(Debug)]
pub(crate) struct Naive {
    units: u32,
    period: Duration,
    /// The last window in use, and the units taken in it.
    used: Mutex<(u128, u32)>,
}

impl Naive {
    pub(crate) fn new(units: u32, period: Duration) -> Self {
        Self { units, period, used: Mutex::default() }
    }

    /// Takes a unit and returns `true`, if one is left.
    pub(crate) fn take(&self) -> bool {
        self.look(|used| {
            let fits = *used < self.units;
            *used += u32::from(fits);
            fits
        })
        .0
    }

    pub(crate) fn told(&self) -> Told {
        let (used, left) = self.look(|used| *used);
        let next = if used == 0 { Duration::ZERO } else { left };
        Told::new(self.units, self.units - used, next, left)
    }

    /// Calls `with` on the units taken in this window, and returns the time until it ends.
    fn look<T>(&self, with: impl FnOnce(&mut u32) -> T) -> (T, Duration) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let period = self.period.as_nanos();
        let window = now.as_nanos() / period;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.0 != window {
            *used = (window, 0);
        }
        let left = period - now.as_nanos() % period;
        (with(&mut used.1), Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX)))
    }
}
