//! IP networks.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::{IpNet, Ipv4Net};

/// List of IP networks. Clones share the list.
#[derive(Clone, Debug)]
pub(crate) struct Networks(Arc<[IpNet]>);

impl Networks {
    pub(crate) fn read<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        networks
            .into_iter()
            .map(|text| network(text.as_ref()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Reads the networks of trusted proxies.
    ///
    /// A network of all addresses is an error, and so is one that is written without its prefix length, such
    /// as `10.0.0.0`.
    pub(super) fn trusted<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        networks
            .into_iter()
            .map(|text| trusted(text.as_ref()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns `true` if one of the networks contains the address.
    ///
    /// Convert an IPv4-mapped address to IPv4 first.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Reads the network of trusted proxies.
fn trusted(text: &str) -> Result<IpNet, NetworkError> {
    let network = network(text)?;
    let why = if network.prefix_len() == 0 {
        "contains all addresses; give the networks of the proxies"
    } else if !text.contains('/') && looks_like_a_network(network.addr()) {
        "looks like a network; give its prefix length, or /32 or /128 for one address"
    } else {
        return Ok(network);
    };
    Err(NetworkError::new(text, why))
}

/// Returns `true` if the last octet of an IPv4 address, or the last 64 bits of an IPv6 address, are
/// 0.
fn looks_like_a_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[3] == 0,
        IpAddr::V6(address) => address.to_bits().trailing_zeros() >= 64,
    }
}

fn network(text: &str) -> Result<IpNet, NetworkError> {
    let why = match parse_network(text.trim()) {
        None => "is not a network; write 10.0.0.0/8 or 2001:db8::/32",
        Some(network) if network.addr() == network.network() => return Ok(network),
        Some(_) => "has bits set beyond its prefix; clear them or lengthen the prefix",
    };
    Err(NetworkError::new(text, why))
}

/// Parses a network, and converts an IPv4-mapped one to IPv4.
///
/// `IpNet` is too lenient: it accepts `010.0.0.0/8`, which other software reads as octal.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text
            .parse::<IpAddr>()
            .ok()
            .map(|address| address.to_canonical().into());
    };
    // An integer parser also accepts a sign.
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(address.parse().ok()?, bits.parse().ok().filter(|_| digits)?)
        .ok()
        .map(to_canonical)
}

/// Converts an IPv4-mapped network to IPv4.
fn to_canonical(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else {
        return network;
    };
    let prefix = v6.prefix_len().checked_sub(96);
    let mapped = v6.addr().to_ipv4_mapped().zip(prefix);
    mapped
        .and_then(|(v4, prefix)| Ipv4Net::new(v4, prefix).ok())
        .map_or(network, IpNet::V4)
}

/// Error for an invalid network.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError {
    text: String,
    why: &'static str,
}

impl NetworkError {
    fn new(text: &str, why: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            why,
        }
    }
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
        for good in [
            "10.0.0.0/8",
            "2001:db8::/32",
            "203.0.113.9",
            "::1",
            "0.0.0.0/0",
        ] {
            assert!(network(good).is_ok(), "{good}");
        }
        let host_bits = network("10.0.0.1/8").expect_err("host bits").to_string();
        assert!(host_bits.contains("\"10.0.0.1/8\" has bits set beyond its prefix"));
        for garbage in [
            "10.0.0/8",
            "010.0.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "/8",
        ] {
            let error = network(garbage).expect_err(garbage).to_string();
            assert!(
                error.contains(&format!("{garbage:?} is not a network")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_single_address_that_looks_like_a_network_is_an_error() {
        for bare in [
            "10.0.0.0",
            "192.168.1.0",
            "::ffff:10.0.0.0",
            "2001:db8:5::",
            "0.0.0.0",
            "::",
        ] {
            let error = Networks::trusted([bare]).expect_err(bare).to_string();
            assert!(
                error.contains("looks like a network; give its prefix length"),
                "{error}"
            );
        }
        for valid in [
            "10.0.0.0/8",
            "10.0.0.0/32",
            "10.0.0.1",
            "2001:db8:5::/48",
            "2001:db8::1",
        ] {
            assert!(Networks::trusted([valid]).is_ok(), "{valid}");
        }
        assert!(Networks::read(["10.0.0.0"]).is_ok(), "an access list");
    }
}
