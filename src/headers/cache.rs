//! A cache of rendered values. Most responses report one of a few values.

use std::sync::OnceLock;

use http::HeaderValue;

use super::lines::Reading;

/// The number of slots, which take 16 kB.
const SLOTS: usize = 256;

/// Rendered values of one quota. A slot keeps its first value.
#[derive(Debug, Default)]
pub(super) struct ValueCache(OnceLock<Box<[ValueSlot]>>);

type ValueSlot = OnceLock<(Reading, HeaderValue)>;

impl ValueCache {
    /// Returns the value of this reading. `render` creates it, unless it is cached.
    pub(super) fn get(
        &self,
        reading: &Reading,
        render: impl FnOnce() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let slots = self.0.get_or_init(|| (0..SLOTS).map(|_| ValueSlot::new()).collect());
        let slot = &slots[index(reading)];
        match slot.get() {
            Some((cached, value)) if cached == reading => Some(value.clone()),
            Some(_) => render(),
            None => {
                let value = render()?;
                // Another thread may have filled the slot.
                let _ = slot.set((*reading, value.clone()));
                Some(value)
            }
        }
    }
}

/// Returns the slot of a reading. Up to 37 waits of a few units left have different slots.
fn index(reading: &Reading) -> usize {
    let Reading { item, remaining, next, .. } = *reading;
    let mixed = u32::from(item) * 101 + remaining.wrapping_mul(37).wrapping_add(next);
    mixed as usize % SLOTS
}
