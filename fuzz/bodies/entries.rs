//! The entries of a forwarding header, by the parsers of the standard library.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Which header is read.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Source {
    List,
    Forwarded,
    Single,
}

/// The addresses that these lines tell, from the right; `None` for what is no address.
pub(crate) fn addresses(source: Source, lines: &[&[u8]]) -> Vec<Option<IpAddr>> {
    if source == Source::Single {
        return match lines {
            [] => Vec::new(),
            [line] => vec![address(line.trim_ascii())],
            _ => vec![None],
        };
    }
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for line in lines.iter().rev() {
        let entries: Vec<_> = line.split(|byte| *byte == b',').collect();
        for (at, entry) in entries.iter().enumerate().rev() {
            let length = entry.len() + usize::from(at > 0);
            if found.len() == 32 || looked_at + length > 4_096 {
                found.push(None);
                return found;
            }
            looked_at = 4_096.min(looked_at + entry.len() + 1);
            let entry = entry.trim_ascii();
            found.push(match source {
                Source::Forwarded => value(entry).and_then(address),
                _ => address(entry),
            });
        }
    }
    found
}

/// An address, one with a port, in brackets, and any of IPv6 with a zone.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(entry).ok().filter(|text| text.len() <= 128)?;
    let text = without_zone(text);
    let bare = || text.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bracketed = || {
        let inside = text.strip_prefix('[')?.strip_suffix(']')?;
        inside.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    };
    bare().or_else(with_port).or_else(bracketed).map(|address: IpAddr| address.to_canonical())
}

/// Cuts `%eth0` off an IPv6 address, in brackets or not.
fn without_zone(text: &str) -> String {
    let Some((address, zone)) = text.split_once('%') else { return text.to_owned() };
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    match (address.strip_prefix('['), zone.split_once(']')) {
        (Some(inside), Some((_, port))) if is_v6(inside) => format!("[{inside}]{port}"),
        (None, _) if is_v6(address) => address.to_owned(),
        _ => text.to_owned(),
    }
}

/// The value of the only `for` of an element, without its quotes.
fn value(element: &[u8]) -> Option<&[u8]> {
    let mut values = Vec::new();
    for pair in element.split(|byte| *byte == b';') {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let (name, value) = (halves.next()?.trim_ascii(), halves.next());
        if name.eq_ignore_ascii_case(b"for") {
            values.extend(value.map(<[u8]>::trim_ascii));
        }
    }
    let [value] = values[..] else { return None };
    let quoted = value.len() > 1 && value.starts_with(b"\"") && value.ends_with(b"\"");
    Some(if quoted { &value[1..value.len() - 1] } else { value })
}
