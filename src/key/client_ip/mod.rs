//! The address of a client behind proxies, as a key.

mod entries;
mod header;

use std::{net::IpAddr, sync::Arc};

use http::{HeaderMap, HeaderName, StatusCode};

use self::{entries::HeaderFault, header::ClientHeader};
use super::{
    Key, KeyError, KeyExtractor, RequestHead, check_status,
    network::{NetworkError, Networks},
    peer_ip::{Masks, ipv4_mask, ipv6_mask, peer_address},
};
use crate::{
    advice::{AddressSource, ClientCheck},
    log::{log_once, warn},
};

/// The maximum of [`ClientIp::hops`]. `MAX_ENTRIES`, which bounds what is read, is at least as large.
const MAX_HOPS: u8 = 32;

/// Extractor for the address of the client behind trusted proxies.
///
/// A client can send any `X-Forwarded-For`. Only entries that a trusted proxy *appends* are
/// reliable. The extractor finds the client as follows:
///
/// - An untrusted peer is the client. No header is read.
/// - For a trusted peer, entries are read from right to left. Trusted proxies are skipped.
/// - The first untrusted entry is the client. All entries to its left are ignored.
/// - If all entries are trusted proxies, there is [no client](#requests-without-a-client). The account is that
///   of the leftmost entry.
///
/// IPv6 addresses are cut to their first 64 bits, as in [`PeerIp`](super::PeerIp). IPv4-mapped
/// addresses are converted to IPv4. Ports, brackets and zones are dropped.
///
/// NAT64 and 6to4 addresses are not converted. By default, all clients behind one NAT64 share one
/// account.
///
/// ```
/// use tower_sluice::{ClientIp, Quota, RateLimitLayer, LocalStore};
///
/// let client = ClientIp::behind(["10.0.0.0/8", "2001:db8:5::/48"])?;
/// let layer = RateLimitLayer::new(client, Quota::per_second(10), LocalStore::new());
/// # drop(layer);
/// # Ok::<(), tower_sluice::key::NetworkError>(())
/// ```
///
/// A customer of a hosting provider often has more than one /64. A second rule with a higher quota
/// limits the whole /48:
///
/// ```
/// use tower_sluice::{ClientIp, LocalStore, Quota, RateLimitLayer, Rule};
///
/// let client = ClientIp::behind(["10.0.0.0/8"])?;
/// let site = Rule::new("site", client.clone().ipv6_prefix(48), Quota::per_second(100));
/// let client = Rule::new("client", client, Quota::per_second(10));
/// let layer = RateLimitLayer::rules((client, site), LocalStore::new());
/// # drop(layer);
/// # Ok::<(), tower_sluice::key::NetworkError>(())
/// ```
///
/// # Unreadable headers
///
/// A header is unreadable if an entry that must be read is not an address, such as `unknown`. A
/// header is also unreadable if more than 32 entries or 4 KiB must be read.
///
/// The request is rejected with 400. [`unreadable`](ClientIp::unreadable) changes this policy. The
/// request is never charged to the proxy.
///
/// # Requests without a client
///
/// If a trusted proxy sends no header, the request is charged to the account of this proxy, which is the
/// peer. If the header has trusted addresses only, it is charged to that of the leftmost one. Probes of load balancers are an example. No
/// [penalty](crate::RateLimitLayer::penalty) blocks such an account, because the key is that of [a
/// proxy](crate::Key::of_proxy). [`reject_without_header`](ClientIp::reject_without_header) can reject such
/// requests.
///
/// Some proxies let a client remove the header with `connection: x-forwarded-for`. The client is
/// then charged to the account of the proxy.
///
/// An [allow list](crate::AccessList::client_networks) never matches an address in the trusted
/// networks, but a deny list does. Feature `tracing` logs the first request without a client, and one
/// warning if the first 1 000 requests suggest a proxy that is not trusted.
///
/// # Limitations
///
/// Every trusted proxy must append to the header or replace it. Otherwise a client can choose its
/// address. Do not trust a network that others share, such as the network of a cloud.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    trusted: Trusted,
    source: ClientHeader,
    masks: Masks,
    unreadable: Unreadable,
    /// The status of a request that a trusted proxy sends without the header.
    without_header: Option<StatusCode>,
    check: Arc<ClientCheck>,
}

#[derive(Clone, Debug)]
enum Trusted {
    Networks(Networks),
    Hops(u8),
    AnyPeer,
}

/// Policy for a request with an unreadable header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// Rejects the request with this status.
    Reject(StatusCode),
    /// Charges all requests with an unreadable header to one account of the rule.
    ///
    /// [`OnMissingKey::Share`](crate::rule::OnMissingKey::Share) uses the same account.
    Share,
}

/// The address of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    /// The origin of the address, or `None` if nothing names the client: the address may be that of a trusted
    /// proxy.
    source: Option<AddressSource<'a>>,
}

impl<'a> Client<'a> {
    fn of_proxy(address: IpAddr) -> Self {
        Self {
            address,
            source: None,
        }
    }

    fn found(address: IpAddr, source: AddressSource<'a>) -> Self {
        Self {
            address,
            source: Some(source),
        }
    }

    /// Returns `false` if the address may be that of a trusted proxy.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.source.is_some()
    }
}

fn peer(head: &RequestHead<'_>) -> Result<IpAddr, UnknownClient> {
    peer_address(head).ok_or(UnknownClient::Peer)
}

impl ClientIp {
    /// Trusts the proxies in these networks.
    ///
    /// An item is a network such as `"10.0.0.0/8"`, or a single address. With an empty list, each
    /// peer is the client.
    ///
    /// For a proxy whose address looks like that of a network, such as `"10.0.0.0"`, write
    /// `"10.0.0.0/32"`.
    ///
    /// # Errors
    ///
    /// Fails if an item cannot be parsed, has host bits set, looks like a network but has no prefix
    /// length, or contains all IPv4 or IPv6 addresses. The error contains the item. To trust every peer, use
    /// [`behind_any_peer_dangerous`](ClientIp::behind_any_peer_dangerous) or
    /// [`hops`](ClientIp::hops).
    pub fn behind<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let networks = Networks::trusted(networks)?;
        Ok(Self::trusting(Trusted::Networks(networks)))
    }

    /// Trusts every peer and every address in the header. The client is the leftmost address.
    ///
    /// Use this only if all requests come through a proxy that *replaces* the header with one
    /// address. A client that reaches the server directly can claim a new address with each
    /// request.
    pub fn behind_any_peer_dangerous() -> Self {
        Self::trusting(Trusted::AnyPeer)
    }

    /// Trusts a fixed number of proxies, each of which appends one entry.
    ///
    /// The client is entry number `hops` from the right, or the only address of a
    /// [`header`](ClientIp::header) that has one. A request with fewer entries, or with a
    /// blank header, has no identity (see [`OnMissingKey`](crate::rule::OnMissingKey)). The address of the peer is not
    /// needed, so this works behind a Unix socket.
    ///
    /// Prefer [`behind`](ClientIp::behind). With `hops`, a client can claim any address if it can
    /// bypass a proxy, or if there are fewer proxies than `hops`.
    ///
    /// # Panics
    ///
    /// Panics if `hops` is outside 1 to 32. Without a proxy, use [`PeerIp`](super::PeerIp).
    #[track_caller]
    pub fn hops(hops: u8) -> Self {
        assert!(
            (1..=MAX_HOPS).contains(&hops),
            "hops: give 1 to 32; without a proxy, use PeerIp"
        );
        Self::trusting(Trusted::Hops(hops))
    }

    fn trusting(trusted: Trusted) -> Self {
        Self {
            trusted,
            source: ClientHeader::XForwardedFor,
            masks: Masks::DEFAULT,
            unreadable: Unreadable::Reject(StatusCode::BAD_REQUEST),
            without_header: None,
            check: Arc::default(),
        }
    }

    /// Reads `Forwarded` ([RFC 7239](https://www.rfc-editor.org/rfc/rfc7239)) instead of
    /// `X-Forwarded-For`.
    ///
    /// An element is a list of `name=value`. The header is unreadable if a quoted string does not end in its
    /// line, if the lines that must be read are longer than 4 KiB, or if an element that must be read has:
    ///
    /// - not exactly one `for`, or one without an address
    /// - a name that is no token
    /// - a value with a quote, a backslash, a comma or white space outside of quoted strings
    ///
    /// All else is accepted, such as `host=`, `host=[::1]:80`, a second `proto`, and white space around `=`.
    ///
    /// # Limitations
    ///
    /// The proxy must escape quotes and backslashes in text from clients, such as the `Host`.
    pub fn forwarded(self) -> Self {
        Self {
            source: ClientHeader::Forwarded,
            ..self
        }
    }

    /// Reads a header with a single address, such as `x-real-ip` or `cf-connecting-ip`.
    ///
    /// The header is unreadable if it is sent twice, or if its value is not exactly one address.
    ///
    /// Use only a header that the proxy *always* overwrites. Otherwise a client can choose its
    /// address.
    ///
    /// ```
    /// use http::HeaderName;
    /// use tower_sluice::ClientIp;
    ///
    /// ClientIp::behind(["10.0.0.7"])?.header(HeaderName::from_static("x-real-ip"));
    /// # Ok::<(), tower_sluice::key::NetworkError>(())
    /// ```
    pub fn header(self, name: HeaderName) -> Self {
        Self {
            source: ClientHeader::Single(name),
            ..self
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
    /// # Panics
    ///
    /// Panics if `bits` is outside 1 to 128.
    #[track_caller]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.masks.v6 = ipv6_mask(bits);
        self
    }

    /// Sets the policy for a request with an unreadable header.
    ///
    /// Defaults to a rejection with 400.
    ///
    /// # Panics
    ///
    /// Panics if the status of a rejection is outside 400 to 599.
    #[track_caller]
    pub fn unreadable(self, unreadable: Unreadable) -> Self {
        if let Unreadable::Reject(status) = unreadable {
            check_status("unreadable", status);
        }
        Self { unreadable, ..self }
    }

    /// Rejects a request that a trusted proxy sends without the header, with this status.
    ///
    /// By default, the request is charged to the account of the proxy. With
    /// [`hops`](ClientIp::hops), this setting has no effect, because a request without the header has
    /// no identity.
    ///
    /// Some load balancers send health probes without the header. Exempt the probes by their path:
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_sluice::{AccessList, ClientIp, LocalStore, Quota, RateLimitLayer};
    ///
    /// let client = ClientIp::behind(["10.0.0.0/24"])?.reject_without_header(StatusCode::BAD_REQUEST);
    /// let layer = RateLimitLayer::new(client, Quota::per_second(10), LocalStore::new())
    ///     .allow(AccessList::from_fn(|head| head.path() == "/health"));
    /// # drop(layer);
    /// # Ok::<(), tower_sluice::key::NetworkError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the status is outside 400 to 599.
    #[track_caller]
    pub fn reject_without_header(self, status: StatusCode) -> Self {
        check_status("reject_without_header", status);
        Self {
            without_header: Some(status),
            ..self
        }
    }

    /// Returns the whole address of the client, for logs and lists.
    ///
    /// An IPv4-mapped address is converted to IPv4.
    ///
    /// The result may be the address of a trusted proxy, if the header contains no other address.
    /// Therefore do not exempt the trusted networks from the limit.
    ///
    /// # Errors
    ///
    /// Fails if the peer or the client is unknown. The error never contains text from the request.
    pub fn address<'a>(&self, head: impl Into<RequestHead<'a>>) -> Result<IpAddr, KeyError> {
        self.client(&head.into()).map(|client| client.address)
    }

    /// Returns the client.
    pub(crate) fn client(&self, head: &RequestHead<'_>) -> Result<Client<'_>, KeyError> {
        self.find(head).map_err(|unknown| self.error(unknown))
    }

    fn find(&self, head: &RequestHead<'_>) -> Result<Client<'_>, UnknownClient> {
        match &self.trusted {
            Trusted::Networks(networks) => self.find_behind(networks, head),
            Trusted::Hops(hops) => self.find_by_hops(*hops, head.headers),
            Trusted::AnyPeer => self.find_leftmost(head),
        }
    }

    fn find_behind(
        &self,
        networks: &Networks,
        head: &RequestHead<'_>,
    ) -> Result<Client<'_>, UnknownClient> {
        let peer = peer(head)?;
        if !networks.contain(peer) {
            let source = AddressSource::UntrustedPeer(self.source.name().as_str());
            return Ok(Client::found(peer, source));
        }
        let mut leftmost = None;
        for address in self.source.addresses(head.headers) {
            let address = address?;
            if !networks.contain(address) {
                return Ok(Client::found(address, AddressSource::TrustedProxies));
            }
            leftmost = Some(address);
        }
        let Some(proxy) = leftmost else {
            return self.client_without_header(peer);
        };
        self.log_no_client(proxy);
        Ok(Client::of_proxy(proxy))
    }

    fn find_by_hops(&self, hops: u8, headers: &HeaderMap) -> Result<Client<'_>, UnknownClient> {
        if self.source.is_blank(headers) {
            return Err(UnknownClient::Missing);
        }
        // Such a header has one address, however many proxies there are.
        let is_single = matches!(self.source, ClientHeader::Single(_));
        let hops = if is_single { 1 } else { usize::from(hops) };
        let mut addresses = self.source.addresses(headers);
        for proxy in addresses.by_ref().take(hops - 1) {
            proxy?;
        }
        let address = addresses.next().ok_or(UnknownClient::Missing)??;
        Ok(Client::found(address, AddressSource::Hops))
    }

    fn find_leftmost(&self, head: &RequestHead<'_>) -> Result<Client<'_>, UnknownClient> {
        let mut leftmost = None;
        for address in self.source.addresses(head.headers) {
            leftmost = Some(address?);
        }
        match leftmost {
            Some(address) => Ok(Client::found(address, AddressSource::AnyPeer)),
            None => self.client_without_header(peer(head)?),
        }
    }

    /// Returns the client of a trusted peer that sends no header, or rejects it if the settings say so. The
    /// log names it.
    fn client_without_header(&self, peer: IpAddr) -> Result<Client<'_>, UnknownClient> {
        self.log_no_client(peer);
        match self.without_header {
            None => Ok(Client::of_proxy(peer)),
            Some(status) => Err(UnknownClient::WithoutHeader(status)),
        }
    }

    #[cold]
    fn error(&self, unknown: UnknownClient) -> KeyError {
        let name = self.source.name();
        match unknown {
            UnknownClient::Peer => KeyError::no_peer(),
            UnknownClient::WithoutHeader(status) => {
                KeyError::unusable(status, format!("no header {name} from a trusted proxy"))
            }
            UnknownClient::Missing => KeyError::missing(format!("client's address in {name}")),
            UnknownClient::Unreadable(why) => {
                let status = match self.unreadable {
                    Unreadable::Reject(status) => status,
                    // `extract` has a shared key instead. This is for access lists and `address`.
                    Unreadable::Share => StatusCode::BAD_REQUEST,
                };
                KeyError::unusable(status, format!("header {name} {why}"))
            }
        }
    }

    /// Logs once that a trusted proxy sent a request without a client address.
    fn log_no_client(&self, proxy: IpAddr) {
        let name = self.source.name();
        log_once!(warn!(
            "a request from a trusted proxy names no client in {name}, and the last known \
                 address is the proxy {proxy}: for a probe, exempt its path; otherwise let the \
                 outermost proxy set the header, and trust only the networks of the proxies; \
                 ClientIp::reject_without_header can reject requests without the header"
        ));
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let client = match self.find(head) {
            Ok(client) => client,
            Err(UnknownClient::Unreadable(_)) if self.unreadable == Unreadable::Share => {
                return Ok(Some(Key::unidentified()));
            }
            Err(unknown) => return Err(self.error(unknown)),
        };
        let key = self.masks.key(client.address);
        let Some(source) = client.source else {
            return Ok(Some(key.of_proxy()));
        };
        self.check.record(client.address, source, head.headers);
        Ok(Some(key))
    }
}

/// The reason why the client is unknown.
#[derive(Clone, Copy)]
enum UnknownClient {
    /// The server provides no address of the peer.
    Peer,
    /// The header has fewer addresses than there are proxies.
    Missing,
    /// A trusted proxy sent no header, which the settings reject.
    WithoutHeader(StatusCode),
    Unreadable(HeaderFault),
}

impl From<HeaderFault> for UnknownClient {
    fn from(fault: HeaderFault) -> Self {
        Self::Unreadable(fault)
    }
}
