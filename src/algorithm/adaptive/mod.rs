//! Limits that follow the measured latency.

mod aimd;
mod gradient;

use std::fmt;

use self::{aimd::AimdFinder, gradient::GradientFinder};
use crate::quota::Adaptive;

/// The responses of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyWindow {
    /// The mean latency in nanoseconds.
    pub(crate) latency: f64,
    /// The largest number of requests in flight.
    pub(crate) peak: f64,
    /// `true` if the limit was reached.
    pub(crate) is_full: bool,
    /// `true` if at least a tenth of the responses showed an overload.
    pub(crate) dropped: bool,
}

/// Finds a limit, window by window.
pub(crate) trait FindLimit: fmt::Debug + Send {
    /// Returns `true` if a response of this latency, in nanoseconds, shows an overload.
    fn is_drop(&self, latency: u64) -> bool {
        let _ = latency;
        false
    }

    /// Returns the limit after a window.
    fn next(&mut self, limit: f64, window: LatencyWindow) -> f64;
}

/// Returns the algorithm of an adaptive quota.
pub(crate) fn finder(algorithm: Adaptive) -> Box<dyn FindLimit> {
    match algorithm {
        Adaptive::Gradient(_) => Box::new(GradientFinder::default()),
        Adaptive::Aimd(aimd) => Box::new(AimdFinder::new(aimd.timeout())),
    }
}
