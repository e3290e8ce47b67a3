//! The address of the peer, cut to a prefix.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use super::{Key, KeyError, KeyExtractor, RequestHead};
use crate::advice::{AddressSource, ClientCheck};

/// Extractor for the address of the peer.
///
/// The server provides the address as axum's `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo`
/// (feature `tonic`), or a [`SocketAddr`] in the request's extensions. With axum 0.8, serve
/// `into_make_service_with_connect_info::<SocketAddr>()`. Without an address, all requests are
/// rejected with 500, and a log line describes the fix. A Unix socket has no address: use
/// [`ClientIp::hops`](super::ClientIp::hops) behind a proxy, or another key.
///
/// An IPv6 address is cut to its first 64 bits, because one customer usually has a whole /64 (RFC
/// 6177). An IPv4-mapped address is converted to IPv4.
///
/// No header is read, so clients cannot forge the key. Behind a proxy, use
/// [`ClientIp`](super::ClientIp), because all requests then have the address of the proxy.
///
/// Feature `tracing` logs one warning if the first 1 000 requests suggest a proxy.
///
/// ```
/// use tower_sluice::key::PeerIp;
///
/// PeerIp::new();                    // IPv6 by /64
/// PeerIp::new().ipv6_prefix(48);    // IPv6 by /48
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PeerIp {
    masks: Masks,
    check: Arc<ClientCheck>,
}

impl PeerIp {
    /// Creates an extractor for whole IPv4 addresses and the first 64 bits of IPv6 addresses.
    pub fn new() -> Self {
        Self {
            masks: Masks::DEFAULT,
            check: Arc::default(),
        }
    }

    /// Sets the number of leading bits of an IPv4 address in the key. Defaults to 32.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is outside 1 to 32.
    #[track_caller]
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.masks.v4 = ipv4_mask(bits);
        self
    }

    /// Sets the number of leading bits of an IPv6 address in the key. Defaults to 64.
    ///
    /// A business or a hosting customer often has a /48 (RFC 6177, RIPE-690), which contains 65 536
    /// networks of /64. Limit it by a second rule with a higher quota. A request is charged to both
    /// rules or to none.
    ///
    /// ```
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule};
    ///
    /// let client = Rule::new("client", PeerIp::new(), Quota::per_second(10));
    /// let site = Rule::new("site", PeerIp::new().ipv6_prefix(48), Quota::per_second(100));
    /// let layer = RateLimitLayer::rules((client, site), LocalStore::new());
    /// # drop(layer);
    /// ```
    ///
    /// # Limitations
    ///
    /// A client with more than a /48 has more than one account. Bound the sum with a rule over
    /// [`Everyone`](super::Everyone).
    ///
    /// # Panics
    ///
    /// Panics if `bits` is outside 1 to 128.
    #[track_caller]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.masks.v6 = ipv6_mask(bits);
        self
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    #[inline(always)]
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let Some(peer) = peer(head) else {
            return Err(KeyError::no_peer());
        };
        let address = peer.ip();
        self.check
            .record(address, AddressSource::Peer, head.headers);
        Ok(Some(self.masks.key(address)))
    }
}

/// Returns the address of the peer, with an IPv4-mapped address converted to IPv4.
pub(crate) fn peer_address(head: &RequestHead<'_>) -> Option<IpAddr> {
    peer(head).map(|peer| peer.ip().to_canonical())
}

#[inline(always)]
fn peer(head: &RequestHead<'_>) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = head
        .extensions
        .get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(info.0);
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = head
        .extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
        && let Some(address) = info.remote_addr()
    {
        return Some(address);
    }
    head.extensions.get::<SocketAddr>().copied()
}

/// The bits of addresses that are in a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masks {
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Ipv6Addr,
}

impl Masks {
    /// A whole IPv4 address, and the first 64 bits of an IPv6 address.
    pub(super) const DEFAULT: Self = Self {
        v4: ipv4_mask(32),
        v6: ipv6_mask(64),
    };

    /// Returns the key of an address. IPv4-mapped addresses are converted to IPv4.
    #[inline(always)]
    pub(super) fn key(&self, address: IpAddr) -> Key {
        match address {
            IpAddr::V4(address) => (address & self.v4).into(),
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(address) => (address & self.v4).into(),
                None => (address & self.v6).into(),
            },
        }
    }
}

/// Returns the mask of the leading bits of an IPv4 address.
#[track_caller]
pub(super) const fn ipv4_mask(bits: u8) -> Ipv4Addr {
    assert!(bits >= 1 && bits <= 32, "ipv4_prefix: give 1 to 32 bits");
    Ipv4Addr::from_bits(u32::MAX << (32 - bits))
}

/// Returns the mask of the leading bits of an IPv6 address.
#[track_caller]
pub(super) const fn ipv6_mask(bits: u8) -> Ipv6Addr {
    assert!(bits >= 1 && bits <= 128, "ipv6_prefix: give 1 to 128 bits");
    Ipv6Addr::from_bits(u128::MAX << (128 - bits))
}
