//! Headers that contain the address of the client, and addresses as proxies write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, header::FORWARDED};

use super::{
    super::is_blank,
    entries::{Entries, Separator},
    forwarded,
};

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header with the address of the client.
///
/// No other header is read, because a client can send any header that the proxy does not set.
#[derive(Clone, Debug)]
pub(super) enum ClientHeader {
    XForwardedFor,
    Forwarded,
    /// A header with a single address.
    Single(HeaderName),
}

/// The reason why an address cannot be read, such as "is sent more than once". Messages put the
/// name of the header before the reason.
pub(super) type HeaderFault = &'static str;

const REPEATED: HeaderFault = "is sent more than once";
/// The header has more than 32 entries or 4 KiB.
pub(super) const TOO_LONG: HeaderFault = "names more than 32 proxies, or is too long";
/// A quoted string does not end in its line.
pub(super) const OPEN_QUOTE: HeaderFault = "has a quoted string that does not end";
const NO_ADDRESS: HeaderFault = "has an entry without a valid address";

impl ClientHeader {
    pub(super) fn name(&self) -> &HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::Forwarded => &FORWARDED,
            Self::Single(name) => name,
        }
    }

    /// Returns `true` if the header is absent or blank.
    pub(super) fn is_blank(&self, headers: &HeaderMap) -> bool {
        headers.get_all(self.name()).iter().all(|line| is_blank(line.as_bytes()))
    }

    /// Returns the addresses in the header, from right to left.
    pub(super) fn addresses(
        &self,
        headers: &HeaderMap,
    ) -> impl Iterator<Item = Result<IpAddr, HeaderFault>> {
        let lines = headers.get_all(self.name());
        let separator = match self {
            Self::XForwardedFor => Separator::Comma,
            Self::Forwarded => Separator::UnquotedComma,
            Self::Single(_) => Separator::Line,
        };
        let is_repeated = matches!(self, Self::Single(_)) && lines.iter().nth(1).is_some();
        Entries::of(&lines, separator).map(move |entry| {
            let found = match self {
                _ if is_repeated => return Err(REPEATED),
                Self::Forwarded => forwarded::for_address(entry?),
                Self::XForwardedFor | Self::Single(_) => address(entry?),
            };
            found.ok_or(NO_ADDRESS)
        })
    }
}

/// The maximum length of an entry: an address with a zone and a port.
pub(super) const MAX_LENGTH: usize = 128;

/// Returns the address of an entry, without port, brackets and zone.
///
/// An IPv4-mapped address is converted to IPv4. Returns `None` for any other text, such as
/// `unknown`.
pub(super) fn address(entry: &[u8]) -> Option<IpAddr> {
    if entry.len() > MAX_LENGTH {
        return None;
    }
    let text = str::from_utf8(entry).ok()?;
    let address = match text.strip_prefix('[') {
        Some(text) => {
            let (inside, port) = text.split_once(']')?;
            is_port(port).then(|| v6(inside))??
        }
        None => match text.split_once(':') {
            None => IpAddr::V4(text.parse().ok()?),
            Some((host, port)) if !port.contains(':') => {
                let host: Ipv4Addr = host.parse().ok()?;
                is_number(port).then_some(host)?.into()
            }
            Some(_) => v6(text)?,
        },
    };
    Some(address.to_canonical())
}

/// Parses an IPv6 address and drops its zone, which has no meaning on other hosts.
fn v6(text: &str) -> Option<IpAddr> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(is_number)
}

fn is_number(port: &str) -> bool {
    // An integer parser also accepts a sign.
    port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entry: &str) -> Option<String> {
        address(entry.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn every_form_of_an_address_is_parsed() {
        for (spelling, address) in [
            ("203.0.113.9", "203.0.113.9"),
            ("203.0.113.9:4711", "203.0.113.9"),
            ("2001:db8::1", "2001:db8::1"),
            ("2001:DB8:0:0::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%eth0]:80", "fe80::1"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("::FFFF:cb00:7109", "203.0.113.9"),
            ("[::ffff:203.0.113.9]:80", "203.0.113.9"),
            ("64:ff9b::cb00:7109", "64:ff9b::cb00:7109"),
        ] {
            assert_eq!(read(spelling).as_deref(), Some(address), "{spelling}");
        }
    }

    #[test]
    fn other_text_is_not_an_address() {
        let others = [
            "",
            " ",
            "unknown",
            "_hidden",
            "010.0.0.1",
            "1.2.3",
            "0x7f.1",
            "1.2.3.4.5",
            "1.2.3.256",
            "203.0.113.9:",
            "203.0.113.9:+80",
            "203.0.113.9:65536",
            "203.0.113.9:a",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]443",
            "[2001:db8::1]:",
            "[]",
            "[203.0.113.9]",
            "203.0.113.9%eth0",
            "%eth0",
            "1::2::3",
            "203.0.113.9 198.51.100.1",
            "\"203.0.113.9\"",
            "localhost",
            "203.0.113.9/32",
            "::ffff:010.0.0.1",
        ];
        for other in others {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(address(b"203.0.113.9\xff"), None);
    }
}
