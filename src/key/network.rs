//! IP networks.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::{IpNet, Ipv4Net};

use crate::log::warn;

/// List of IP networks. Clones share the list.
#[derive(Clone, Debug)]
pub(crate) struct Networks {
    all: Arc<[IpNet]>,
    /// Addresses without a prefix length that are probably networks, such as `10.0.0.0`.
    bare: Arc<[IpAddr]>,
}

impl Networks {
    pub(crate) fn read<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        let (mut all, mut bare) = (Vec::new(), Vec::new());
        for text in networks {
            let text = text.as_ref();
            let network = network(text)?;
            if !text.contains('/') && looks_like_a_network(network.addr()) {
                bare.push(network.addr());
            }
            all.push(network);
        }
        Ok(Self { all: all.into(), bare: bare.into() })
    }

    /// Returns an error if a network contains all IPv4 or all IPv6 addresses.
    pub(super) fn unrestricted(&self) -> Option<NetworkError> {
        let all = self.all.iter().find(|network| network.prefix_len() == 0)?;
        let why = "contains all addresses; give the networks of the proxies";
        Some(NetworkError { text: all.to_string(), why })
    }

    /// Logs the probable mistakes in this list of trusted proxies.
    pub(super) fn advise(&self) {
        if self.all.is_empty() {
            warn!(
                target: "tower_sluice::lint",
                lint = "no_trusted_network",
                "ClientIp::behind trusts no network, so its header is never read and each peer is the \
                 client; give the networks of the proxies, or use PeerIp"
            );
        }
        for address in self.bare.iter() {
            let (network, whole) = prefix_lengths(*address);
            warn!(
                target: "tower_sluice::lint",
                lint = "single_address",
                "ClientIp::behind trusts the single address {address}, which looks like a network \
                 address; give the network's prefix length, as in {address}/{network}, or write \
                 {address}/{whole} for one proxy"
            );
        }
    }

    /// Returns `true` if one of the networks contains the address.
    ///
    /// Convert an IPv4-mapped address to IPv4 first.
    pub(crate) fn hold(&self, address: IpAddr) -> bool {
        self.find(address).is_some()
    }

    /// Returns the first network that contains the address.
    pub(super) fn find(&self, address: IpAddr) -> Option<&IpNet> {
        self.all.iter().find(|network| network.contains(&address))
    }
}

/// Returns `true` if the last octet of an IPv4 address, or the last 64 bits of an IPv6 address, are
/// 0.
fn looks_like_a_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[3] == 0,
        IpAddr::V6(address) => address.to_bits().trailing_zeros() >= 64,
    }
}

/// Returns two prefix lengths to suggest for an address: as a network, and as a single address.
fn prefix_lengths(address: IpAddr) -> (u32, u32) {
    match address {
        IpAddr::V4(address) => {
            ((32 - address.to_bits().trailing_zeros()).div_ceil(8).max(1) * 8, 32)
        }
        IpAddr::V6(address) => {
            ((128 - address.to_bits().trailing_zeros()).div_ceil(16).max(1) * 16, 128)
        }
    }
}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let error = |why| NetworkError { text: text.to_owned(), why };
    let network = parse(text.trim()).map(to_canonical);
    let network =
        network.ok_or_else(|| error("is not a network; write 10.0.0.0/8 or 2001:db8::/32"))?;
    if network.addr() == network.network() {
        Ok(network)
    } else {
        Err(error("has bits set beyond its prefix; clear them or lengthen the prefix"))
    }
}

/// Parses a network.
///
/// `IpNet` is too lenient: it accepts `010.0.0.0/8`, which other software reads as octal.
fn parse(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    // An integer parser also accepts a sign.
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(address.parse().ok()?, bits.parse().ok().filter(|_| digits)?).ok()
}

/// Converts an IPv4-mapped network to IPv4.
fn to_canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(v4, prefix)| Ipv4Net::new(v4, prefix).ok()).map_or(network, IpNet::V4)
}

/// Error for an invalid network.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
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
    fn errors_name_the_invalid_network() {
        for good in ["10.0.0.0/8", "2001:db8::/32", "203.0.113.9", "::1", "0.0.0.0/0"] {
            assert!(network(good).is_ok(), "{good}");
        }
        let host_bits = network("10.0.0.1/8").expect_err("host bits").to_string();
        assert!(host_bits.contains("\"10.0.0.1/8\" has bits set beyond its prefix"));
        for garbage in ["10.0.0/8", "010.0.0.0/8", "10.0.0.0/+8", "10.0.0.0/33", "10.0.0.0/", "/8"]
        {
            let error = network(garbage).expect_err(garbage).to_string();
            assert!(error.contains(&format!("{garbage:?} is not a network")), "{error}");
        }
    }

    #[test]
    fn a_single_address_that_looks_like_a_network_is_reported() {
        let found = |text: &str| Networks::read([text]).expect("a network").bare.len();
        for bare in ["10.0.0.0", "192.168.1.0", "::ffff:10.0.0.0", "2001:db8:5::", "0.0.0.0", "::"]
        {
            assert_eq!(found(bare), 1, "{bare}");
        }
        for valid in ["10.0.0.0/8", "10.0.0.0/32", "10.0.0.1", "2001:db8:5::/48", "2001:db8::1"] {
            assert_eq!(found(valid), 0, "{valid}");
        }
        let suggested = |text: &str| prefix_lengths(text.parse().expect("an address"));
        assert_eq!(suggested("10.0.0.0"), (8, 32));
        assert_eq!(suggested("172.16.0.0"), (16, 32));
        assert_eq!(suggested("192.168.1.0"), (24, 32));
        assert_eq!(suggested("0.0.0.0"), (8, 32));
        assert_eq!(suggested("2001:db8:5::"), (48, 128));
    }
}
