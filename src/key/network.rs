//! Networks, from text.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::{IpNet, Ipv4Net};

/// A list of networks, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Networks {
    all: Arc<[IpNet]>,
    /// Addresses that were given without a prefix and look like those of networks.
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

    /// An error that names the first network which holds every address of its family.
    pub(super) fn everybody(&self) -> Option<NetworkError> {
        let all = self.all.iter().find(|network| network.prefix_len() == 0)?;
        let why = "holds everybody; name the proxies' own networks";
        Some(NetworkError { text: all.to_string(), why })
    }

    /// Probable mistakes in a list of trusted proxies, each with the fix.
    pub(super) fn lints(&self) -> Vec<String> {
        const NONE: &str = "ClientIp::behind trusts no network, so that its header is never read and \
                            every peer is the client; name the proxies' networks, or use PeerIp";
        let none = self.all.is_empty().then(|| NONE.to_owned());
        let bare = self.bare.iter().map(|address| {
            let (network, whole) = lengths(*address);
            format!(
                "ClientIp::behind trusts the one address {address}, which looks like that of a \
                 network; give the network's prefix length, as in {address}/{network}, or write \
                 {address}/{whole} for one proxy"
            )
        });
        none.into_iter().chain(bare).collect()
    }

    /// Whether one of them holds an address, which is not a mapped one.
    pub(crate) fn hold(&self, address: IpAddr) -> bool {
        self.all.iter().any(|network| network.contains(&address))
    }
}

/// The last octet is zero, or the 64 bits of an IPv6 interface are.
fn looks_like_a_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[3] == 0,
        IpAddr::V6(address) => address.to_bits().trailing_zeros() >= 64,
    }
}

/// The prefix length that the zeros of an address suggest, and that of the address alone.
fn lengths(address: IpAddr) -> (u32, u32) {
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
    let wrong = |why| NetworkError { text: text.to_owned(), why };
    let network = parse(text.trim()).map(unfold);
    let network =
        network.ok_or_else(|| wrong("is no network; write 10.0.0.0/8 or 2001:db8::/32"))?;
    if network.addr() == network.network() {
        Ok(network)
    } else {
        Err(wrong("has bits set beyond its prefix; clear them or lengthen the prefix"))
    }
}

/// The parser of `IpNet` takes `010.0.0.0/8`, which others read as octal; that of addresses refuses
/// it.
fn parse(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    // a parser of integers would take a sign
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(address.parse().ok()?, bits.parse().ok().filter(|_| digits)?).ok()
}

/// An IPv4-mapped network holds IPv4 peers, and those are unfolded before they are looked up.
fn unfold(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(v4, prefix)| Ipv4Net::new(v4, prefix).ok()).map_or(network, IpNet::V4)
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
        for garbage in ["10.0.0/8", "010.0.0.0/8", "10.0.0.0/+8", "10.0.0.0/33", "10.0.0.0/", "/8"]
        {
            let error = network(garbage).expect_err(garbage).to_string();
            assert!(error.contains(&format!("{garbage:?} is no network")), "{error}");
        }
    }

    #[test]
    fn an_address_alone_that_looks_like_a_network_is_found() {
        let found = |text: &str| Networks::read([text]).expect("a network").lints().len();
        for bare in ["10.0.0.0", "192.168.1.0", "::ffff:10.0.0.0", "2001:db8:5::", "0.0.0.0", "::"]
        {
            assert_eq!(found(bare), 1, "{bare}");
        }
        for meant in ["10.0.0.0/8", "10.0.0.0/32", "10.0.0.1", "2001:db8:5::/48", "2001:db8::1"] {
            assert_eq!(found(meant), 0, "{meant}");
        }
        let suggested = |text: &str| lengths(text.parse().expect("an address"));
        assert_eq!(suggested("10.0.0.0"), (8, 32));
        assert_eq!(suggested("172.16.0.0"), (16, 32));
        assert_eq!(suggested("192.168.1.0"), (24, 32));
        assert_eq!(suggested("0.0.0.0"), (8, 32));
        assert_eq!(suggested("2001:db8:5::"), (48, 128));
    }
}
