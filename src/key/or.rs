//! An extractor with a fallback.

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

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
        match self.first.extract(head) {
            Ok(Some(key)) if !key.is_blank() => Ok(Some(key)),
            Err(error) if !error.is_missing() => Err(error),
            _ => self.second.extract(head),
        }
    }

    fn kind(&self) -> KeyKind {
        self.first.kind().or(self.second.kind())
    }

    fn lints(&self) -> Vec<String> {
        [self.first.lints(), self.second.lints()].concat()
    }
}
