//! A cache of rendered `RateLimit` values. Near the limit only a few distinct values occur, and a
//! cached value needs no allocation.

use std::sync::OnceLock;

use http::HeaderValue;

use super::lines::Reading;

/// The number of cached values for units left, each with a wait of zero or one second.
const UNITS: usize = 128;
/// The number of cached values for the seconds to wait if no unit is left.
const SECONDS: usize = 64;

#[derive(Debug)]
pub(super) struct Kept(Box<[OnceLock<HeaderValue>]>);

impl Kept {
    pub(super) fn new() -> Self {
        Self((0..2 * UNITS + SECONDS).map(|_| OnceLock::new()).collect())
    }

    /// Returns the slot of a reading, or `None` if the cache does not cover the reading.
    pub(super) fn place(&self, told: &Reading) -> Option<&OnceLock<HeaderValue>> {
        let (units, seconds) = (usize::try_from(told.remaining), usize::try_from(told.next));
        self.0.get(match (units.ok()?, seconds.ok()?) {
            (units @ ..UNITS, seconds @ ..=1) => 2 * units + seconds,
            (0, seconds @ ..SECONDS) => 2 * UNITS + seconds,
            _ => return None,
        })
    }
}
