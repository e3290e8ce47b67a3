//! Who passes without a limit, and who does not pass at all.

use std::{collections::HashSet, fmt, sync::Arc};

use http::request::Parts;
use ipnet::{IpNet, Ipv4Net};

use crate::key::{Key, KeyExtractor, peer_address};

/// A set of requests, for [`allow`](crate::RateLimitLayer::allow) and
/// [`deny`](crate::RateLimitLayer::deny).
///
/// ```
/// use tower_sluice::{AccessList, key::Header};
///
/// AccessList::networks(["10.0.0.0/8", "2001:db8::/32"])?;
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
    /// alone. The whole address counts, whatever prefix a [`PeerIp`](crate::PeerIp) masks.
    ///
    /// # Errors
    ///
    /// When a network cannot be read, or has host bits set; the error names it.
    pub fn networks<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let read = networks.into_iter().map(|text| network(text.as_ref()));
        let networks = read.collect::<Result<Vec<IpNet>, _>>()?;
        Ok(Self::from_fn(move |parts| {
            let Some(address) = peer_address(parts) else { return false };
            networks.iter().any(|network| network.contains(&address))
        }))
    }

    pub(crate) fn holds(&self, parts: &Parts) -> bool {
        (self.0)(parts)
    }
}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let wrong = |why| NetworkError { text: text.to_owned(), why };
    let network = match text.trim().parse::<IpNet>() {
        Ok(network) => unfold(network),
        Err(_) => match text.trim().parse::<std::net::IpAddr>() {
            Ok(address) => address.to_canonical().into(),
            Err(_) => return Err(wrong("is no network; write 10.0.0.0/8 or 2001:db8::/32")),
        },
    };
    if network.addr() == network.network() {
        Ok(network)
    } else {
        Err(wrong("has bits set beyond its prefix; clear them or lengthen the prefix"))
    }
}

/// An IPv4-mapped network holds IPv4 peers, and those are unfolded before they are looked up.
fn unfold(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(v4, prefix)| Ipv4Net::new(v4, prefix).ok()).map_or(network, IpNet::V4)
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessList(..)")
    }
}

/// Why a network was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    text: String,
    why: &'static str,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network {:?} {}", self.text, self.why)
    }
}

impl std::error::Error for NetworkError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_or_refused_by_name() {
        for good in ["10.0.0.0/8", "2001:db8::/32", "203.0.113.9", "::1", "0.0.0.0/0"] {
            assert!(network(good).is_ok(), "{good}");
        }
        let host_bits = network("10.0.0.1/8").expect_err("host bits").to_string();
        assert!(host_bits.contains("\"10.0.0.1/8\" has bits set beyond its prefix"));
        let garbage = network("10.0.0/8").expect_err("garbage").to_string();
        assert!(garbage.contains("\"10.0.0/8\" is no network"));
    }
}
