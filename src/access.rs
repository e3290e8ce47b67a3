//! Lists of requests that pass without a limit, or do not pass at all.

use std::{collections::HashSet, fmt, sync::Arc};

use http::{StatusCode, request::Parts};

use crate::key::{ClientIp, Key, KeyError, KeyExtractor, NetworkError, Networks, peer_address};

/// A set of requests, for [`allow`](crate::RateLimitLayer::allow) and
/// [`deny`](crate::RateLimitLayer::deny).
///
/// A request that cannot be looked up, because its key was sent twice or its address cannot be read,
/// is neither on the list nor off it. An allow list does not let it pass, and a deny list denies it,
/// with the status of the [`KeyError`].
///
/// ```
/// use tower_sluice::{AccessList, ClientIp, key::Header};
///
/// AccessList::networks(["10.0.0.0/8", "2001:db8::/32"])?;
/// AccessList::client_networks(ClientIp::behind(["10.0.0.7"])?, ["203.0.113.0/24"])?;
/// AccessList::keys(Header::new("x-api-key"), ["leaked-key"]);
/// AccessList::from_fn(|parts| parts.uri.path() == "/health");
/// # Ok::<(), tower_sluice::NetworkError>(())
/// ```
#[derive(Clone)]
pub struct AccessList(Arc<dyn Fn(&Parts) -> Membership + Send + Sync>);

/// Membership of a request in a list.
enum Membership {
    Listed,
    Unlisted,
    /// The request cannot be looked up.
    Unknown(KeyError),
}

impl Membership {
    fn of(listed: bool) -> Self {
        if listed { Self::Listed } else { Self::Unlisted }
    }
}

impl AccessList {
    fn new(membership: impl Fn(&Parts) -> Membership + Send + Sync + 'static) -> Self {
        Self(Arc::new(membership))
    }

    /// The requests for which `holds` is true.
    pub fn from_fn(holds: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |parts| Membership::of(holds(parts)))
    }

    /// The requests whose key, by `extractor`, is one of `keys`.
    ///
    /// A request without a key ([`KeyError::is_missing`], or `Ok(None)`) is not on the list. An
    /// anonymous request passes a deny list of keys; the rule's [`Missing`](crate::Missing) policy
    /// decides about it. Any other error of `extractor` denies under a deny list. A key that a
    /// client may leave out, or a tuple of which it may leave out a part, is no key to deny by.
    ///
    /// To allow clients by their address, use [`client_networks`](AccessList::client_networks): a key
    /// made by [`ClientIp`] is a proxy's own where the proxy sends no header, and a client may be able
    /// to have it dropped.
    ///
    /// ```
    /// use tower_sluice::{AccessList, Quota, RateLimitLayer, key::Header};
    ///
    /// // "leaked-key" is denied with 403, and two `x-api-key` fields with 400
    /// let leaked = AccessList::keys(Header::new("x-api-key"), ["leaked-key"]);
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).deny(leaked);
    /// ```
    pub fn keys<K>(extractor: K, keys: impl IntoIterator<Item: Into<Key>>) -> Self
    where
        K: KeyExtractor + Send + Sync + 'static,
    {
        let keys: HashSet<Key> = keys.into_iter().map(Into::into).collect();
        Self::new(move |parts| match extractor.extract(parts) {
            Ok(key) => Membership::of(key.is_some_and(|key| keys.contains(&key))),
            Err(error) if error.is_missing() => Membership::Unlisted,
            Err(error) => Membership::Unknown(error),
        })
    }

    /// The requests whose peer address is in one of `networks`: `"10.0.0.0/8"`, or an address
    /// alone. The whole address counts, whatever prefix a [`PeerIp`](crate::PeerIp) masks. Behind a
    /// proxy that is the proxy, so that a list which holds it holds everybody: there, ask for
    /// [`client_networks`](AccessList::client_networks).
    ///
    /// A deny list denies every request with 500 if the server provides no peer address; the log
    /// names the fix.
    ///
    /// # Errors
    ///
    /// When a network cannot be read, or has host bits set; the error names it.
    pub fn networks<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self::new(move |parts| match peer_address(parts) {
            Some(peer) => Membership::of(networks.hold(peer)),
            None => Membership::Unknown(KeyError::no_peer()),
        }))
    }

    /// The requests whose client, as `client` finds it, is in one of `networks`. A deny list denies
    /// a request whose client cannot be found, with 400, or 500 without a peer address.
    ///
    /// A request that names no client, and so counts as one of the proxies that `client` trusts, is
    /// not known to be on the list: an allow list does not let it pass, since a client may have made
    /// a proxy drop the header. A deny list that holds the proxy denies it. To allow clients in a
    /// private network, trust only the proxies' own addresses in it.
    ///
    /// ```
    /// use tower_sluice::{AccessList, ClientIp, Quota, RateLimitLayer};
    ///
    /// // the proxies are in 10.0.0.0/24, the office in 10.1.0.0/16
    /// let client = ClientIp::behind(["10.0.0.0/24"])?;
    /// let office = AccessList::client_networks(client, ["10.1.0.0/16"])?;
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).allow(office);
    /// # drop(layer);
    /// # Ok::<(), tower_sluice::NetworkError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`networks`](AccessList::networks).
    pub fn client_networks<N: AsRef<str>>(
        client: ClientIp,
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self::new(move |parts| match client.client(parts) {
            Ok(found) if !networks.hold(found.address) => Membership::Unlisted,
            Ok(found) if found.is_confirmed => Membership::Listed,
            Ok(_) => Membership::Unknown(KeyError::refused(StatusCode::FORBIDDEN, "not admitted")),
            Err(error) => Membership::Unknown(error),
        }))
    }

    /// True if the request is known to be on the list.
    pub(crate) fn allows(&self, parts: &Parts) -> bool {
        matches!((self.0)(parts), Membership::Listed)
    }

    /// An error unless the request is known not to be on the list.
    pub(crate) fn deny(&self, parts: &Parts) -> Result<(), KeyError> {
        match (self.0)(parts) {
            Membership::Listed => Err(KeyError::refused(StatusCode::FORBIDDEN, "not admitted")),
            Membership::Unlisted => Ok(()),
            Membership::Unknown(error) => Err(error),
        }
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessList(..)")
    }
}
