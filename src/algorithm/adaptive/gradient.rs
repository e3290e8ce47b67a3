//! The gradient of the latency, after Netflix's `Gradient2Limit`.
//!
//! Unlike there, the long-term mean does not follow windows in which the limit was reached. In a
//! long overload, it would otherwise rise with the queue, and the limit with it.

use super::{FindLimit, LatencyWindow};

/// The ratio of the latencies up to which the limit grows.
const TOLERANCE: f64 = 1.5;
/// The part of a window in the new limit.
const SMOOTHING: f64 = 0.2;
/// The requests by which the limit grows, before smoothing.
const QUEUE: f64 = 4.0;
/// The number of windows of the long-term mean.
const LONG: f64 = 600.0;
/// The number of windows until the long-term mean is known.
const WARMUP: u32 = 10;
/// The part of the limit that is left after a drop.
const DECREASE: f64 = 0.9;

#[derive(Debug, Default)]
pub(super) struct GradientFinder {
    windows: u32,
    /// The long-term mean of the latency.
    long: f64,
    /// The limit and the latency before the limit was lowered.
    before: Option<(f64, f64)>,
}

impl FindLimit for GradientFinder {
    fn next(&mut self, limit: f64, window: LatencyWindow) -> f64 {
        let short = window.latency;
        self.follow(short, window.is_full);
        if window.dropped {
            return limit * DECREASE;
        }
        let gradient = (TOLERANCE * self.long / short).clamp(0.5, 1.0);
        let next = if window.peak < limit / 2.0 {
            limit
        } else {
            (1.0 - SMOOTHING) * limit + SMOOTHING * (gradient * limit + QUEUE)
        };
        self.learn(gradient < 1.0, next, short);
        next
    }
}

impl GradientFinder {
    /// Updates the long-term mean.
    fn follow(&mut self, short: f64, is_full: bool) {
        self.windows = self.windows.saturating_add(1);
        if self.windows <= WARMUP {
            self.long += (short - self.long) / f64::from(self.windows);
        } else if !is_full {
            self.long += (short - self.long) * 2.0 / (LONG + 1.0);
        }
        if self.long > 2.0 * short {
            self.long *= 0.95;
        }
    }

    /// Accepts a higher latency if half of the limit has about the same latency. The queue is then
    /// not its cause.
    fn learn(&mut self, is_lowered: bool, limit: f64, short: f64) {
        self.before = match self.before {
            _ if !is_lowered => None,
            Some((before, latency)) if limit <= before && latency >= 0.9 * short => {
                if limit > before / 2.0 {
                    Some((before, latency))
                } else {
                    if short > 0.75 * latency {
                        self.long = short;
                    }
                    None
                }
            }
            _ => Some((limit, short)),
        };
    }
}
