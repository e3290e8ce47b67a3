//! The address of the connection's other end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::{Key, KeyError, KeyExtractor};

/// The peer's address, as the server put it into the request's extensions: axum's
/// `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo` (feature `tonic`), or a plain
/// [`SocketAddr`].
///
/// An IPv4-mapped IPv6 address is first unfolded to IPv4. Then IPv6 is cut to its first 64 bits,
/// because one customer usually has a whole /64 to draw addresses from (RFC 6177); IPv4 counts
/// whole.
///
/// No header is read, so nothing can be spoofed, and behind a proxy every request has the proxy's
/// address.
///
/// Without a peer address every request is answered with 500 and a log line that names the fix:
/// with axum that is `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_sluice::key::PeerIp;
///
/// PeerIp::new();                    // IPv4 whole, IPv6 by /64
/// PeerIp::new().ipv6_prefix(48);    // a site
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    v4: u32,
    v6: u128,
}

impl PeerIp {
    /// IPv4 addresses whole, IPv6 addresses by /64.
    #[must_use]
    pub const fn new() -> Self {
        Self { v4: u32::MAX, v6: u128::MAX << 64 }
    }

    /// How many leading bits of an IPv4 address count, 1 to 32.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 32.
    #[track_caller]
    #[must_use]
    pub const fn ipv4_prefix(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "peer ip: an IPv4 prefix has 1 to 32 bits");
        Self { v4: u32::MAX << (32 - bits), ..self }
    }

    /// How many leading bits of an IPv6 address count, 1 to 128.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 128.
    #[track_caller]
    #[must_use]
    pub const fn ipv6_prefix(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "peer ip: an IPv6 prefix has 1 to 128 bits");
        Self { v6: u128::MAX << (128 - bits), ..self }
    }

    fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & self.v4).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & self.v6).into(),
        }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        match peer(parts) {
            Some(address) => Ok(Some(self.key(address.ip()))),
            None => Err(KeyError::no_peer()),
        }
    }
}

/// The peer's address, an IPv4-mapped one unfolded.
pub(crate) fn peer_address(parts: &Parts) -> Option<IpAddr> {
    peer(parts).map(|peer| peer.ip().to_canonical())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(of: PeerIp, address: &str) -> Key {
        of.key(address.parse().expect("an address"))
    }

    #[test]
    fn mapped_addresses_are_unfolded_before_the_mask() {
        let one = key(PeerIp::new(), "::ffff:203.0.113.1");
        assert_eq!(one, key(PeerIp::new(), "203.0.113.1"));
        assert_ne!(one, key(PeerIp::new(), "::ffff:203.0.113.2"));
    }

    #[test]
    fn one_slash_64_is_one_key() {
        let one = key(PeerIp::new(), "2001:db8:0:1::1");
        assert_eq!(one, key(PeerIp::new(), "2001:DB8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(one, key(PeerIp::new(), "2001:db8:0:2::1"));
    }

    #[test]
    fn prefixes_are_settable_per_family() {
        let site = PeerIp::new().ipv6_prefix(48).ipv4_prefix(24);
        assert_eq!(key(site, "2001:db8:1:1::1"), key(site, "2001:db8:1:2::1"));
        assert_eq!(key(site, "203.0.113.1"), key(site, "203.0.113.200"));
        let whole = PeerIp::new().ipv6_prefix(128);
        assert_ne!(key(whole, "2001:db8::1"), key(whole, "2001:db8::2"));
    }
}
