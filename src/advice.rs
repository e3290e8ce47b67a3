//! Advice at run time: log lines for probable mistakes, found in the first requests.

use std::{
    any::type_name,
    net::IpAddr,
    panic::Location,
    slice,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use http::{Extensions, HeaderMap};
use parking_lot::Mutex;

use crate::{
    log::{is_received, log_once, warn},
    name::RuleName,
};

/// The number of first requests of an extractor or of a rule that are checked.
pub(crate) const SAMPLE: u32 = 1_000;

/// Returns `true` for the first requests. Without log lines, there is nothing to check.
#[inline]
pub(crate) fn is_early(requests: &AtomicU32) -> bool {
    cfg!(feature = "tracing") && requests.load(Relaxed) < SAMPLE
}

/// Counts one of the first requests.
pub(crate) fn count_early(requests: &AtomicU32) {
    requests.fetch_add(1, Relaxed);
}

/// Counts one of the first requests. Returns `true` for the last of them.
pub(crate) fn count_and_is_last(requests: &AtomicU32) -> bool {
    requests.fetch_add(1, Relaxed) == SAMPLE - 1
}

/// Warns about the first type of response bodies that can neither be filled nor hold a slot.
#[cold]
pub(crate) fn warn_of_response_body<B>() {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "unknown_response_body",
        "responses have bodies of the type {}, which the limiter does not know: rejections are empty, \
         and requests that need slots get 503; add the layer that makes these bodies outside of the \
         limiter (in axum, by a .layer(..) of its own), or call \
         RateLimitLayer::reject(TooManyRequests::new().with_body(..)) and hold_with (logged once)",
        type_name::<B>()
    ));
}

/// Headers in which proxies send the address of the client.
const FORWARDING: [&str; 5] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
];

/// The origin of the address of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressSource<'a> {
    /// The peer, whose headers are not read.
    Peer,
    /// The peer, which is not a trusted proxy, so its header with this name is not read.
    UntrustedPeer(&'a str),
    /// A header of trusted proxies.
    TrustedProxies,
    /// A header, after a number of proxies.
    Hops,
    /// A header that every peer may send.
    AnyPeer,
}

impl AddressSource<'_> {
    /// Returns the name of a header that may have the address of the client, but is not read.
    fn unread_header(&self, headers: &HeaderMap) -> Option<&str> {
        let unread: &[&str] = match self {
            Self::Peer => &FORWARDING,
            Self::UntrustedPeer(name) => slice::from_ref(name),
            Self::TrustedProxies | Self::Hops | Self::AnyPeer => &[],
        };
        let mut unread = unread.iter().copied();
        unread.find(|name| headers.contains_key(*name))
    }

    /// Returns the setting that no longer counts a proxy as the client.
    fn fix(self, proxy: IpAddr) -> String {
        match self {
            Self::Peer => format!("trust it with ClientIp::behind([\"{proxy}\"])"),
            Self::UntrustedPeer(_) | Self::TrustedProxies => {
                format!("add \"{proxy}\" or its network to the list of ClientIp::behind")
            }
            Self::Hops => "give ClientIp::hops a higher number".to_owned(),
            Self::AnyPeer => "let it send the address of the client".to_owned(),
        }
    }
}

/// A check of the addresses of the clients in the first requests for signs of a proxy.
///
/// A proxy is likely if a request from a private address has a header that is not read, or if nearly
/// all requests have one address.
#[derive(Debug, Default)]
pub(crate) struct ClientCheck {
    requests: AtomicU32,
    majority: Mutex<Majority>,
}

/// The address that leads the vote of the requests (Boyer and Moore), and its lead over all others.
#[derive(Debug, Default)]
struct Majority {
    address: Option<IpAddr>,
    lead: u32,
}

/// The lead of an address in the first requests that have nearly all one address.
const NEARLY_ALL: u32 = SAMPLE / 10 * 9;

impl Majority {
    fn vote(&mut self, address: IpAddr) {
        if self.address == Some(address) {
            self.lead += 1;
        } else if self.lead > 0 {
            self.lead -= 1;
        } else {
            *self = Self {
                address: Some(address),
                lead: 1,
            };
        }
    }
}

impl ClientCheck {
    /// Records the client of a request.
    #[inline]
    pub(crate) fn record(&self, client: IpAddr, source: AddressSource<'_>, headers: &HeaderMap) {
        if is_early(&self.requests) {
            self.check(client.to_canonical(), source, headers);
        }
    }

    #[cold]
    fn check(&self, client: IpAddr, source: AddressSource<'_>, headers: &HeaderMap) {
        if let Some(name) = source.unread_header(headers).filter(|_| is_private(client)) {
            if self.requests.swap(SAMPLE, Relaxed) < SAMPLE {
                warn_of_header(client, name, source);
            }
            return;
        }
        let mut majority = self.majority.lock();
        majority.vote(client);
        let is_over = count_and_is_last(&self.requests);
        let lead = majority.lead;
        drop(majority);
        if is_over && lead >= NEARLY_ALL {
            // Once per process, because an application may have many extractors.
            log_once!(warn_of_one_client(client, source));
        }
    }
}

fn warn_of_header(proxy: IpAddr, name: &str, source: AddressSource<'_>) {
    let reader = match source {
        AddressSource::Peer => "which PeerIp does not read",
        _ => "which is not read because that address is not trusted",
    };
    let fix = source.fix(proxy);
    warn!(
        target: "tower_sluice::lint",
        lint = "forwarding_header_ignored",
        "a request from {proxy}, a private address, has the header {name}, {reader}: behind a proxy all \
         clients share the account of the proxy; if it is a proxy of yours, {fix}, see \
         tower_sluice::guide::proxies"
    );
}

fn warn_of_one_client(client: IpAddr, source: AddressSource<'_>) {
    let fix = source.fix(client);
    warn!(
        target: "tower_sluice::lint",
        lint = "one_client",
        "nearly all of the first {SAMPLE} requests have the client address {client}, so they share one \
         account: if it is a proxy, a balancer or a sidecar, {fix}, see \
         tower_sluice::guide::proxies; ignore this warning in a load test"
    );
}

/// The number of first requests without an extension, or without a route, before a warning.
pub(crate) const FEW: u32 = 20;
/// The number of first requests without a charge before a warning.
pub(crate) const UNCHARGED: u32 = 100;

/// A check that one of the first requests has something: an extension, a route, or a charge.
#[derive(Debug, Default)]
pub(crate) struct FirstCheck<const FIRST: u32> {
    /// The requests that lacked it, or `FIRST` once one had it.
    lacked: AtomicU32,
}

impl<const FIRST: u32> FirstCheck<FIRST> {
    /// Records a request that has it.
    #[inline]
    pub(crate) fn record_hit(&self) {
        if self.lacked.load(Relaxed) < FIRST {
            self.lacked.store(FIRST, Relaxed);
        }
    }

    /// Records a request that lacks it. Returns `true` for the last of the first requests, if all lacked
    /// it.
    #[cold]
    pub(crate) fn record_miss(&self) -> bool {
        let is_early = cfg!(feature = "tracing") && self.lacked.load(Relaxed) < FIRST;
        is_early && self.lacked.fetch_add(1, Relaxed) == FIRST - 1
    }
}

/// Warns that the first requests have no extension of the type `T`.
#[cold]
pub(crate) fn warn_of_missing_extension<T>() {
    warn!(
        target: "tower_sluice::lint",
        lint = "extension_missing",
        "none of the first {FEW} requests has an extension of the type {}, so none has an identity: the \
         authentication must insert it in a layer outside of the limiter; in axum, add that layer after \
         the limiter, and in a ServiceBuilder before it; ignore this warning if these requests were \
         anonymous",
        type_name::<T>()
    );
}

/// Warns that the first requests were not charged.
#[cold]
pub(crate) fn warn_of_no_charge() {
    warn!(
        target: "tower_sluice::lint",
        lint = "nothing_charged",
        "none of the first {UNCHARGED} requests of a layer was charged: each is on an allow list, costs 0 \
         or has an empty list of quotas, so that nothing is limited; RateLimitLayer::explain shows the \
         reason for a request; ignore this warning if these requests were probes"
    );
}

/// Warns about the first response with CORS fields from the inside of the limiter.
#[cold]
pub(crate) fn warn_of_inner_cors() {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "cors_inside",
        "a response from the inside of the limiter has access-control-allow-origin, which denials of the \
         limiter lack, so that browsers hide them from scripts: add the CORS layer outside of the limiter, \
         in axum after it (logged once)"
    ));
}

/// A check that no two layers around each other count a request by one rule.
#[derive(Debug)]
pub(crate) struct NestingCheck {
    requests: AtomicU32,
    /// The identity of the store's accounts, or `None` if it is unknown.
    accounts: Option<usize>,
}

/// The rules of layers outside that have counted a request, in its extensions.
#[derive(Clone, Debug, Default)]
struct CountedBy(Vec<CountingRule>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct CountingRule {
    /// The identity of the store's accounts.
    accounts: usize,
    rule: RuleName,
}

impl NestingCheck {
    /// Creates the check of a layer. `accounts` is the identity of its store's accounts.
    pub(crate) fn new(accounts: Option<usize>) -> Self {
        Self {
            requests: AtomicU32::new(0),
            accounts,
        }
    }

    /// Samples a request: returns `true` if it is one of the first, which are checked. One that is not
    /// checked, because nobody would read a warning, is counted here, so that the sample ends. Otherwise,
    /// [`record`](Self::record) counts it.
    #[inline]
    pub(crate) fn sample(&self) -> bool {
        is_early(&self.requests) && self.is_read_or_count()
    }

    #[cold]
    fn is_read_or_count(&self) -> bool {
        let is_read = self.accounts.is_some() && is_received();
        if !is_read {
            count_early(&self.requests);
        }
        is_read
    }

    /// Records the rules that have charged a request.
    #[cold]
    pub(crate) fn record(&self, charged: &[RuleName], extensions: &mut Extensions) {
        count_early(&self.requests);
        let Some(accounts) = self.accounts else {
            return;
        };
        let mut counted = extensions.remove::<CountedBy>().unwrap_or_default();
        for rule in charged {
            let counting = CountingRule {
                accounts,
                rule: *rule,
            };
            if counted.0.contains(&counting) {
                warn_of_second_count(*rule);
            } else {
                counted.0.push(counting);
            }
        }
        extensions.insert(counted);
    }
}

fn warn_of_second_count(rule: RuleName) {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "request_counted_twice",
        "a request passed two layers with the rule {rule} of one store, which counts it twice: remove one \
         of the layers, or give their rules different names (logged once)"
    ));
}

/// Warns about two lines of code that build layers on one store without a name for their rules.
#[cold]
pub(crate) fn warn_of_shared_default(
    first: &'static Location<'static>,
    second: &'static Location<'static>,
) {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "default_rule_shared",
        "the layers of {first} and {second} have one store and the rule name `default`, so they share \
         the accounts of their keys: give one a name, RateLimitLayer::rules(Rule::new(\"other\", key, \
         quota), store), or clone one layer to share its limit (logged once)"
    ));
}

/// Warns about a key that has as many spellings as a client likes.
#[cold]
pub(crate) fn warn_of_authorization() {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "authorization_as_header_key",
        "HeaderKey reads authorization, so one token has an account for each spelling of its scheme and \
         spaces; use key::BearerKey (logged once)"
    ));
}

/// Warns about the first upgraded response that held slots, which are free from then on.
#[cold]
pub(crate) fn warn_of_upgrade() {
    log_once!(warn!(
        target: "tower_sluice::lint",
        lint = "slot_ends_at_upgrade",
        "a response switches protocols, as for a WebSocket, and its slots end with it, so the quota does \
         not limit open connections: call RateLimitLayer::expose_slot, and move the Slot into the task \
         of the connection (logged once)"
    ));
}

/// Returns `true` for an address that is not reachable from the internet.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // 100.64.0.0/10 is shared by carriers and clouds (RFC 6598).
            let [first, second, ..] = address.octets();
            let shared = first == 100 && second & 0b1100_0000 == 64;
            address.is_private() || address.is_loopback() || address.is_link_local() || shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{AddressSource, Majority, NEARLY_ALL, SAMPLE, is_private};

    /// Returns `true` if nearly all of the first requests have one address.
    fn warns(address: impl Fn(u32) -> [u8; 4]) -> bool {
        let mut majority = Majority::default();
        (0..SAMPLE).for_each(|n| majority.vote(IpAddr::from(address(n))));
        majority.lead >= NEARLY_ALL
    }

    #[test]
    fn a_proxy_is_found_among_probes_but_not_among_many_clients() {
        let [proxy, probe] = [[203, 0, 113, 80], [35, 191, 0, 1]];
        assert!(warns(|_| proxy));
        assert!(
            warns(|n| if n % 50 == 0 { probe } else { proxy }),
            "the first is a probe"
        );
        assert!(!warns(|n| if n % 2 == 0 { probe } else { proxy }));
        assert!(
            !warns(|n| if n % 10 == 0 { probe } else { proxy }),
            "a tenth are others"
        );
        assert!(!warns(|n| (0x0a00_0000 + n).to_be_bytes()));
    }

    #[test]
    fn each_source_of_an_address_has_a_fix() {
        let proxy = IpAddr::from([203, 0, 113, 80]);
        let fixes = [
            (AddressSource::Peer, "ClientIp::behind([\"203.0.113.80\"])"),
            (
                AddressSource::UntrustedPeer("x-real-ip"),
                "to the list of ClientIp::behind",
            ),
            (AddressSource::Hops, "ClientIp::hops a higher number"),
            (AddressSource::AnyPeer, "send the address of the client"),
        ];
        for (source, fix) in fixes {
            assert!(source.fix(proxy).contains(fix), "{source:?}");
        }
    }

    #[test]
    fn private_addresses_are_recognised() {
        let private = |text: &str| is_private(text.parse().expect("an address"));
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.0.9",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fe80::1",
            "fd12::1",
            "fc00::1",
        ] {
            assert!(private(text), "{text}");
        }
        for text in [
            "203.0.113.9",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "11.0.0.1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "2600::1",
        ] {
            assert!(!private(text), "{text}");
        }
    }
}
