//! One key for all requests.

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

/// Extractor that returns the same key for all requests.
///
/// Use it to limit a whole site.
///
/// ```
/// use tower_sluice::{Quota, Rule, key::Everyone};
///
/// Rule::new("site", Everyone, Quota::per_second(1_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Everyone;

impl KeyExtractor for Everyone {
    fn extract(&self, _: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(Some(Key::everyone()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Everyone
    }
}
