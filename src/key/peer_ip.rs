//! The address of the connection's other end.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor, KeyKind, prefix::Prefix, watch::Watch};

/// The peer's address, as the server put it into the request's extensions: axum's
/// `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo` (feature `tonic`), or a plain
/// [`SocketAddr`].
///
/// An IPv4-mapped IPv6 address is first unfolded to IPv4. Then IPv6 is cut to its first 64 bits,
/// because one customer usually has a whole /64 to draw addresses from (RFC 6177); IPv4 counts
/// whole.
///
/// No header is read, so nothing can be spoofed, and behind a proxy every request has the proxy's
/// address: there, [`ClientIp`](super::ClientIp) is the extractor. Among the first 1 000 requests, one
/// from a private address with a forwarding header (`x-forwarded-for` and the like) is a line in the
/// log, and so is one private address that all of them came from: one line for an extractor and its
/// clones (feature `tracing`).
///
/// Without a peer address every request is answered with 500 and a log line that names the fix:
/// with axum that is `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_sluice::key::PeerIp;
///
/// PeerIp::new();                    // IPv4 whole, IPv6 by /64
/// PeerIp::v6_site();                // IPv4 whole, IPv6 by /48
/// ```
#[derive(Clone, Debug)]
pub struct PeerIp {
    prefix: Prefix,
    watch: Watch,
}

impl PeerIp {
    /// IPv4 addresses whole, IPv6 addresses by /64.
    #[must_use]
    pub fn new() -> Self {
        Self { prefix: Prefix::USUAL, watch: Watch::new() }
    }

    /// IPv4 addresses whole, IPv6 addresses by /48: for a second rule, beside one by
    /// [`PeerIp::new`], at a higher quota.
    ///
    /// A /48 is 65 536 networks of /64, each of which is an account of its own under a rule by /64
    /// alone, and an ordinary assignment to a business or a hosting customer (RFC 6177, RIPE-690). With
    /// both rules a request is charged to both accounts, or to none.
    ///
    /// ```
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};
    ///
    /// let client = Rule::new("client", PeerIp::new(), Quota::per_second(10));
    /// let site = Rule::new("site", PeerIp::v6_site(), Quota::per_second(100));
    /// let layer = RateLimitLayer::rules((client, site), LocalStore::new());
    /// # drop(layer);
    /// ```
    ///
    /// An IPv4 client is one account in both rules, so that the rule also limits by itself.
    ///
    /// # What it does not protect against
    ///
    /// A holder of more than a /48. A rule over [`Everyone`](super::Everyone) bounds the sum.
    #[must_use]
    pub fn v6_site() -> Self {
        Self::new().ipv6_prefix(48)
    }

    /// How many leading bits of an IPv4 address count, 1 to 32.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 32.
    #[track_caller]
    #[must_use]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefix: self.prefix.v4(bits), ..self }
    }

    /// How many leading bits of an IPv6 address count, 1 to 128.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 128.
    #[track_caller]
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: self.prefix.v6(bits), ..self }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    #[inline]
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        match peer(parts) {
            Some(address) => {
                self.watch.see(address.ip(), &parts.headers);
                Ok(Some(self.prefix.key(address.ip())))
            }
            None => Err(KeyError::no_peer()),
        }
    }

    fn kind(&self) -> KeyKind {
        self.prefix.kind()
    }
}

/// The peer's address, an IPv4-mapped one unfolded.
pub(crate) fn peer_address(parts: &Parts) -> Option<IpAddr> {
    peer(parts).map(|peer| peer.ip().to_canonical())
}

#[inline]
fn peer(parts: &Parts) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = parts.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0);
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = parts.extensions.get::<tonic::transport::server::TcpConnectInfo>()
        && let Some(address) = info.remote_addr()
    {
        return Some(address);
    }
    parts.extensions.get::<SocketAddr>().copied()
}
