//! The request's method.

use http::{Method as Name, request::Parts};

use super::{Key, KeyError, KeyExtractor, KeyKind};

/// A key of the request's method; usually one part of a tuple.
///
/// The nine methods of [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-9.1) and
/// [RFC 5789](https://www.rfc-editor.org/rfc/rfc5789) (`PATCH`) are keys of their own. All other
/// methods share the key `other`, so that made-up names are no fresh accounts.
///
/// ```
/// use tower_sluice::{key::{Method, PeerIp}, key_fn};
///
/// // an account for each method of an address, up to ten of them
/// (Method, PeerIp::new());
/// // two accounts: reads and writes
/// (key_fn(|parts| Some(if parts.method.is_safe() { "read" } else { "write" })), PeerIp::new());
/// ```
///
/// # What it does not protect against
///
/// A client chooses its method, so with `(Method, PeerIp::new())` one address has ten times the
/// quota. A server that answers `HEAD` by the handler of `GET` runs that handler for both accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

impl KeyExtractor for Method {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let name = match parts.method {
            Name::GET
            | Name::HEAD
            | Name::POST
            | Name::PUT
            | Name::DELETE
            | Name::CONNECT
            | Name::OPTIONS
            | Name::TRACE
            | Name::PATCH => parts.method.as_str(),
            _ => "other",
        };
        Ok(Some(name.into()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text
    }
}
