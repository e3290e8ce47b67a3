//! Client-side throttling, as in the SRE book of Google (chapter *Handling Overload*).

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The number of calls that are sent for each accepted one, at most.
const K: f64 = 2.0;
const MEMORY: Duration = Duration::from_secs(120);
const SLICE: Duration = Duration::from_secs(10);

/// The calls of the last two minutes, with the shed ones, and how many of them were accepted.
#[derive(Default)]
pub(crate) struct Throttle {
    slices: VecDeque<Slice>,
}

struct Slice {
    start: Instant,
    requests: u32,
    accepts: u32,
}

impl Throttle {
    /// Counts a call.
    pub(crate) fn record(&mut self, now: Instant, is_accepted: bool) {
        if self.slices.back().is_none_or(|slice| now >= slice.start + SLICE) {
            self.slices.push_back(Slice { start: now, requests: 0, accepts: 0 });
        }
        if let Some(slice) = self.slices.back_mut() {
            slice.requests += 1;
            slice.accepts += u32::from(is_accepted);
        }
    }

    /// Returns the probability with which the next call is not sent.
    pub(crate) fn probability(&mut self, now: Instant) -> f64 {
        while self.slices.front().is_some_and(|slice| now >= slice.start + MEMORY) {
            self.slices.pop_front();
        }
        let requests = f64::from(self.slices.iter().map(|slice| slice.requests).sum::<u32>());
        let accepts = f64::from(self.slices.iter().map(|slice| slice.accepts).sum::<u32>());
        ((requests - K * accepts) / (requests + 1.0)).max(0.0)
    }
}
