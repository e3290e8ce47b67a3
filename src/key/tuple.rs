//! Composite keys: a tuple of extractors.

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
                join([$(&self.$index),+], head)
            }

            fn kind(&self) -> KeyKind {
                KeyKind::Tuple(vec![$(self.$index.kind()),+])
            }

            fn lints(&self) -> Vec<String> {
                [$(self.$index.lints()),+].concat()
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
        match extractor.extract(head)? {
            None => return Ok(None),
            Some(key) if key.is_blank() => return Err(KeyError::missing("part of the key")),
            key => *slot = key,
        }
    }
    Ok(Some(Key::join(&keys.map(|key| key.unwrap_or_else(Key::everyone)))))
}
