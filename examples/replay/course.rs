//! The course over time: requests and denials in a bounded number of slices.

use std::time::Duration;

use serde::Serialize;

/// The maximum number of slices.
const SLICES: usize = 48;
/// Widths of a slice in seconds, each a multiple of the previous one; then days, doubled.
const WIDTHS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 43_200, 86_400];

/// Slices of equal width, which become wider when time passes the last one.
pub(crate) struct Course {
    width: u64,
    start: u64,
    slices: Vec<(u64, u64)>,
    minute: Minute,
    worst: Minute,
}

/// A minute and its denials.
#[derive(Clone, Copy, Default)]
pub(crate) struct Minute {
    pub(crate) start: u64,
    pub(crate) denied: u64,
}

/// The start in seconds since the Unix epoch, and the counts until the next slice.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Slice {
    pub(crate) start: u64,
    pub(crate) requests: u64,
    pub(crate) denied: u64,
}

impl Default for Course {
    fn default() -> Self {
        let minute = Minute::default();
        Self { width: WIDTHS[0], start: 0, slices: Vec::new(), minute, worst: minute }
    }
}

impl Course {
    /// Counts a request; times do not go back.
    pub(crate) fn add(&mut self, at: Duration, denied: bool) {
        let at = at.as_secs();
        if self.slices.is_empty() {
            self.start = at;
        }
        while (at - self.start) / self.width >= SLICES as u64 {
            self.widen();
        }
        let slice = index(at - self.start, self.width);
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, (0, 0));
        }
        self.slices[slice].0 += 1;
        if denied {
            self.slices[slice].1 += 1;
            let start = at - at % 60;
            if self.minute.start != start {
                self.minute = Minute { start, denied: 0 };
            }
            self.minute.denied += 1;
            if self.minute.denied > self.worst.denied {
                self.worst = self.minute;
            }
        }
    }

    fn widen(&mut self) {
        let next = WIDTHS.into_iter().find(|width| *width > self.width);
        let width = next.unwrap_or(self.width * 2);
        let start = self.start - self.start % width;
        let mut slices = Vec::new();
        for slice in self.slices() {
            let at = index(slice.start - start, width);
            slices.resize(slices.len().max(at + 1), (0, 0));
            slices[at] = (slices[at].0 + slice.requests, slices[at].1 + slice.denied);
        }
        (self.width, self.start, self.slices) = (width, start, slices);
    }

    /// Returns the seconds in a slice.
    pub(crate) fn width(&self) -> u64 {
        self.width
    }

    /// Returns the minute with the most denials, if there are any.
    pub(crate) fn worst(&self) -> Option<Minute> {
        (self.worst.denied > 0).then_some(self.worst)
    }

    pub(crate) fn slices(&self) -> Vec<Slice> {
        let slice = |(at, (requests, denied)): (u64, &(u64, u64))| Slice {
            start: self.start + at * self.width,
            requests: *requests,
            denied: *denied,
        };
        (0..).zip(&self.slices).map(slice).collect()
    }
}

fn index(since: u64, width: u64) -> usize {
    usize::try_from(since / width).map_or(SLICES - 1, |at| at.min(SLICES - 1))
}
