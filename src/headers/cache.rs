//! A cache of `RateLimit` values. Near the limit, only a few distinct values occur.

use std::sync::OnceLock;

use http::HeaderValue;

use super::lines::Reading;

/// Values are cached for fewer units left than this, with a wait of zero or one second.
const UNITS: usize = 128;
/// Values without units left are cached for waits of fewer seconds than this.
const SECONDS: usize = 64;

#[derive(Debug)]
pub(super) struct ValueCache(Box<[OnceLock<HeaderValue>]>);

impl ValueCache {
    pub(super) fn new() -> Self {
        Self((0..2 * UNITS + SECONDS).map(|_| OnceLock::new()).collect())
    }

    /// Returns the cache slot for these units left and this wait, or `None` if they are not cached.
    pub(super) fn slot(&self, reading: &Reading) -> Option<&OnceLock<HeaderValue>> {
        let (units, seconds) = (usize::try_from(reading.remaining), usize::try_from(reading.next));
        self.0.get(match (units.ok()?, seconds.ok()?) {
            (units @ ..UNITS, seconds @ ..=1) => 2 * units + seconds,
            (0, seconds @ ..SECONDS) => 2 * UNITS + seconds,
            _ => return None,
        })
    }
}
