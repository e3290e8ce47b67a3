//! Lists of requests that bypass the limits or are always denied.

use std::{collections::HashSet, fmt, sync::Arc};

use http::StatusCode;

use crate::key::{
    self, ClientIp, Key, KeyError, KeyExtractor, NetworkError, Networks, RequestHead, peer_address,
};

/// List of requests, for [`allow`](crate::RateLimitLayer::allow) and
/// [`deny`](crate::RateLimitLayer::deny).
///
/// The lookup of a request fails if its key is sent twice, or if its address cannot be parsed. An
/// allow list does not match such a request. A deny list denies such a request with the status of
/// the [`KeyError`].
///
/// ```
/// use tower_sluice::{AccessList, ClientIp, key::HeaderKey};
///
/// AccessList::networks(["10.0.0.0/8", "2001:db8::/32"])?;
/// AccessList::client_networks(ClientIp::behind(["10.0.0.7"])?, ["203.0.113.0/24"])?;
/// AccessList::keys(HeaderKey::new("x-api-key"), ["leaked-key"]);
/// AccessList::from_fn(|head| head.path() == "/health");
/// # Ok::<(), tower_sluice::key::NetworkError>(())
/// ```
#[derive(Clone)]
pub struct AccessList(
    /// Returns `true` if a request is on the list, or the error of a failed lookup.
    Arc<dyn Fn(&RequestHead<'_>) -> Result<bool, KeyError> + Send + Sync>,
);

impl AccessList {
    /// Creates a list of the requests for which `holds` returns `true`.
    pub fn from_fn(holds: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |head| Ok(holds(head))))
    }

    /// Creates a list of the requests whose key is one of `keys`. `extractor` finds the key.
    ///
    /// A request without a key is not on the list, so it passes a deny list. Do not use a deny list
    /// with a key that clients can omit. After any other error of `extractor`, a deny list denies
    /// the request.
    ///
    /// To allow clients by address, use [`client_networks`](AccessList::client_networks) instead of
    /// [`ClientIp`] as `extractor`. A client may make a proxy drop the header, and `ClientIp` then
    /// returns the address of the proxy.
    ///
    /// ```
    /// use tower_sluice::{AccessList, Quota, RateLimitLayer, key::HeaderKey};
    ///
    /// // "leaked-key" is denied with 403, and two `x-api-key` fields with 400
    /// let leaked = AccessList::keys(HeaderKey::new("x-api-key"), ["leaked-key"]);
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).deny(leaked);
    /// ```
    pub fn keys<K>(extractor: K, keys: impl IntoIterator<Item: Into<Key>>) -> Self
    where
        K: KeyExtractor + Send + Sync + 'static,
    {
        let keys: HashSet<Key> = keys.into_iter().map(Into::into).collect();
        Self(Arc::new(move |head| match key::extract(&extractor, head) {
            Err(error) if error.is_missing() => Ok(false),
            found => Ok(found?.is_some_and(|key| keys.contains(&key))),
        }))
    }

    /// Creates a list of the requests whose peer address is in one of `networks`.
    ///
    /// An item is a network such as `"10.0.0.0/8"`, or a single address. The whole address is
    /// compared, even if [`PeerIp`](crate::PeerIp) masks addresses. Behind a proxy, use
    /// [`client_networks`](AccessList::client_networks), because all requests then have the address
    /// of the proxy.
    ///
    /// If the server provides no peer address, a deny list denies every request with 500, and a log
    /// line describes the fix.
    ///
    /// # Errors
    ///
    /// Fails if a network cannot be parsed or has host bits set. The error contains the network.
    pub fn networks<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self(Arc::new(move |head| {
            peer_address(head)
                .map(|peer| networks.contain(peer))
                .ok_or_else(KeyError::no_peer)
        })))
    }

    /// Creates a list of the requests whose client address is in one of `networks`.
    ///
    /// `client` finds the address. If `client` fails, a deny list denies the request with the
    /// status of the error.
    ///
    /// An allow list never matches the address of a trusted proxy, because a client may make the
    /// proxy drop the header and would then have this address. To allow clients in a private
    /// network, trust only the proxies in that network.
    ///
    /// ```
    /// use tower_sluice::{AccessList, ClientIp, Quota, RateLimitLayer};
    ///
    /// // the proxies are in 10.0.0.0/24, the office in 10.1.0.0/16
    /// let client = ClientIp::behind(["10.0.0.0/24"])?;
    /// let office = AccessList::client_networks(client, ["10.1.0.0/16"])?;
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).allow(office);
    /// # drop(layer);
    /// # Ok::<(), tower_sluice::key::NetworkError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`networks`](AccessList::networks) does.
    pub fn client_networks<N: AsRef<str>>(
        client: ClientIp,
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self(Arc::new(move |head| {
            let found = client.client(head)?;
            let is_listed = networks.contain(found.address);
            if is_listed && !found.is_confirmed() {
                // An allow list does not match after an error, and a deny list denies.
                return Err(access_denied());
            }
            Ok(is_listed)
        })))
    }

    /// Returns `true` if the request is on the list.
    pub(crate) fn allows(&self, head: &RequestHead<'_>) -> bool {
        (self.0)(head) == Ok(true)
    }

    /// Returns an error if the request is on the list, or if the lookup fails.
    pub(crate) fn deny(&self, head: &RequestHead<'_>) -> Result<(), KeyError> {
        if (self.0)(head)? {
            Err(access_denied())
        } else {
            Ok(())
        }
    }
}

fn access_denied() -> KeyError {
    KeyError::unusable(StatusCode::FORBIDDEN, "access denied")
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessList(..)")
    }
}
