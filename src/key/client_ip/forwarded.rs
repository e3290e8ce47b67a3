//! Parses the header `Forwarded` (RFC 7239, 4; RFC 9110, 5.6).
//!
//! Elements are read from right to left. Each line is first split from left to right, because
//! quotes can be matched only in that direction.
//!
//! A client may send an opening quote, so that the text of the proxy becomes part of a string. The
//! client could then choose its address. Two checks prevent this:
//!
//! - A string that does not end is an error.
//! - A client can add an escaped quote, so that the string ends. A backslash outside a string is
//!   therefore an error.

use std::net::IpAddr;

use super::header::{self, MAX_LENGTH};

/// Returns the address in the `for` parameter of an element, or `None` if the element is invalid.
///
/// Also accepts colons and brackets without quotes, and white space around `;` and `=`.
pub(super) fn for_address(element: &[u8]) -> Option<IpAddr> {
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
        let (value, behind) = value(text[equals + 1..].trim_ascii_start())?;
        let is_for = name.eq_ignore_ascii_case(b"for");
        if !is_token(name) || (is_for && found.replace(value).is_some()) {
            return None;
        }
        rest = behind;
    }
    unescaped_address(found?)
}

/// Parses the value of a parameter. Returns the text inside its quotes, with escapes, and the text
/// after the next `;`.
fn value(text: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let Some(inside) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
        let bare = text[..end].trim_ascii_end();
        let stray = |byte: &u8| matches!(byte, b'"' | b'\\' | b',') || byte.is_ascii_whitespace();
        return (!bare.iter().any(stray)).then(|| (bare, text.get(end + 1..)));
    };
    let mut escaped = false;
    let end = inside.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    match inside[end + 1..].trim_ascii_start().split_first() {
        None => Some((&inside[..end], None)),
        Some((b';', rest)) => Some((&inside[..end], Some(rest))),
        Some(_) => None,
    }
}

/// Returns the address in a text with escapes.
fn unescaped_address(text: &[u8]) -> Option<IpAddr> {
    let (mut plain, mut length, mut escaped) = ([0; MAX_LENGTH], 0, false);
    for byte in text {
        escaped = *byte == b'\\' && !escaped;
        if !escaped {
            *plain.get_mut(length)? = *byte;
            length += 1;
        }
    }
    header::address(&plain[..length])
}

/// Returns `true` if the text is a token (RFC 9110, 5.6.2).
fn is_token(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(element: &str) -> Option<String> {
        for_address(element.as_bytes()).map(|address| address.to_string())
    }

    #[test]
    fn the_only_for_of_an_element_is_its_address() {
        for (element, address) in [
            ("for=203.0.113.9", "203.0.113.9"),
            ("for=203.0.113.9:4711", "203.0.113.9"),
            (r#"For="[2001:db8::1]:443""#, "2001:db8::1"),
            ("for=[2001:db8::1]", "2001:db8::1"),
            (" proto=https ; FOR = 203.0.113.9 ;by=10.0.0.1", "203.0.113.9"),
            (";;for=203.0.113.9;", "203.0.113.9"),
            (r#"for="203\.0.113.9""#, "203.0.113.9"),
            (r#"for="\2\0\3.0.113.9\:80" ; by=_x"#, "203.0.113.9"),
            (r#"host="a,for=6.6.6.6;x=";for=203.0.113.9"#, "203.0.113.9"),
            (r#"for=203.0.113.9;host="a\";for=6.6.6.6;x=\"""#, "203.0.113.9"),
            (r#"for=203.0.113.9;secret="";host="#, "203.0.113.9"),
        ] {
            assert_eq!(read(element).as_deref(), Some(address), "{element}");
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
            assert_eq!(read(element), None, "{element}");
        }
        let long = format!(r#"for="\2{}""#, "0".repeat(1_000));
        assert_eq!(read(&long), None);
    }
}
