//! The client's address from header lines, compared with a definition without shortcuts.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request, header::FORWARDED};
use tower_sluice::{AccessList, ClientIp, Key, KeyExtractor, RequestHead};

use super::{
    entries::{Source, addresses},
    input::Input,
    networks::{Network, masked},
};

const LIST: HeaderName = HeaderName::from_static("x-forwarded-for");
const SINGLE: HeaderName = HeaderName::from_static("x-real-ip");
/// More lines than an HTTP parser accepts.
const MOST_LINES: usize = 200;

enum Trusted {
    Networks(Vec<Network>),
    Hops(usize),
    Anybody,
}

#[derive(Debug, PartialEq)]
enum Unknown {
    Peer,
    Missing,
    Unreadable,
}

/// Reads lines of `bytes`: the trusted peers (`a` any, `h2` two hops, else networks) and, as the
/// last byte, the header (`f` Forwarded, `s` a single address, else X-Forwarded-For); networks
/// separated by spaces; the peer; then the lines of the header.
pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (how, networks, peer) = (input.text(), input.text(), input.text().parse::<IpAddr>().ok());
    let networks: Vec<_> = networks.split(' ').filter(|text| !text.is_empty()).collect();
    let lines = input.rest().split(|byte| *byte == b'\n').take(MOST_LINES);
    let lines = lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).collect::<Vec<_>>();

    let Some((client, trusted)) = client(how, &networks) else { return };
    let (client, source, name) = match how.as_bytes().last() {
        Some(b'f') => (client.forwarded(), Source::Forwarded, FORWARDED),
        Some(b's') => (client.header(SINGLE), Source::Single, SINGLE),
        _ => (client, Source::List, LIST),
    };
    let mut parts = Request::new(()).into_parts().0;
    if let Some(peer) = peer {
        parts.extensions.insert(SocketAddr::new(peer, 1));
    }
    for line in &lines {
        parts.headers.append(&name, line.clone());
    }

    let lines: Vec<_> = lines.iter().map(HeaderValue::as_bytes).collect();
    let expected = expected(&trusted, source, peer, &lines);
    let found = client.address(&parts).map_err(|error| {
        assert!(error.status().is_client_error() || error.status().is_server_error());
        match error.status().as_u16() {
            500 => Unknown::Peer,
            _ if error.is_missing() => Unknown::Missing,
            _ => Unknown::Unreadable,
        }
    });
    assert_eq!(found, expected);
    assert_eq!(client.extract(&RequestHead::from(&parts)).ok().flatten(), expected.ok().map(key));
}

/// Returns the key of an address: the whole address for IPv4, the /64 for IPv6.
fn key(address: IpAddr) -> Key {
    match masked(address, if address.is_ipv4() { 32 } else { 64 }) {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Returns the extractor for valid settings. Checks that the crate and the definition agree on
/// invalid ones.
fn client(how: &str, networks: &[&str]) -> Option<(ClientIp, Trusted)> {
    match how.as_bytes().first() {
        Some(b'a') => Some((ClientIp::behind_any_peer_dangerous(), Trusted::Anybody)),
        Some(b'h') => {
            let digits = how[1..].trim_end_matches(|c: char| !c.is_ascii_digit());
            let hops: u8 = digits.parse().ok()?;
            let hops = Some(hops).filter(|hops| (1..=32).contains(hops))?;
            Some((ClientIp::hops(hops), Trusted::Hops(hops.into())))
        }
        _ => {
            let read: Option<Vec<_>> = networks.iter().map(|text| Network::read(text)).collect();
            assert_eq!(AccessList::networks(networks).is_ok(), read.is_some(), "{networks:?}");
            let read = read.filter(|read| !read.iter().any(Network::holds_all));
            let read = read.filter(|_| !networks.iter().any(|text| is_bare(text)));
            let client = ClientIp::behind(networks);
            assert_eq!(client.is_ok(), read.is_some(), "{networks:?}");
            Some((client.ok()?, Trusted::Networks(read?)))
        }
    }
}

/// Returns `true` for the address of a network, without its prefix length.
fn is_bare(text: &str) -> bool {
    match text.trim().parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => address.octets()[3] == 0,
        Ok(IpAddr::V6(address)) => address.segments()[4..] == [0; 4],
        Err(_) => false,
    }
}

fn expected(
    trusted: &Trusted,
    source: Source,
    peer: Option<IpAddr>,
    lines: &[&[u8]],
) -> Result<IpAddr, Unknown> {
    let entries = addresses(source, lines);
    let peer = peer.map(|peer| peer.to_canonical()).ok_or(Unknown::Peer);
    match trusted {
        Trusted::Networks(networks) => {
            let mut client = peer?;
            for address in entries {
                if !networks.iter().any(|network| network.holds(client)) {
                    break;
                }
                client = address.ok_or(Unknown::Unreadable)?;
            }
            Ok(client)
        }
        Trusted::Hops(_) if lines.iter().all(|line| line.trim_ascii().is_empty()) => {
            Err(Unknown::Missing)
        }
        Trusted::Hops(hops) => {
            let hops = if source == Source::Single { 1 } else { *hops };
            let nearer = entries.iter().take(hops).position(Option::is_none);
            match (nearer, entries.get(hops - 1)) {
                (Some(_), _) => Err(Unknown::Unreadable),
                (None, Some(Some(client))) => Ok(*client),
                (None, _) => Err(Unknown::Missing),
            }
        }
        Trusted::Anybody => match entries.iter().position(Option::is_none) {
            Some(_) => Err(Unknown::Unreadable),
            None => entries.last().copied().flatten().map_or(peer, Ok),
        },
    }
}
