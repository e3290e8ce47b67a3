//! The value of one header.

use std::fmt;

use http::{HeaderName, StatusCode, request::Parts};

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// The value of a header, byte for byte, is the key; white space around it is no part of it
/// ([RFC 9110, §5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5)).
///
/// A header that is absent, empty or blank is a missing identity. One that is sent twice is
/// refused with 400, because what stands behind might read the other value.
///
/// ```
/// use tower_sluice::key::Header;
///
/// let by_api_key = Header::new("x-api-key");
/// ```
#[derive(Clone)]
pub struct Header(HeaderName);

impl Header {
    /// The header with this name.
    ///
    /// # Panics
    ///
    /// When `name` is not a header name; for a name from outside parse a [`HeaderName`] and use
    /// `Header::from`.
    #[track_caller]
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        match name.parse() {
            Ok(name) => Self(name),
            Err(wrong) => panic!("header {name:?}: {wrong}; use letters, digits and -"),
        }
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let mut values = parts.headers.get_all(&self.0).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(Some(value.into())),
            (None, _) => Err(KeyError::missing(format!("header {}", self.0))),
            (Some(_), Some(_)) => {
                let why = format!("header {} is sent more than once", self.0);
                Err(KeyError::refused(StatusCode::BAD_REQUEST, why))
            }
        }
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({})", self.0)
    }
}
