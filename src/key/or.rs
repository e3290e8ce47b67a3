//! One extractor, and another where it finds nothing.

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// The extractor of [`KeyExtractor::or`].
///
/// The second is asked where the first finds no identity or a blank one. An identity that is there
/// and refused stays refused: otherwise a client could choose the second by spoiling the first.
///
/// ```
/// use tower_sluice::key::{Header, KeyExtractor, PeerIp};
///
/// Header::new("x-api-key").or(PeerIp::new());
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
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        match self.first.extract(parts) {
            Ok(Some(key)) if !key.is_blank() => Ok(Some(key)),
            Err(error) if !error.is_missing() => Err(error),
            _ => self.second.extract(parts),
        }
    }

    fn kind(&self) -> KeyKind {
        self.first.kind().or(self.second.kind())
    }

    fn lints(&self) -> Vec<String> {
        [self.first.lints(), self.second.lints()].concat()
    }
}
