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
/// address: there, [`ClientIp`](super::ClientIp) is the extractor. When the first 1 000 requests all
/// came from one private address, that is a line in the log, once for an extractor and its clones
/// (feature `tracing`).
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
                self.watch.see(address.ip());
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
