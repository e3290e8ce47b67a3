//! A cache of rendered `RateLimit` values.

use std::sync::OnceLock;

use http::HeaderValue;

use super::{item::Item, lines::Reading};

/// The limit of units left. Values below the limit are cached.
const UNITS: usize = 128;
/// The limit of the wait in seconds. A value below the limit is cached if no units are left.
const SECONDS: usize = 64;
/// The limit of used units. Values below the limit are cached.
const USED: usize = 64;

/// Rendered values, allocated on first use.
#[derive(Debug, Default)]
pub(super) struct ValueCache(OnceLock<Box<[OnceLock<HeaderValue>]>>);

impl ValueCache {
    /// Returns the value of a reading. `render` creates it, unless it is cached.
    #[inline]
    pub(super) fn get(
        &self,
        item: &Item,
        reading: &Reading,
        render: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let Some(slot) = slot(item, reading) else { return render() };
        let new = || (0..UNITS + SECONDS + USED).map(|_| OnceLock::new()).collect();
        let slot = self.0.get_or_init(new).get(slot)?;
        if slot.get().is_none() {
            slot.set(render()?).ok();
        }
        slot.get().cloned()
    }
}

/// Returns the slot of a reading, or `None` if it is not cached.
#[inline]
fn slot(item: &Item, reading: &Reading) -> Option<usize> {
    let Reading { is_usual, remaining, time, .. } = *reading;
    let (units, seconds) = (remaining as usize, time as usize);
    if units == 0 && seconds < SECONDS {
        return Some(UNITS + seconds);
    }
    let is_usual = if units == 0 { time == item.interval } else { is_usual };
    if !is_usual {
        return None;
    }
    if units < UNITS {
        return Some(units);
    }
    // Units that a window carried over may exceed the limit.
    let used = item.limit.checked_sub(remaining)? as usize;
    (used < USED).then_some(UNITS + SECONDS + used)
}
