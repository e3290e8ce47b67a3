//! The request method as a key.

use http::Method as Name;

use super::{Key, KeyError, KeyExtractor, KeyKind, RequestHead};

/// Extractor for the request method, usually as one part of a tuple.
///
/// The methods of [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-9.1) and `PATCH` are
/// separate keys. All other methods share the key `other`, so clients cannot create accounts by
/// inventing methods.
///
/// ```
/// use tower_sluice::{key::{MethodKey, PeerIp}, key_fn};
///
/// // One account per address and method, at most ten per address.
/// (MethodKey, PeerIp::new());
/// // Two accounts per address: reads and writes.
/// (key_fn(|head| Some(if head.method.is_safe() { "read" } else { "write" })), PeerIp::new());
/// ```
///
/// # Limitations
///
/// Clients choose the method, and each method has a separate quota. With
/// `(MethodKey, PeerIp::new())`, one address can use ten times the quota.
///
/// A server may answer `HEAD` with the handler of `GET`, but both methods have separate accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct MethodKey;

impl KeyExtractor for MethodKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let name = match *head.method {
            Name::GET
            | Name::HEAD
            | Name::POST
            | Name::PUT
            | Name::DELETE
            | Name::CONNECT
            | Name::OPTIONS
            | Name::TRACE
            | Name::PATCH => head.method.as_str(),
            _ => "other",
        };
        Ok(Some(name.into()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::Text
    }
}
