//! The client behind proxies.

mod entries;
mod entry;
mod forwarded;
mod source;

use std::{fmt, net::IpAddr};

use http::{HeaderName, StatusCode, request::Parts};

use self::source::{Source, Why};
use super::{
    Key, KeyError, KeyExtractor, KeyKind,
    network::{NetworkError, Networks},
    peer_ip::peer_address,
    prefix::Prefix,
};

/// As many entries of a header are looked at.
const MOST_HOPS: u8 = 32;

/// The client's address as trusted proxies tell it.
///
/// Anybody may send `X-Forwarded-For`; what a trusted proxy *appends* to it is the address it was
/// called from. So the header is read only where the peer itself is trusted, and then from the
/// right, all its lines as one: entries of trusted proxies are skipped, and the first one that is
/// not trusted is the client, whatever it wrote further left. Where all are trusted it is the
/// leftmost. A peer that is not trusted is the client, and what it sends is not read.
///
/// IPv6 is cut to its first 64 bits and mapped addresses are unfolded, as by
/// [`PeerIp`](super::PeerIp). Ports, brackets and zones are dropped. NAT64 and 6to4 addresses stay
/// what they are, so that all who come through one NAT64 are one by default.
///
/// ```
/// use tower_sluice::{ClientIp, Quota, RateLimitLayer, LocalStore};
///
/// let client = ClientIp::behind(["10.0.0.0/8", "2001:db8:5::/48"])?;
/// let layer = RateLimitLayer::new(client, Quota::per_second(10), LocalStore::new());
/// # drop(layer);
/// # Ok::<(), tower_sluice::NetworkError>(())
/// ```
///
/// A customer of a hoster has more than one /64 to draw from; a second rule holds the whole /48,
/// at a higher quota:
///
/// ```
/// use tower_sluice::{ClientIp, LocalStore, Quota, RateLimitLayer, Rule};
///
/// let client = ClientIp::behind(["10.0.0.0/8"])?;
/// let site = Rule::new("site", client.clone().v6_site(), Quota::per_second(100));
/// let client = Rule::new("client", client, Quota::per_second(10));
/// let layer = RateLimitLayer::rules((client, site), LocalStore::new());
/// # drop(layer);
/// # Ok::<(), tower_sluice::NetworkError>(())
/// ```
///
/// # What cannot be read
///
/// An entry that is reached and is no address (`unknown`, an empty one) stops the walk, since to
/// step over it would trust what stands left of it; so do more than 32 entries or 4 KiB. Such a
/// request is refused with 400, or what [`unreadable`](ClientIp::unreadable) says; it never counts
/// as the proxy.
///
/// # A trusted proxy that names no client
///
/// A request without the header, from a trusted proxy, counts as the proxy: probes of load balancers
/// come so, and so do requests of a proxy that is not set up to send the header.
/// [`without_header`](ClientIp::without_header) rejects them instead. A client may be able to make
/// a proxy drop the header (`connection: x-forwarded-for`), which gains it the proxy's account and
/// nothing else: an address in the trusted networks is not known to be a client's, and an
/// [allow list](crate::AccessList::client_networks) does not match it. A deny list does. The first
/// such request is a line in the log (feature `tracing`).
///
/// # What it does not protect against
///
/// A proxy that passes on what clients send, instead of appending to it or setting it, makes the
/// header the client's own. Nor is a network that others may send from, a cloud's for example, one
/// to trust.
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: Trusted,
    source: Source,
    prefix: Prefix,
    unreadable: Unreadable,
    without_header: WithoutHeader,
}

#[derive(Clone, Debug)]
enum Trusted {
    Networks(Networks),
    Hops(u8),
    Anybody,
}

/// Policy for a request whose proxies are trusted and whose client cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is refused with this status.
    Reject(StatusCode),
    /// All such requests share one account of the rule, that of
    /// [`Missing::Share`](crate::Missing::Share).
    Share,
}

/// Policy for a request that a trusted proxy sends without the header that names the client; see
/// [`ClientIp::without_header`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutHeader {
    /// The request counts as the proxy's own.
    #[default]
    CountAsPeer,
    /// The request is rejected with this status, whatever the policy for missing identities.
    Reject(StatusCode),
}

/// A client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) address: IpAddr,
    /// True if the address is known to be no trusted proxy's own.
    pub(crate) is_confirmed: bool,
}

impl Client {
    const fn confirmed(address: IpAddr) -> Self {
        Self { address, is_confirmed: true }
    }

    const fn unconfirmed(address: IpAddr) -> Self {
        Self { address, is_confirmed: false }
    }
}

impl ClientIp {
    /// Behind proxies in these networks: `"10.0.0.0/8"`, or an address alone. With none, every
    /// peer is the client, and no header is read.
    ///
    /// No network at all, and an address alone that looks like a network's (`"10.0.0.0"`), are
    /// [lints](crate::Lint::KeyExtractor) of a layer; one proxy of that address is `"10.0.0.0/32"`.
    ///
    /// # Errors
    ///
    /// When a network cannot be read, has host bits set, or is all of IPv4 or IPv6; the error
    /// names it. Where every peer is a proxy, say
    /// [`behind_any_peer_dangerous`](ClientIp::behind_any_peer_dangerous) or
    /// [`hops`](ClientIp::hops).
    pub fn behind<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::read(networks)?;
        match networks.everybody() {
            Some(everybody) => Err(everybody),
            None => Ok(Self::trusting(Trusted::Networks(networks))),
        }
    }

    /// Behind whoever connects, and behind everybody they name: the leftmost entry is the client.
    ///
    /// Whoever reaches this server has any address it likes, one per request if it likes. It is
    /// for a server that only a proxy can reach which *replaces* the header by one address.
    #[must_use]
    pub fn behind_any_peer_dangerous() -> Self {
        Self::trusting(Trusted::Anybody)
    }

    /// Behind so many proxies, each of which appends one entry: the client is the entry at that
    /// place from the right.
    ///
    /// It needs no peer address, so that it serves behind a Unix socket. A request with fewer
    /// entries has no identity (see [`Missing`](crate::Missing)). Prefer
    /// [`behind`](ClientIp::behind): whoever reaches this server past a proxy, or finds one proxy
    /// less in front of it than is counted here, has any address it likes.
    ///
    /// # Panics
    ///
    /// When `hops` is outside 1 to 32; without a proxy, [`PeerIp`](super::PeerIp) is the
    /// extractor.
    #[track_caller]
    #[must_use]
    pub const fn hops(hops: u8) -> Self {
        assert!(hops >= 1 && hops <= MOST_HOPS, "hops: give 1 to 32; without a proxy, use PeerIp");
        Self::trusting(Trusted::Hops(hops))
    }

    /// [`hops`](ClientIp::hops) of a number from outside.
    ///
    /// # Errors
    ///
    /// When `hops` is outside 1 to 32.
    pub fn try_hops(hops: u8) -> Result<Self, HopsError> {
        if (1..=MOST_HOPS).contains(&hops) { Ok(Self::hops(hops)) } else { Err(HopsError(hops)) }
    }

    const fn trusting(trusted: Trusted) -> Self {
        Self {
            trusted,
            source: Source::XForwardedFor,
            prefix: Prefix::USUAL,
            unreadable: Unreadable::Reject(StatusCode::BAD_REQUEST),
            without_header: WithoutHeader::CountAsPeer,
        }
    }

    /// Reads `Forwarded` ([RFC 7239](https://www.rfc-editor.org/rfc/rfc7239)) instead of
    /// `X-Forwarded-For`.
    ///
    /// Quoted strings and their escapes are read as that RFC and
    /// [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.4) have them: a comma that a
    /// proxy quoted separates nothing. An element that does not follow the grammar as a whole cannot
    /// be read, nor can a line with a string that does not end or with more than 4 KiB. Ports and
    /// IPv6 addresses that a proxy wrote without quotes are read all the same.
    ///
    /// # What it does not protect against
    ///
    /// A proxy that writes what clients send, such as the `Host`, without escaping the quotes and
    /// backslashes in it.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self { source: Source::Forwarded, ..self }
    }

    /// Reads one header that holds one address, such as `x-real-ip` or `cf-connecting-ip`, instead
    /// of `X-Forwarded-For`. Sent twice, or with more than an address, it cannot be read.
    ///
    /// Only for a header that the proxy in front *always* overwrites: some pass on what the client
    /// sent.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_sluice::ClientIp;
    ///
    /// ClientIp::behind(["10.0.0.7"])?.header(HeaderName::from_static("x-real-ip"));
    /// # Ok::<(), tower_sluice::NetworkError>(())
    /// ```
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        Self { source: Source::Single(name), ..self }
    }

    /// How many leading bits of an IPv4 address count, 1 to 32; at first all.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 32.
    #[track_caller]
    #[must_use]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefix: self.prefix.v4(bits), ..self }
    }

    /// How many leading bits of an IPv6 address count, 1 to 128; at first 64.
    ///
    /// # Panics
    ///
    /// When `bits` is outside 1 to 128.
    #[track_caller]
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: self.prefix.v6(bits), ..self }
    }

    /// Sets the policy for a request whose client cannot be read. Defaults to a rejection with 400.
    #[must_use]
    pub fn unreadable(self, unreadable: Unreadable) -> Self {
        Self { unreadable, ..self }
    }

    /// Counts IPv6 by /48, for a second rule at a higher quota: see
    /// [`PeerIp::v6_site`](super::PeerIp::v6_site).
    #[must_use]
    pub fn v6_site(self) -> Self {
        self.ipv6_prefix(48)
    }

    /// Sets the policy for a request that a trusted proxy sends without the header. Defaults to
    /// [`WithoutHeader::CountAsPeer`].
    ///
    /// Rejecting needs probes of load balancers and orchestrators to be exempt, by their path. With
    /// [`hops`](ClientIp::hops) such a request has no identity, and this policy has no effect.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sluice::{
    ///     AccessList, ClientIp, LocalStore, Quota, RateLimitLayer, key::WithoutHeader,
    /// };
    ///
    /// let client = ClientIp::behind(["10.0.0.0/24"])?
    ///     .without_header(WithoutHeader::Reject(StatusCode::BAD_REQUEST));
    /// let layer = RateLimitLayer::new(client, Quota::per_second(10), LocalStore::new())
    ///     .allow(AccessList::from_fn(|parts| parts.uri.path() == "/health"));
    /// # drop(layer);
    /// # Ok::<(), tower_sluice::NetworkError>(())
    /// ```
    #[must_use]
    pub fn without_header(self, without_header: WithoutHeader) -> Self {
        Self { without_header, ..self }
    }

    /// The client's whole address, a mapped one unfolded: for log lines and lists, where a
    /// [`Key`] says too little. Where no client is named it is a trusted proxy's, so that an address in
    /// the trusted networks is no reason to exempt a request.
    ///
    /// # Errors
    ///
    /// When the peer is unknown, or the client; the error never holds what was sent.
    pub fn address(&self, parts: &Parts) -> Result<IpAddr, KeyError> {
        self.client(parts).map(|client| client.address)
    }

    /// The client, and whether it is known to be one.
    pub(crate) fn client(&self, parts: &Parts) -> Result<Client, KeyError> {
        self.find(parts).map_err(|unknown| self.error(unknown))
    }

    fn find(&self, parts: &Parts) -> Result<Client, Unknown> {
        let addresses = self.source.addresses(&parts.headers);
        let mut addresses = addresses.map(|address| address.map_err(Unknown::Unreadable));
        let peer = || peer_address(parts).ok_or(Unknown::Peer);
        match &self.trusted {
            Trusted::Networks(networks) => {
                let peer = peer()?;
                if !networks.hold(peer) {
                    return Ok(Client::confirmed(peer));
                }
                let mut leftmost = None;
                for address in addresses {
                    let address = address?;
                    if !networks.hold(address) {
                        return Ok(Client::confirmed(address));
                    }
                    leftmost = Some(address);
                }
                match leftmost {
                    Some(proxy) => {
                        self.log_no_client(proxy);
                        Ok(Client::unconfirmed(proxy))
                    }
                    None => self.count_as(peer),
                }
            }
            Trusted::Hops(hops) => {
                let single = matches!(self.source, Source::Single(_));
                let hops = if single { 1 } else { usize::from(*hops) };
                let mut nearer = addresses.by_ref().take(hops - 1);
                nearer.try_for_each(|address| address.map(drop))?;
                let client = addresses.next().unwrap_or(Err(Unknown::Missing));
                client.map(Client::confirmed)
            }
            Trusted::Anybody => {
                let leftmost = addresses.try_fold(None, |_, address| address.map(Some))?;
                leftmost.map_or_else(|| self.count_as(peer()?), |it| Ok(Client::confirmed(it)))
            }
        }
    }

    /// A trusted peer that sent no header.
    fn count_as(&self, peer: IpAddr) -> Result<Client, Unknown> {
        self.log_no_client(peer);
        match self.without_header {
            WithoutHeader::CountAsPeer => Ok(Client::unconfirmed(peer)),
            WithoutHeader::Reject(status) => Err(Unknown::WithoutHeader(status)),
        }
    }

    #[cold]
    fn error(&self, unknown: Unknown) -> KeyError {
        let name = self.source.name();
        match (unknown, self.unreadable) {
            (Unknown::Peer, _) => KeyError::no_peer(),
            (Unknown::WithoutHeader(status), _) => {
                KeyError::refused(status, format!("no header {name} from a trusted proxy"))
            }
            (Unknown::Missing, _) => KeyError::missing(format!("client's address in {name}")),
            (Unknown::Unreadable(why), Unreadable::Reject(status)) => {
                KeyError::refused(status, format!("header {name} {why}"))
            }
            (Unknown::Unreadable(why), Unreadable::Share) => {
                KeyError::refused(StatusCode::BAD_REQUEST, format!("header {name} {why}"))
            }
        }
    }

    /// Logs the first time only, since every request may be such a one.
    #[cfg(feature = "tracing")]
    fn log_no_client(&self, proxy: IpAddr) {
        static LOGGED: std::sync::Once = std::sync::Once::new();
        LOGGED.call_once(|| {
            let name = self.source.name();
            tracing::warn!(
                "a request through trusted proxies names no client in {name}, and the last address \
                 known is the proxy {proxy}: if it is a probe, exempt its path; otherwise let the \
                 outermost proxy set the header, and name only the proxies' own networks; \
                 ClientIp::without_header can reject requests without the header"
            );
        });
    }

    #[cfg(not(feature = "tracing"))]
    fn log_no_client(&self, _: IpAddr) {}
}

impl KeyExtractor for ClientIp {
    fn extract(&self, parts: &Parts) -> Result<Option<Key>, KeyError> {
        match self.find(parts) {
            Ok(client) => Ok(Some(self.prefix.key(client.address))),
            Err(Unknown::Unreadable(_)) if self.unreadable == Unreadable::Share => {
                Ok(Some(Key::unidentified()))
            }
            Err(unknown) => Err(self.error(unknown)),
        }
    }

    fn kind(&self) -> KeyKind {
        let address = self.prefix.kind();
        match self.unreadable {
            Unreadable::Reject(_) => address,
            Unreadable::Share => address.or(KeyKind::Unidentified),
        }
    }

    fn lints(&self) -> Vec<String> {
        match &self.trusted {
            Trusted::Networks(networks) => networks.lints(),
            Trusted::Hops(_) | Trusted::Anybody => Vec::new(),
        }
    }
}

/// Why there is no client.
enum Unknown {
    Peer,
    Missing,
    WithoutHeader(StatusCode),
    Unreadable(Why),
}

/// A number of proxies outside 1 to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopsError(u8);

impl fmt::Display for HopsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hops is {}; give 1 to {MOST_HOPS}; without a proxy, use PeerIp", self.0)
    }
}

impl std::error::Error for HopsError {}
