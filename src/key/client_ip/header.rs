//! Headers that contain the address of the client, and addresses as proxies write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, header::FORWARDED};

use super::{
    super::is_blank,
    entries::{Entries, HeaderFault, Separator},
};
use crate::head::Quotes;

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

const REPEATED: HeaderFault = "is sent more than once";
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
        headers
            .get_all(self.name())
            .iter()
            .all(|line| is_blank(line.as_bytes()))
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
                Self::Forwarded => for_address(entry?),
                Self::XForwardedFor | Self::Single(_) => address(entry?),
            };
            found.ok_or(NO_ADDRESS)
        })
    }
}

/// The maximum length of an entry: an address with a zone and a port.
const MAX_LENGTH: usize = 128;

/// Returns the address of an entry, without port, brackets and zone.
///
/// An IPv4-mapped address is converted to IPv4. Returns `None` for any other text, such as
/// `unknown`.
fn address(entry: &[u8]) -> Option<IpAddr> {
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

/// Returns the address in the `for` parameter of an element of `Forwarded` (RFC 7239, 4; RFC 9110,
/// 5.6), or `None` if the element is invalid.
///
/// Also accepts colons and brackets without quotes, and white space around `;` and `=`.
///
/// A client may send an opening quote, so that the text that the proxy appends becomes part of a string. The
/// client could then choose its address. Two errors prevent this:
///
/// - A string that does not end (`Commas::of`). So the client must get the proxy to append a quote, too.
/// - A backslash outside a string. A proxy that quotes a text of the client, such as `host="…"`, appends two
///   quotes: the first ends the string of the client, and the second begins one that does not end. With a
///   third quote in its text, the client could end that one. But the proxy escapes it with a backslash, which
///   stands outside a string now.
fn for_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let text = text.trim_ascii_start();
        if text.first().is_none_or(|byte| *byte == b';') {
            rest = text.get(1..);
            continue;
        }
        let equals = text.iter().position(|byte| *byte == b'=')?;
        let name = text[..equals].trim_ascii_end();
        let value = Value::parse(text[equals + 1..].trim_ascii_start())?;
        let is_for = name.eq_ignore_ascii_case(b"for");
        if !is_token(name) || (is_for && found.replace(value.text).is_some()) {
            return None;
        }
        rest = value.rest;
    }
    unescaped_address(found?)
}

/// A value of a parameter.
struct Value<'a> {
    /// The text, inside quotes with escapes.
    text: &'a [u8],
    /// The text after the next `;`.
    rest: Option<&'a [u8]>,
}

impl<'a> Value<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        if text.starts_with(b"\"") {
            Self::quoted(text)
        } else {
            Self::bare(text)
        }
    }

    fn bare(text: &'a [u8]) -> Option<Self> {
        let end = text.iter().position(|byte| *byte == b';');
        let end = end.unwrap_or(text.len());
        let bare = text[..end].trim_ascii_end();
        let is_invalid = |byte: &u8| b"\"\\,".contains(byte) || byte.is_ascii_whitespace();
        if bare.iter().any(is_invalid) {
            return None;
        }
        Some(Self {
            text: bare,
            rest: text.get(end + 1..),
        })
    }

    fn quoted(text: &'a [u8]) -> Option<Self> {
        let mut quotes = Quotes::default();
        let end = text.iter().position(|byte| {
            quotes.read(*byte);
            !quotes.is_open
        })?;
        let rest = match text[end + 1..].trim_ascii_start().split_first() {
            None => None,
            Some((b';', rest)) => Some(rest),
            Some(_) => return None,
        };
        Some(Self {
            text: &text[1..end],
            rest,
        })
    }
}

/// Returns the address in a text with escapes.
fn unescaped_address(text: &[u8]) -> Option<IpAddr> {
    let mut plain = [0; MAX_LENGTH];
    let mut length = 0;
    let mut escapes = false;
    for byte in text {
        escapes = *byte == b'\\' && !escapes;
        if !escapes {
            *plain.get_mut(length)? = *byte;
            length += 1;
        }
    }
    address(&plain[..length])
}

/// Returns `true` if the text is a token (RFC 9110, 5.6.2).
fn is_token(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    !text.is_empty()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
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

    fn read_element(element: &str) -> Option<String> {
        for_address(element.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn the_only_for_of_an_element_is_its_address() {
        for (element, address) in [
            ("for=203.0.113.9", "203.0.113.9"),
            ("for=203.0.113.9:4711", "203.0.113.9"),
            (r#"For="[2001:db8::1]:443""#, "2001:db8::1"),
            ("for=[2001:db8::1]", "2001:db8::1"),
            (
                " proto=https ; FOR = 203.0.113.9 ;by=10.0.0.1",
                "203.0.113.9",
            ),
            (";;for=203.0.113.9;", "203.0.113.9"),
            (r#"for="203\.0.113.9""#, "203.0.113.9"),
            (r#"for="\2\0\3.0.113.9\:80" ; by=_x"#, "203.0.113.9"),
            (r#"host="a,for=6.6.6.6;x=";for=203.0.113.9"#, "203.0.113.9"),
            (
                r#"for=203.0.113.9;host="a\";for=6.6.6.6;x=\"""#,
                "203.0.113.9",
            ),
            (r#"for=203.0.113.9;secret="";host="#, "203.0.113.9"),
        ] {
            assert_eq!(read_element(element).as_deref(), Some(address), "{element}");
        }
    }

    #[test]
    fn an_invalid_element_has_no_address() {
        for element in [
            "",
            ";",
            "for",
            "for=",
            "proto=https",
            "xfor=203.0.113.9",
            "=203.0.113.9",
            "for=203.0.113.9;for=198.51.100.7",
            r#"for=203.0.113.9;For="203.0.113.9""#,
            "for=203.0.113.9;secure",
            "for=203.0.113.9;a b=c",
            "for=203.0.113.9;host=a b",
            r#"for="203.0.113.9"#,
            r#"for=203.0.113.9""#,
            r#"for="203.0.113.9\""#,
            r#"for=203.0.113.9;host="a"b"#,
            r#"for=203.0.113.9;host="a""b""#,
            r#"for=203.0.113.9;host=a"b""#,
            r#"for=203.0.113.9;host=a\b"#,
            r#"for=203.0.113.9;"host"=a"#,
            r#"for=" 203.0.113.9""#,
            r#"for="203.0.113.9\\""#,
            r#"for="\"203.0.113.9\"""#,
        ] {
            assert_eq!(read_element(element), None, "{element}");
        }
        let long = format!(r#"for="\2{}""#, "0".repeat(1_000));
        assert_eq!(read_element(&long), None);
    }
}
