//! Lists of one quota that were told before: near its limit an account has few things to tell, and
//! telling them again takes no allocation.

use std::sync::OnceLock;

use http::HeaderValue;

use super::lines::Reading;

/// Units left, each with no or one second to wait.
const UNITS: usize = 128;
/// Seconds to wait when nothing is left.
const SECONDS: usize = 64;

#[derive(Debug)]
pub(super) struct Kept(Box<[OnceLock<HeaderValue>]>);

impl Kept {
    pub(super) fn new() -> Self {
        Self((0..2 * UNITS + SECONDS).map(|_| OnceLock::new()).collect())
    }

    /// The place of what is told, if it is common.
    pub(super) fn place(&self, told: &Reading) -> Option<&OnceLock<HeaderValue>> {
        let (units, seconds) = (usize::try_from(told.remaining), usize::try_from(told.next));
        self.0.get(match (units.ok()?, seconds.ok()?) {
            (units @ ..UNITS, seconds @ ..=1) => 2 * units + seconds,
            (0, seconds @ ..SECONDS) => 2 * UNITS + seconds,
            _ => return None,
        })
    }
}
