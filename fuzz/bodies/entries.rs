//! The entries of a forwarding header, read by the parsers of the standard library.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The header to read.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Source {
    List,
    Forwarded,
    Single,
}

/// Returns the addresses in these lines, from the right. `None` for an entry that is not an
/// address.
pub(crate) fn addresses(source: Source, lines: &[&[u8]]) -> Vec<Option<IpAddr>> {
    if source == Source::Single {
        return match lines {
            [] => Vec::new(),
            [line] => vec![address(line.trim_ascii())],
            _ => vec![None],
        };
    }
    if source == Source::Forwarded {
        return forwarded(lines);
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
            found.push(address(entry));
        }
    }
    found
}

/// Returns the addresses of `Forwarded`, by its grammar: a whole line is read before any element of
/// it.
fn forwarded(lines: &[&[u8]]) -> Vec<Option<IpAddr>> {
    let (mut found, mut room) = (Vec::new(), 4_096_usize);
    for line in lines.iter().rev() {
        let tokens = tokens(line).filter(|_| line.len() <= room);
        room = room.saturating_sub(line.len() + 1);
        let Some(tokens) = tokens else {
            found.push(None);
            return found;
        };
        for element in tokens.split(|token| *token == Token::Byte(b',')).rev() {
            if found.len() == 32 {
                found.push(None);
                return found;
            }
            found.push(element_for(element).and_then(|text| address(&text)));
        }
    }
    found
}

/// An unescaped quoted string, or a byte outside of quotes.
#[derive(Clone, PartialEq)]
pub(crate) enum Token {
    Quoted(Vec<u8>),
    Byte(u8),
}

/// Splits a line into parts. `None` if a quoted string does not end.
pub(crate) fn tokens(line: &[u8]) -> Option<Vec<Token>> {
    let (mut tokens, mut bytes) = (Vec::new(), line.iter().copied());
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            tokens.push(Token::Byte(byte));
            continue;
        }
        let mut string = Vec::new();
        loop {
            match bytes.next()? {
                b'"' => break,
                b'\\' => string.push(bytes.next()?),
                byte => string.push(byte),
            }
        }
        tokens.push(Token::Quoted(string));
    }
    Some(tokens)
}

/// Returns the value of the only `for`, if every pair is `token = bare` or `token = quoted`.
fn element_for(element: &[Token]) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    for pair in element.split(|token| *token == Token::Byte(b';')) {
        let pair = trimmed(pair);
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|token| *token == Token::Byte(b'='))?;
        let name = bytes(trimmed(&pair[..equals]))?;
        let value = match trimmed(&pair[equals + 1..]) {
            [Token::Quoted(string)] => string.clone(),
            bare => bytes(bare).filter(|bare| !bare.iter().any(|byte| b"\\ \t".contains(byte)))?,
        };
        let is_mark = |byte: &u8| br#"(),/:;<=>?@[\]{}"#.contains(byte) || !byte.is_ascii_graphic();
        if name.is_empty() || name.iter().any(is_mark) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") {
            values.push(value);
        }
    }
    if values.len() == 1 { values.pop() } else { None }
}

fn trimmed(mut tokens: &[Token]) -> &[Token] {
    let blank = |token: &Token| matches!(token, Token::Byte(b' ' | b'\t'));
    while let [first, rest @ ..] = tokens
        && blank(first)
    {
        tokens = rest;
    }
    while let [rest @ .., last] = tokens
        && blank(last)
    {
        tokens = rest;
    }
    tokens
}

/// Returns the bytes, if nothing is quoted.
fn bytes(tokens: &[Token]) -> Option<Vec<u8>> {
    let byte = |token: &Token| match token {
        Token::Byte(byte) => Some(*byte),
        Token::Quoted(_) => None,
    };
    tokens.iter().map(byte).collect()
}

/// Reads an address, also with a port or in brackets, and for IPv6 with a zone.
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

/// Removes `%eth0` from an IPv6 address, in brackets or not.
fn without_zone(text: &str) -> String {
    let Some((address, zone)) = text.split_once('%') else { return text.to_owned() };
    let is_v6 = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    match (address.strip_prefix('['), zone.split_once(']')) {
        (Some(inside), Some((_, port))) if is_v6(inside) => format!("[{inside}]{port}"),
        (None, _) if is_v6(address) => address.to_owned(),
        _ => text.to_owned(),
    }
}
