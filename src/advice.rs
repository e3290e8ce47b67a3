//! Advice at run time: log lines for probable mistakes, found in the first requests.

use std::{
    any::type_name,
    net::IpAddr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use http::HeaderMap;

use crate::log::warn;

/// The number of first requests of an extractor or of a rule that are checked.
pub(crate) const SAMPLE: u32 = 1_000;

/// Returns `true` for the first requests. Without log lines, there is nothing to check.
#[inline]
pub(crate) fn is_early(requests: &AtomicU32) -> bool {
    cfg!(feature = "tracing") && requests.load(Relaxed) < SAMPLE
}

/// Counts one of the first requests. Returns `true` for the last of them.
pub(crate) fn is_last(requests: &AtomicU32) -> bool {
    requests.fetch_add(1, Relaxed) == SAMPLE - 1
}

/// Warns about the first type of response bodies that can neither be filled nor hold a slot.
#[cold]
pub(crate) fn warn_of_response_body<B>() {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if IS_LOGGED.swap(true, Relaxed) {
        return;
    }
    warn!(
        target: "tower_sluice::lint",
        lint = "unknown_response_body",
        "responses have bodies of the type {}, which the limiter does not know: rejections are empty, \
         and requests that need slots get 503; add the layer that makes these bodies outside of the \
         limiter (in axum, by a .layer(..) of its own), or call \
         RateLimitLayer::reject(TooManyRequests::new().with_body(..)) and hold_with (logged once)",
        type_name::<B>()
    );
}

/// Headers in which proxies send the address of the client.
const FORWARDING: [&str; 5] =
    ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip"];

/// A check of the peers of the first requests for signs of a proxy.
///
/// A proxy is likely if a request from a private address has a forwarding header, or if all
/// requests come from one private address.
#[derive(Debug, Default)]
pub(crate) struct PeerCheck {
    requests: AtomicU32,
    first: OnceLock<IpAddr>,
    /// `true` once requests came from two addresses or from a public address.
    is_mixed: AtomicBool,
}

impl PeerCheck {
    #[inline]
    pub(crate) fn record(&self, address: IpAddr, headers: &HeaderMap) {
        if is_early(&self.requests) {
            self.check(address.to_canonical(), headers);
        }
    }

    #[cold]
    fn check(&self, address: IpAddr, headers: &HeaderMap) {
        let private = is_private(address);
        let header = FORWARDING.into_iter().find(|name| private && headers.contains_key(*name));
        if let Some(name) = header {
            if self.requests.swap(SAMPLE, Relaxed) < SAMPLE {
                warn_of_header(address, name);
            }
            return;
        }
        if !private || *self.first.get_or_init(|| address) != address {
            self.is_mixed.store(true, Relaxed);
        }
        // Logged once per process, because an application may have many extractors.
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        if is_last(&self.requests) && !self.is_mixed.load(Relaxed) && !IS_LOGGED.swap(true, Relaxed)
        {
            warn_of_one_peer(address);
        }
    }
}

fn warn_of_header(address: IpAddr, name: &str) {
    warn!(
        target: "tower_sluice::lint",
        lint = "forwarding_header_ignored",
        "a request from {address}, a private address, has the header {name}, which PeerIp does not \
         read: behind a proxy all clients share the account of the proxy; trust the proxy with \
         ClientIp::behind([\"{address}\"]) or by its network, see tower_sluice::guide::proxies"
    );
}

fn warn_of_one_peer(address: IpAddr) {
    warn!(
        target: "tower_sluice::lint",
        lint = "one_private_peer",
        "the first {SAMPLE} requests all came from {address}, a private address, so they share one \
         account: if it is a proxy or a sidecar, trust it with ClientIp::behind([\"{address}\"]); \
         ignore this warning in a load test"
    );
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
    use super::is_private;

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
