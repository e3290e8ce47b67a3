//! Additive increase, multiplicative decrease.

use std::time::Duration;

use super::{FindLimit, LatencyWindow};

/// The part of the limit that is left after a drop.
const DECREASE: f64 = 0.9;

#[derive(Debug)]
pub(super) struct AimdFinder {
    /// The latency of a drop, in nanoseconds.
    timeout: u64,
}

impl AimdFinder {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX) }
    }
}

impl FindLimit for AimdFinder {
    fn is_drop(&self, latency: u64) -> bool {
        latency > self.timeout
    }

    fn next(&mut self, limit: f64, window: LatencyWindow) -> f64 {
        if window.dropped {
            limit * DECREASE
        } else if window.peak * 2.0 >= limit {
            limit + 1.0
        } else {
            limit
        }
    }
}
