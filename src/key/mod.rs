//! Who pays: keys, and the extractors that find them in a request.
//!
//! A [`KeyExtractor`] sees the head of a request ([`Parts`]) and names the account to charge. It
//! cannot touch the body and does not wait; an identity that needs `await` is found by an
//! [`IdentifyLayer`](crate::IdentifyLayer) placed in front, and read back with [`Extension`].
//!
//! ```
//! use tower_sluice::key::{ClientIp, Header, KeyExtractor, Method, PeerIp};
//!
//! PeerIp::new();                                  // the peer's address, IPv6 by /64
//! PeerIp::v6_site();                              // the same by /48, for a second rule
//! ClientIp::behind(["10.0.0.0/8"])?;              // the client's address, behind proxies
//! Header::new("x-api-key");                       // the value of one header
//! (Method, Header::new("x-api-key"));             // both together are one key
//! Header::new("x-api-key").or(PeerIp::new());     // the address of those who send no key
//! # Ok::<(), tower_sluice::NetworkError>(())
//! ```
//!
//! A closure enters through [`key_fn`]:
//!
//! ```
//! use tower_sluice::key_fn;
//!
//! let tenant = key_fn(|parts| parts.uri.host().map(str::to_ascii_lowercase));
//! ```
//!
//! # What a key does not protect against
//!
//! A header anyone may set is a name anyone may use: count on a header only where something in
//! front has verified it, or one client exhausts another's quota, or escapes with a fresh name per
//! request. An account of a claimed identity also tells whoever claims it how much its owner has
//! used: limit by what has been verified, behind what verifies it.
//!
//! `PeerIp` is the address of the connection: behind a proxy that is the proxy. `ClientIp` is as
//! good as the list of proxies it is given.
//!
//! | Extractor | Trusts |
//! |---|---|
//! | [`PeerIp`] | the connection, nothing else |
//! | [`ClientIp`] | the named proxies to append to the named header, or to set it |
//! | [`Header`], [`Method`], [`key_fn`] | whoever sends the request, unless something in front verified it |
//! | `Route` | the router: spellings of a path are one route |
//! | [`Extension`] | what put it there: the authentication in front |
//!
//! A client with many addresses is held by a second rule over a wider prefix, one with many accounts
//! by a rule over its address, and a guesser from many addresses by a rule over the account it
//! guesses at: rules of one layer are charged all or none.

mod client_ip;
mod everyone;
mod extension;
mod header;
mod kind;
mod method;
mod network;
mod or;
mod peer_ip;
mod prefix;
#[cfg(feature = "axum")]
mod route;
mod tuple;
mod value;
#[cfg(feature = "tracing")]
mod watch;
#[cfg(not(feature = "tracing"))]
#[path = "unwatched.rs"]
mod watch;

use std::{borrow::Cow, fmt, sync::Arc};

use http::{StatusCode, request::Parts};

#[cfg(feature = "admin")]
pub(crate) use self::prefix::Prefix;
#[cfg(feature = "axum")]
pub use self::route::Route;
pub use self::{
    client_ip::{ClientIp, HopsError, Unreadable, WithoutHeader},
    everyone::Everyone,
    extension::Extension,
    header::Header,
    kind::KeyKind,
    method::Method,
    network::NetworkError,
    or::Or,
    peer_ip::PeerIp,
    value::Key,
};
pub(crate) use self::{extension::Anonymous, network::Networks, peer_ip::peer_address};

/// Names the account a request is charged to.
///
/// `Ok(None)` means that the rule does not apply to this request: nothing is charged and nothing
/// refused. A request that *should* have an identity and has none is
/// [`KeyError::missing`], for which the rule has a policy ([`Missing`](crate::Missing)).
///
/// ```
/// use http::request::Parts;
/// use tower_sluice::key::{Key, KeyError, KeyExtractor};
///
/// /// The tenant is the first label of the host name.
/// #[derive(Clone, Debug)]
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
///         let host = parts.uri.host().ok_or_else(|| KeyError::missing("host"))?;
///         // every spelling that the server takes for one tenant has to be one key
///         Ok(host.split('.').next().map(str::to_ascii_lowercase).map(Key::from))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract keys",
    note = "a closure becomes an extractor with `key_fn(|parts| ..)`; several extractors in a \
            tuple are one composite key"
)]
pub trait KeyExtractor {
    /// The key of the request with this head.
    ///
    /// # Errors
    ///
    /// When the request has no such identity, or one that cannot be used.
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError>;

    /// The kind of key that this extractor makes; defaults to [`KeyKind::Any`].
    ///
    /// It is for operators: the `admin` router reads the keys that they write by it. Give it where
    /// all keys are of one kind, or an operator may block a text where requests have an address.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tower_sluice::key::{Key, KeyError, KeyExtractor, KeyKind};
    ///
    /// #[derive(Clone, Copy)]
    /// struct TenantId(u64);
    ///
    /// /// The tenant that the authentication in front has found.
    /// #[derive(Clone, Debug)]
    /// struct Tenant;
    ///
    /// impl KeyExtractor for Tenant {
    ///     fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
    ///         let id = parts.extensions.get::<TenantId>();
    ///         id.map(|id| Some(id.0.into())).ok_or_else(|| KeyError::missing("tenant"))
    ///     }
    ///
    ///     fn kind(&self) -> KeyKind {
    ///         KeyKind::Number
    ///     }
    /// }
    /// ```
    fn kind(&self) -> KeyKind {
        KeyKind::Any
    }

    /// Settings of this extractor that are valid and probably a mistake, each with the value and the
    /// fix. [`RateLimitLayer::lints`](crate::RateLimitLayer::lints) reports them as
    /// [`Lint::KeyExtractor`](crate::Lint::KeyExtractor). Defaults to none.
    ///
    /// ```
    /// use tower_sluice::{ClientIp, KeyExtractor};
    ///
    /// let nobody = ClientIp::behind([""; 0])?;
    /// assert!(nobody.lints()[0].starts_with("ClientIp::behind trusts no network"));
    /// # Ok::<(), tower_sluice::NetworkError>(())
    /// ```
    fn lints(&self) -> Vec<String> {
        Vec::new()
    }

    /// Takes the key from `other` where this extractor finds none.
    fn or<O: KeyExtractor>(self, other: O) -> Or<Self, O>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }
}

const _: Option<&dyn KeyExtractor> = None;

impl<E: KeyExtractor + ?Sized> KeyExtractor for &E {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        (**self).extract(parts)
    }

    fn kind(&self) -> KeyKind {
        (**self).kind()
    }

    fn lints(&self) -> Vec<String> {
        (**self).lints()
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Arc<E> {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        (**self).extract(parts)
    }

    fn kind(&self) -> KeyKind {
        (**self).kind()
    }

    fn lints(&self) -> Vec<String> {
        (**self).lints()
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Box<E> {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        (**self).extract(parts)
    }

    fn kind(&self) -> KeyKind {
        (**self).kind()
    }

    fn lints(&self) -> Vec<String> {
        (**self).lints()
    }
}

/// An extractor made of a closure; `None` is a missing identity.
///
/// ```
/// use tower_sluice::key_fn;
///
/// key_fn(|parts| parts.headers.get("x-api-key").cloned());
/// ```
pub fn key_fn<F, T>(f: F) -> KeyFn<F>
where
    F: Fn(&Parts) -> Option<T>,
    T: Into<Key>,
{
    KeyFn(f)
}

/// The extractor of [`key_fn`].
#[derive(Clone, Copy)]
pub struct KeyFn<F>(F);

impl<F, T> KeyExtractor for KeyFn<F>
where
    F: Fn(&Parts) -> Option<T>,
    T: Into<Key>,
{
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        let key = (self.0)(parts).map(Into::into);
        key.ok_or_else(|| KeyError::missing("key")).map(Some)
    }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFn({})", std::any::type_name::<F>())
    }
}

/// Why a request has no usable key, and the status to refuse it with.
///
/// It never holds the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    kind: Kind,
    status: StatusCode,
    text: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Missing,
    NoPeer,
    Refused,
}

impl KeyError {
    /// The request does not say `what`; the rule's [`Missing`](crate::Missing) policy decides what
    /// becomes of it (400 by default).
    pub fn missing(what: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: Kind::Missing, status: StatusCode::BAD_REQUEST, text: what.into() }
    }

    /// The server was set up without peer addresses: 500, and a log line that names the fix.
    #[must_use]
    pub fn no_peer() -> Self {
        Self {
            kind: Kind::NoPeer,
            status: StatusCode::INTERNAL_SERVER_ERROR,
            text: "no peer address in the request's extensions; with axum, serve \
                   `app.into_make_service_with_connect_info::<SocketAddr>()`"
                .into(),
        }
    }

    /// The identity is there and cannot be used: refused with `status`, whatever the policy for
    /// missing ones.
    pub fn refused(status: StatusCode, why: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: Kind::Refused, status, text: why.into() }
    }

    /// The status to refuse the request with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the request simply did not say who it is.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    pub(crate) fn is_no_peer(&self) -> bool {
        self.kind == Kind::NoPeer
    }

    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Missing => write!(f, "missing {}", self.text),
            Kind::NoPeer | Kind::Refused => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for KeyError {}
