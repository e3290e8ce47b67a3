//! One key for all.

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// Every request has the same key: a limit for the whole site.
///
/// ```
/// use tower_sluice::{Quota, Rule, key::Everyone};
///
/// Rule::new("site", Everyone, Quota::per_second(1_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Everyone;

impl KeyExtractor for Everyone {
    fn extract(&self, _: &Parts) -> Result<Option<Key>, KeyError> {
        Ok(Some(Key::everyone()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Everyone
    }
}
