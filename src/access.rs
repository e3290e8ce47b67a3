//! Who passes without a limit, and who does not pass at all.

use std::{collections::HashSet, fmt, sync::Arc};

use http::request::Parts;

use crate::key::{ClientIp, Key, KeyExtractor, NetworkError, Networks, peer_address};

/// A set of requests, for [`allow`](crate::RateLimitLayer::allow) and
/// [`deny`](crate::RateLimitLayer::deny).
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
pub struct AccessList(Arc<dyn Fn(&Parts) -> bool + Send + Sync>);

impl AccessList {
    /// The requests for which `holds` is true.
    pub fn from_fn(holds: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    /// The requests whose key, by `extractor`, is one of `keys`.
    pub fn keys<K>(extractor: K, keys: impl IntoIterator<Item: Into<Key>>) -> Self
    where
        K: KeyExtractor + Send + Sync + 'static,
    {
        let keys: HashSet<Key> = keys.into_iter().map(Into::into).collect();
        Self::from_fn(
            move |parts| matches!(extractor.extract(parts), Ok(Some(key)) if keys.contains(&key)),
        )
    }

    /// The requests whose peer address is in one of `networks`: `"10.0.0.0/8"`, or an address
    /// alone. The whole address counts, whatever prefix a [`PeerIp`](crate::PeerIp) masks. Behind a
    /// proxy that is the proxy, so that a list which holds it holds everybody: there, ask for
    /// [`client_networks`](AccessList::client_networks).
    ///
    /// # Errors
    ///
    /// When a network cannot be read, or has host bits set; the error names it.
    pub fn networks<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self::from_fn(move |parts| peer_address(parts).is_some_and(|peer| networks.hold(peer))))
    }

    /// The requests whose client, as `client` finds it, is in one of `networks`; one that cannot be
    /// found is in none.
    ///
    /// # Errors
    ///
    /// As [`networks`](AccessList::networks).
    pub fn client_networks<N: AsRef<str>>(
        client: ClientIp,
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        Ok(Self::from_fn(move |parts| {
            client.address(parts).is_ok_and(|found| networks.hold(found))
        }))
    }

    pub(crate) fn holds(&self, parts: &Parts) -> bool {
        (self.0)(parts)
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessList(..)")
    }
}
