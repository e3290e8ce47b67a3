//! Keys from a request header.

use http::{HeaderName, StatusCode};

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

/// Extractor for the value of a request header, byte for byte.
///
/// White space around the value is dropped ([RFC 9110,
/// §5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5)).
///
/// A request without the header, or with a blank value, has no identity. A request with two such
/// headers is rejected with 400, because the inner service might read the other value.
///
/// ```
/// use tower_sluice::key::HeaderKey;
///
/// let by_api_key = HeaderKey::new("x-api-key");
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey(HeaderName);

impl HeaderKey {
    /// Creates an extractor for the header with this name.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a header name. For a name known only at run time, use
    /// `HeaderKey::from`.
    #[track_caller]
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        match name.parse() {
            Ok(name) => Self(name),
            Err(error) => panic!("header {name:?}: {error}; use letters, digits and -"),
        }
    }
}

impl From<HeaderName> for HeaderKey {
    fn from(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeyExtractor for HeaderKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let mut values = head.headers.get_all(&self.0).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(Some(value.into())),
            (None, _) => Err(KeyError::missing(format!("header {}", self.0))),
            (Some(_), Some(_)) => {
                let why = format!("header {} is sent more than once", self.0);
                Err(KeyError::unusable(StatusCode::BAD_REQUEST, why))
            }
        }
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text
    }
}
