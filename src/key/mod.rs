//! Keys and their extractors.
//!
//! The key of a request selects the account to charge.
//!
//! A [`KeyExtractor`] reads the head of a request ([`RequestHead`]). An extractor cannot read the
//! body and cannot wait. An identity that must be awaited is inserted into the extensions by a
//! middleware in front, and read by [`ExtensionKey`].
//!
//! ```
//! use tower_sluice::key::{BearerKey, ClientIp, HeaderKey, KeyExtractor, MethodKey, PeerIp};
//!
//! PeerIp::new();                                  // the address of the peer, IPv6 by /64
//! PeerIp::new().ipv6_prefix(48);                  // IPv6 by /48, for a second rule
//! ClientIp::behind(["10.0.0.0/8"])?;              // the address of the client, behind proxies
//! HeaderKey::new("x-api-key");                       // the value of one header
//! BearerKey;                                      // the token of `Authorization: Bearer`
//! (MethodKey, HeaderKey::new("x-api-key"));             // a composite key of both
//! HeaderKey::new("x-api-key").or(PeerIp::new());     // the address if no key is sent
//! # Ok::<(), tower_sluice::key::NetworkError>(())
//! ```
//!
//! [`key_fn`] turns a closure into an extractor:
//!
//! ```
//! use tower_sluice::key_fn;
//!
//! /// Inserted by the authentication.
//! #[derive(Clone)]
//! struct Claims { tenant: u64 }
//!
//! let tenant = key_fn(|head| head.extensions.get::<Claims>().map(|it| it.tenant));
//! ```
//!
//! # Security
//!
//! Clients can send any header. Use a header as a key only if a component before the limiter has
//! verified it. Otherwise a client can:
//!
//! - exhaust the quota of another client,
//! - send a new name with each request and never be limited,
//! - see the remaining quota of another client.
//!
//! `PeerIp` is the address of the connection. Behind a proxy, that is the address of the proxy.
//! `ClientIp` is as trustworthy as the list of proxies that you configure.
//!
//! | Extractor | Trusts |
//! |---|---|
//! | [`PeerIp`] | the connection, nothing else |
//! | [`ClientIp`] | the configured proxies |
//! | [`HeaderKey`], [`BearerKey`], [`MethodKey`], [`key_fn`] | the client, unless a component before the limiter verified the value |
//! | `RouteKey` | the router |
//! | [`ExtensionKey`] | the middleware that inserted the extension |
//!
//! A key is that of one client, shared, or of a proxy, as [`Key::is_client`] says. A penalty blocks the
//! keys of clients only: nobody is blocked because of what others do behind the same proxy.
//!
//! Combine rules if one key is not enough. A request is charged to all rules of a layer, or to
//! none.
//!
//! - A rule with a shorter prefix limits a client that has many addresses.
//! - A rule by address limits a client that has many user names.
//! - A rule by user name limits password guesses from many addresses.

mod bearer;
mod client_ip;
mod extractors;
mod network;
mod peer_ip;
mod value;

use std::{borrow::Cow, fmt, sync::Arc};

use http::StatusCode;

#[cfg(feature = "axum")]
pub(crate) use self::extractors::METHODS;
#[cfg(feature = "axum")]
pub use self::extractors::RouteKey;
#[cfg(feature = "admin")]
pub(crate) use self::network::parse_network;
pub use self::{
    bearer::BearerKey,
    client_ip::{ClientIp, Unreadable},
    extractors::{Everyone, ExtensionKey, HeaderKey, MethodKey, Or},
    network::NetworkError,
    peer_ip::PeerIp,
    value::Key,
};
pub(crate) use self::{
    network::Networks,
    peer_ip::peer_address,
    value::{mix, random_state},
};
pub use crate::head::RequestHead;

/// Extracts the key of a request, which selects the account to charge.
///
/// Return `Ok(None)` if the rule does not apply to the request. Return [`KeyError::missing`] if the
/// request should have an identity but has none. The [`OnMissingKey`](crate::rule::OnMissingKey)
/// policy of the rule then applies. A text key that is empty or only white space is a missing
/// identity, too.
///
/// A tuple asks all its extractors, in any order: an error other than a missing identity rejects the
/// request, otherwise one `Ok(None)` exempts it, and otherwise a missing identity is one of the tuple.
///
/// ```
/// use tower_sluice::key::{Key, KeyError, KeyExtractor, RequestHead};
///
/// /// Inserted by the authentication.
/// #[derive(Clone)]
/// struct Claims { tenant: u64, is_staff: bool }
///
/// /// The tenant of the request. The rule does not apply to the staff.
/// #[derive(Clone, Debug)]
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
///         let claims = head.extensions.get::<Claims>();
///         let claims = claims.ok_or_else(|| KeyError::missing("tenant"))?;
///         Ok((!claims.is_staff).then(|| Key::from(claims.tenant)))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract keys",
    note = "a closure becomes an extractor with `key_fn(|head| ..)`; several extractors in a \
            tuple are one composite key"
)]
pub trait KeyExtractor {
    /// Returns the key of a request, or `None` if the rule does not apply to the request.
    ///
    /// # Errors
    ///
    /// Fails if the request has no identity, or if the identity cannot be used.
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError>;

    /// Returns `false` if this extractor never finds one client, like an extractor of routes. Defaults to
    /// `true`.
    ///
    /// All keys of such an extractor count as [shared](Key::is_client). A
    /// [penalty](crate::RateLimitLayer::penalty) for its rule is an error when the layer is built.
    /// [`Everyone`], [`MethodKey`] and `RouteKey` return `false`. A tuple, and an extractor with an
    /// alternative, return `true` if one of their extractors does.
    ///
    /// An extractor that finds clients only in some requests returns `true`, and marks its other keys by
    /// [`Key::of_proxy`].
    ///
    /// ```
    /// use tower_sluice::key::{Everyone, KeyExtractor, MethodKey, PeerIp};
    ///
    /// assert!(!(MethodKey, Everyone).can_be_client());
    /// assert!((MethodKey, PeerIp::new()).can_be_client());
    /// ```
    fn can_be_client(&self) -> bool {
        true
    }

    /// Returns an extractor that uses `other` for requests in which this extractor finds no
    /// identity, or which it exempts by `Ok(None)`.
    fn or<O: KeyExtractor>(self, other: O) -> Or<Self, O>
    where
        Self: Sized,
    {
        Or {
            first: self,
            second: other,
        }
    }
}

const _: Option<&dyn KeyExtractor> = None;

macro_rules! for_pointers {
    ($($pointer:ty),*) => {$(
        impl<E: KeyExtractor + ?Sized> KeyExtractor for $pointer {
            fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
                (**self).extract(head)
            }

            fn can_be_client(&self) -> bool {
                (**self).can_be_client()
            }
        }
    )*};
}

for_pointers!(&E, Arc<E>, Box<E>);

/// Returns `true` for an empty value and for white space: such a value is no identity.
///
/// This rule holds for the values of all extractors.
fn is_blank(value: &[u8]) -> bool {
    value.iter().all(u8::is_ascii_whitespace)
}

/// Returns `key`, or a missing identity if the key is blank.
#[inline]
fn unless_blank(key: Key, what: &'static str) -> Result<Option<Key>, KeyError> {
    if key.is_blank() {
        Err(KeyError::missing(what))
    } else {
        Ok(Some(key))
    }
}

/// Returns the key that `extractor` finds, marked as shared if the extractor finds no clients. A blank key of
/// a custom extractor is a missing identity.
pub(crate) fn extract<E: KeyExtractor + ?Sized>(
    extractor: &E,
    head: &RequestHead<'_>,
) -> Result<Option<Key>, KeyError> {
    let mut found = extractor.extract(head);
    share_unless_client(extractor, &mut found);
    found?.map_or(Ok(None), |key| unless_blank(key, "key"))
}

/// Marks the key of an extractor that finds no clients as shared.
#[inline(always)]
pub(crate) fn share_unless_client<E: KeyExtractor + ?Sized>(
    extractor: &E,
    found: &mut Result<Option<Key>, KeyError>,
) {
    if !extractor.can_be_client()
        && let Ok(Some(key)) = found
    {
        key.mark_shared();
    }
}

/// Creates an extractor from a closure.
///
/// The closure returns `None` for a request without an identity. A blank key also counts as a
/// missing identity.
///
/// The closure cannot wait, so it cannot be `async`. An identity that must be awaited is inserted by a
/// middleware in front, and read by an [`ExtensionKey`].
///
/// ```
/// use tower_sluice::key_fn;
///
/// key_fn(|head| head.headers.get("x-api-key").cloned());
/// ```
pub fn key_fn<F, T>(f: F) -> KeyFn<F>
where
    F: Fn(&RequestHead<'_>) -> T,
    T: FoundKey,
{
    KeyFn(f)
}

/// Result of a closure of [`key_fn`]: an [`Option`] of anything that becomes a [`Key`].
#[diagnostic::on_unimplemented(
    message = "a closure of `key_fn` returns an `Option` of a key, not `{Self}`",
    note = "it cannot be `async`: await the identity in a middleware in front, which inserts it into the \
            extensions of the request, and read it with `ExtensionKey`"
)]
pub trait FoundKey {
    /// Returns the key, or `None` without an identity.
    fn into_key(self) -> Option<Key>;
}

impl<T: Into<Key>> FoundKey for Option<T> {
    fn into_key(self) -> Option<Key> {
        self.map(Into::into)
    }
}

/// Extractor created by [`key_fn`].
#[derive(Clone, Copy)]
pub struct KeyFn<F>(F);

impl<F, T> KeyExtractor for KeyFn<F>
where
    F: Fn(&RequestHead<'_>) -> T,
    T: FoundKey,
{
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let key = (self.0)(head)
            .into_key()
            .ok_or_else(|| KeyError::missing("key"))?;
        unless_blank(key, "key")
    }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFn({})", std::any::type_name::<F>())
    }
}

/// Error of a [`KeyExtractor`], with the status of the rejection.
///
/// The error never contains the key.
///
/// See [troubleshooting](crate::guide::troubleshooting#400-missing-identity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    status: StatusCode,
    text: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyErrorKind {
    Missing,
    NoPeer,
    Unusable,
}

impl KeyError {
    /// Creates an error for a request without an identity. `what` names the identity.
    ///
    /// The [`OnMissingKey`](crate::rule::OnMissingKey) policy of the rule applies. By default, the
    /// request is rejected with 400.
    pub fn missing(what: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: KeyErrorKind::Missing,
            status: StatusCode::BAD_REQUEST,
            text: what.into(),
        }
    }

    /// Creates an error for a server that does not provide the address of the peer.
    ///
    /// The request is rejected with 500, and a log line describes the fix.
    pub(crate) fn no_peer() -> Self {
        Self {
            kind: KeyErrorKind::NoPeer,
            status: StatusCode::INTERNAL_SERVER_ERROR,
            text: "no peer address in the request's extensions; with axum 0.8, serve \
                   `app.into_make_service_with_connect_info::<SocketAddr>()`; a Unix socket has no \
                   address: use `ClientIp::hops(1)` behind a proxy, or another key; in a test, add \
                   `.extension(SocketAddr)` to the request"
                .into(),
        }
    }

    /// Creates an error for an identity that is present but cannot be used.
    ///
    /// The request is rejected with `status`. The policy for missing identities does not apply.
    pub fn unusable(status: StatusCode, why: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: KeyErrorKind::Unusable,
            status,
            text: why.into(),
        }
    }

    /// Returns the status of the rejection.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns `true` if the request has no identity.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.kind == KeyErrorKind::Missing
    }

    pub(crate) fn is_no_peer(&self) -> bool {
        self.kind == KeyErrorKind::NoPeer
    }

    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

/// Panics unless `status`, given to the setter `name`, is that of a rejection.
#[track_caller]
pub(crate) fn check_status(name: &str, status: StatusCode) {
    let is_error = status.is_client_error() || status.is_server_error();
    assert!(
        is_error,
        "{name} rejects with {status}; give a status from 400 to 599"
    );
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            KeyErrorKind::Missing => write!(f, "missing {}", self.text),
            KeyErrorKind::NoPeer | KeyErrorKind::Unusable => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for KeyError {}
