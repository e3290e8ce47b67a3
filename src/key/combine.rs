//! Several extractors as one: a fallback, and composite keys.

use super::{Key, KeyError, KeyExtractor, RequestHead, extract};

/// Extractor created by [`KeyExtractor::or`].
///
/// The second extractor is used if the first finds no identity, or a blank one. If the first
/// returns another error, the request is rejected. Otherwise a client could switch to the second
/// extractor by sending an invalid identity.
///
/// ```
/// use tower_sluice::key::{HeaderKey, KeyExtractor, PeerIp};
///
/// HeaderKey::new("x-api-key").or(PeerIp::new());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        match extract(&self.first, head) {
            Ok(Some(key)) => Ok(Some(key)),
            Err(error) if !error.is_missing() => Err(error),
            _ => extract(&self.second, head),
        }
    }
}

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
                join([$(&self.$index),+], head)
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Joins the keys of all extractors.
///
/// Returns `Ok(None)` if an extractor returns `Ok(None)`. A blank key counts as a missing identity.
fn join<const N: usize>(
    extractors: [&dyn KeyExtractor; N],
    head: &RequestHead<'_>,
) -> Result<Option<Key>, KeyError> {
    let mut keys = [const { None }; N];
    for (slot, extractor) in keys.iter_mut().zip(extractors) {
        match extract(extractor, head)? {
            None => return Ok(None),
            key => *slot = key,
        }
    }
    Ok(Some(Key::join(&keys.map(|key| key.unwrap_or_else(Key::everyone)))))
}
