//! Composite keys: a tuple of extractors.

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for (A, B) {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        join([&self.0, &self.1], head)
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Tuple(vec![self.0.kind(), self.1.kind()])
    }

    fn lints(&self) -> Vec<String> {
        [self.0.lints(), self.1.lints()].concat()
    }
}

impl<A: KeyExtractor, B: KeyExtractor, C: KeyExtractor> KeyExtractor for (A, B, C) {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        join([&self.0, &self.1, &self.2], head)
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Tuple(vec![self.0.kind(), self.1.kind(), self.2.kind()])
    }

    fn lints(&self) -> Vec<String> {
        [self.0.lints(), self.1.lints(), self.2.lints()].concat()
    }
}

impl<A, B, C, D> KeyExtractor for (A, B, C, D)
where
    A: KeyExtractor,
    B: KeyExtractor,
    C: KeyExtractor,
    D: KeyExtractor,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        join([&self.0, &self.1, &self.2, &self.3], head)
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Tuple(vec![self.0.kind(), self.1.kind(), self.2.kind(), self.3.kind()])
    }

    fn lints(&self) -> Vec<String> {
        [self.0.lints(), self.1.lints(), self.2.lints(), self.3.lints()].concat()
    }
}

/// Joins the keys of all extractors.
///
/// Returns `Ok(None)` if any extractor does. A blank key is an error, because an identity is
/// missing.
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
