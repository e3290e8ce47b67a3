//! Networks, from text.

use std::{fmt, net::IpAddr, sync::Arc};

use ipnet::{IpNet, Ipv4Net};

/// A list of networks, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Networks(Arc<[IpNet]>);

impl Networks {
    pub(crate) fn read<N: AsRef<str>>(
        networks: impl IntoIterator<Item = N>,
    ) -> Result<Self, NetworkError> {
        networks.into_iter().map(|text| network(text.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// An error that names the first network which holds every address of its family.
    pub(super) fn everybody(&self) -> Option<NetworkError> {
        let all = self.0.iter().find(|network| network.prefix_len() == 0)?;
        let why = "holds everybody; name the proxies' own networks";
        Some(NetworkError { text: all.to_string(), why })
    }

    /// Whether one of them holds an address, which is not a mapped one.
    pub(crate) fn hold(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
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
}
