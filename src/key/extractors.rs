//! Extractors that read one part of a request, and extractors made of several.

use std::{fmt, marker::PhantomData, sync::Arc};

use http::{HeaderName, Method, StatusCode, header::AUTHORIZATION};
use smallvec::SmallVec;

use super::{Key, KeyError, KeyExtractor, RequestHead, extract, unless_blank};
use crate::advice::{FEW, FirstCheck, warn_of_authorization, warn_of_missing_extension};

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

    fn can_be_client(&self) -> bool {
        false
    }
}

/// Extractor for the value of a request header, byte for byte.
///
/// White space around the value is dropped ([RFC 9110,
/// §5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5)). For `Authorization`, use
/// [`BearerKey`](super::BearerKey), because clients can spell one token in many ways. Feature `tracing`
/// logs one warning about that.
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
        if self.0 == AUTHORIZATION {
            warn_of_authorization();
        }
        let mut values = head.headers.get_all(&self.0).iter();
        let value = values
            .next()
            .map_or(&[][..], |value| value.as_bytes().trim_ascii());
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

/// The methods of [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-9.1), and `PATCH`.
pub(crate) const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::PATCH,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

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
        let known = METHODS.contains(head.method);
        Ok(Some(
            if known { head.method.as_str() } else { "other" }.into(),
        ))
    }

    fn can_be_client(&self) -> bool {
        false
    }
}

/// Extractor for the template of the matched axum route, such as `/users/{id}`.
///
/// Do not use the path as a key, because a client can spell one path in many ways.
///
/// Add the layer to the `Router`, because axum matches routes inside the router. Requests without a
/// matched route share the key `unmatched`.
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
        Ok(Some(
            matched.map_or("unmatched", |path| path.as_str()).into(),
        ))
    }

    fn can_be_client(&self) -> bool {
        false
    }
}

/// Extractor for an identity of type `T` in the request's extensions.
///
/// A request without the extension, or with a blank text in it, has no identity.
///
/// A middleware must insert the identity before the limiter runs. In axum, add the middleware after
/// the limiter, because the last layer runs first. If the order is wrong, no request has an
/// identity. Feature `tracing` logs one warning if the first 20 requests have none.
///
/// ```
/// use tower_sluice::{Key, key::ExtensionKey};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// ExtensionKey::by(|user: &User| user.id);   // a field of the extension
/// ExtensionKey::<Key>::new();                // the extension is the key
/// ```
pub struct ExtensionKey<T, F = fn(&T) -> Key> {
    key: F,
    of: PhantomData<fn(&T)>,
    check: Arc<FirstCheck<FEW>>,
}

impl<T: Clone + Into<Key>> ExtensionKey<T> {
    /// Creates an extractor that uses the extension as the key.
    #[must_use]
    pub fn new() -> Self {
        Self::by(|value| value.clone().into())
    }
}

impl<T: Clone + Into<Key>> Default for ExtensionKey<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, F, K> ExtensionKey<T, F>
where
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    /// Creates an extractor that computes the key from the extension.
    pub fn by(key: F) -> Self {
        Self {
            key,
            of: PhantomData,
            check: Arc::default(),
        }
    }
}

impl<T, F, K> KeyExtractor for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let Some(value) = head.extensions.get::<T>() else {
            if self.check.record_miss() {
                warn_of_missing_extension::<T>();
            }
            return Err(KeyError::missing("identity"));
        };
        self.check.record_hit();
        unless_blank((self.key)(value).into(), "identity")
    }
}

impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            of: PhantomData,
            check: self.check.clone(),
        }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey({})", std::any::type_name::<T>())
    }
}

/// Extractor created by [`KeyExtractor::or`].
///
/// The second extractor is used if the first finds no identity, or a blank one, also if the first exempts
/// the request by `Ok(None)`. If the first returns another error, the request is rejected. Otherwise a
/// client could switch to the second extractor by sending an invalid identity.
///
/// ```
/// use tower_sluice::key::{HeaderKey, KeyExtractor, PeerIp};
///
/// HeaderKey::new("x-api-key").or(PeerIp::new());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        match extract(&self.first, head) {
            Ok(Some(key)) => Ok(Some(key)),
            Err(error) if !error.is_missing() => Err(error),
            _ => extract(&self.second, head),
        }
    }

    fn can_be_client(&self) -> bool {
        self.first.can_be_client() || self.second.can_be_client()
    }
}

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
                join(&[$(&self.$index),+], head)
            }

            fn can_be_client(&self) -> bool {
                $(self.$index.can_be_client())||+
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Joins the keys of all extractors.
///
/// The result does not depend on their order: an error other than a missing identity comes first, then
/// `Ok(None)`, and then a missing identity, which a blank key is, too.
fn join(extractors: &[&dyn KeyExtractor], head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
    let mut keys = SmallVec::<[Key; 4]>::new();
    let mut is_exempt = false;
    let mut missing = None;
    for extractor in extractors {
        match extract(*extractor, head) {
            Ok(Some(key)) => keys.push(key),
            Ok(None) => is_exempt = true,
            Err(error) if error.is_missing() => missing = missing.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    match missing {
        _ if is_exempt => Ok(None),
        Some(error) => Err(error),
        None => Ok(Some(Key::join(&keys))),
    }
}
