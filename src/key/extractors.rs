//! Extractors that read one part of a request.

use http::{HeaderName, Method, StatusCode};

use super::{Key, KeyError, KeyExtractor, RequestHead};

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
}

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
        let value = values.next().map_or(&[][..], |value| value.as_bytes().trim_ascii());
        match values.next() {
            None if value.is_empty() => Err(KeyError::missing(format!("header {}", self.0))),
            None => Ok(Some(value.into())),
            Some(_) => {
                let why = format!("header {} is sent more than once", self.0);
                Err(KeyError::unusable(StatusCode::BAD_REQUEST, why))
            }
        }
    }
}

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
            Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::CONNECT
            | Method::OPTIONS
            | Method::TRACE
            | Method::PATCH => head.method.as_str(),
            _ => "other",
        };
        Ok(Some(name.into()))
    }
}

/// Extractor for the template of the matched axum route, such as `/users/{id}`.
///
/// Do not use the path as a key, because a client can spell one path in many ways.
///
/// Add the layer to the `Router`, because axum matches routes inside the router. Requests without a
/// matched route share one account.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, LocalStore, key::{PeerIp, RouteKey}};
///
/// let per_route_and_address =
///     RateLimitLayer::new((RouteKey, PeerIp::new()), Quota::per_second(10), LocalStore::new());
/// ```
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteKey;

#[cfg(feature = "axum")]
impl KeyExtractor for RouteKey {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let matched = head.extensions.get::<axum::extract::MatchedPath>();
        Ok(Some(matched.map_or_else(Key::everyone, |path| path.as_str().into())))
    }
}
