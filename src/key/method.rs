//! The request's method.

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// The method is the key; usually one part of a tuple.
///
/// ```
/// use tower_sluice::key::{Method, PeerIp};
///
/// (Method, PeerIp::new()); // reads and writes of an address are counted apart
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

impl KeyExtractor for Method {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        Ok(Some(parts.method.as_str().into()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text
    }
}
