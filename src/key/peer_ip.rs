//! Keys from the address of the peer.

use std::net::{IpAddr, SocketAddr};

use super::{
    Key, KeyError, KeyExtractor, KeyKind, RequestHead, prefix::Prefix,
    shared_peer_check::SharedPeerCheck,
};

/// The address of the peer, as the server has inserted it into the request's extensions: axum's
/// `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo` (feature `tonic`), or a plain
/// [`SocketAddr`].
///
/// An IPv4-mapped IPv6 address is converted to IPv4 first. An IPv6 address is cut to its first 64
/// bits, because one customer usually has a whole /64 (RFC 6177). An IPv4 address is used whole.
///
/// No header is read, so clients cannot forge the key. Behind a proxy all requests have the address
/// of the proxy: use [`ClientIp`](super::ClientIp) there. Feature `tracing` logs two signs of such
/// a proxy among the first 1 000 requests: a request from a private address with a forwarding
/// header (`x-forwarded-for` and others), and a private address that all of them come from. An
/// extractor and its clones log at most once.
///
/// If the server provides no peer address, all requests are rejected with 500 and the log has the
/// fix. With axum, serve `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_sluice::key::PeerIp;
///
/// PeerIp::new();                    // IPv6 by /64
/// PeerIp::v6_site();                // IPv6 by /48
/// ```
#[derive(Clone, Debug)]
pub struct PeerIp {
    prefix: Prefix,
    shared_peer_check: SharedPeerCheck,
}

impl PeerIp {
    /// Creates an extractor that uses whole IPv4 addresses, and IPv6 addresses by /64.
    #[must_use]
    pub fn new() -> Self {
        Self { prefix: Prefix::DEFAULT, shared_peer_check: SharedPeerCheck::new() }
    }

    /// Creates an extractor that uses whole IPv4 addresses, and IPv6 addresses by /48. It is for a
    /// second rule with a higher quota, beside a rule over [`PeerIp::new`].
    ///
    /// A /48 is an ordinary assignment to a business or a hosting customer (RFC 6177, RIPE-690). It
    /// has 65 536 networks of /64, and a rule by /64 alone gives each its own account. With both
    /// rules, a request is charged to both accounts or to none.
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
    /// An IPv4 client has one account in both rules, so the second rule also works alone.
    ///
    /// # Limitations
    ///
    /// A client that holds more than a /48 has more than one account. A rule over
    /// [`Everyone`](super::Everyone) bounds the sum.
    #[must_use]
    pub fn v6_site() -> Self {
        Self::new().ipv6_prefix(48)
    }

    /// Sets the number of leading bits of an IPv4 address that are used, 1 to 32. Defaults to 32.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is outside 1 to 32.
    #[track_caller]
    #[must_use]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefix: self.prefix.v4(bits), ..self }
    }

    /// Sets the number of leading bits of an IPv6 address that are used, 1 to 128. Defaults to 64.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is outside 1 to 128.
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
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        match peer(head) {
            Some(address) => {
                self.shared_peer_check.record(address.ip(), head.headers);
                Ok(Some(self.prefix.key(address.ip())))
            }
            None => Err(KeyError::no_peer()),
        }
    }

    fn kind(&self) -> KeyKind {
        self.prefix.kind()
    }
}

/// Returns the address of the peer. An IPv4-mapped address is converted to IPv4.
pub(crate) fn peer_address(head: &RequestHead<'_>) -> Option<IpAddr> {
    peer(head).map(|peer| peer.ip().to_canonical())
}

#[inline]
fn peer(head: &RequestHead<'_>) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = head.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0);
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = head.extensions.get::<tonic::transport::server::TcpConnectInfo>()
        && let Some(address) = info.remote_addr()
    {
        return Some(address);
    }
    head.extensions.get::<SocketAddr>().copied()
}
