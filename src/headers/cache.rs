//! A cache of rendered `RateLimit` values.

use std::sync::OnceLock;

use http::HeaderValue;

use super::lines::Reading;

/// The limit of units left. A value below the limit is cached if its wait is at most one second.
const UNITS: usize = 128;
/// The limit of the wait in seconds. A value below the limit is cached if no units are left.
const SECONDS: usize = 64;

#[derive(Debug)]
pub(super) struct ValueCache(Box<[OnceLock<HeaderValue>]>);

impl ValueCache {
    pub(super) fn new() -> Self {
        Self((0..2 * UNITS + SECONDS).map(|_| OnceLock::new()).collect())
    }

    /// Returns the slot of a value, or `None` for a value that is not cached.
    pub(super) fn slot(&self, reading: &Reading) -> Option<&OnceLock<HeaderValue>> {
        let (units, seconds) = (usize::try_from(reading.remaining), usize::try_from(reading.next));
        self.0.get(match (units.ok()?, seconds.ok()?) {
            (units @ ..UNITS, seconds @ ..=1) => 2 * units + seconds,
            (0, seconds @ ..SECONDS) => 2 * UNITS + seconds,
            _ => return None,
        })
    }
}
