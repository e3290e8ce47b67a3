//! Keys as JSON, in requests of operators and in the list of denied keys.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::key::{Key, Prefix, Tag, parse_network};

/// A key with its type. Plain text and lists are written without a type.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum TypedKey {
    Text(String),
    /// Bytes that are not text, in base64.
    Bytes(String),
    /// A number. From 2⁶⁴ on, text.
    Number(Value),
    /// An address, with an optional prefix length.
    Address(String),
    Everyone(bool),
    Unidentified(bool),
}

/// A parsed key, with a prefix length if the key is a network.
pub(super) type ParsedKey = (Key, Option<u8>);

/// Parses a key.
///
/// # Errors
///
/// Fails if `value` is not a key. The error contains the value and the fix.
pub(super) fn parse(value: &Value) -> Result<ParsedKey, String> {
    let invalid = |fix: &str| Err(format!("key is {value}; {fix}"));
    let typed = match value {
        Value::String(text) => Ok(TypedKey::Text(text.clone())),
        Value::Array(parts) if !parts.is_empty() => {
            let (keys, bits): (Vec<_>, Vec<_>) =
                parts.iter().map(parse).collect::<Result<_, _>>()?;
            return Ok((Key::join(&keys), bits.into_iter().flatten().min()));
        }
        other => TypedKey::deserialize(other),
    };
    let key = match typed {
        Ok(TypedKey::Text(text)) if text.trim() != text => {
            return invalid("remove the white space, or give {\"bytes\": ..} in base64");
        }
        Ok(TypedKey::Text(text)) => Key::from(text),
        Ok(TypedKey::Bytes(text)) => match STANDARD.decode(text) {
            Ok(bytes) => Key::from(&bytes[..]),
            Err(_) => return invalid("give base64 with its padding, as \"/w==\""),
        },
        Ok(TypedKey::Number(number)) => match parse_number(&number) {
            Some(number) => Key::from(number),
            None => return invalid("give a whole number, as 7, or from 2^64 on as text"),
        },
        Ok(TypedKey::Address(text)) => {
            let form = "give an address, as \"203.0.113.9\", or a network, as \"2001:db8::/48\"";
            return parse_address(&text).map_or_else(|| invalid(form), Ok);
        }
        Ok(TypedKey::Everyone(true)) => Key::everyone(),
        Ok(TypedKey::Unidentified(true)) => Key::unidentified(),
        Ok(TypedKey::Everyone(false) | TypedKey::Unidentified(false)) => {
            return invalid("give true");
        }
        Err(error) => {
            let forms = "give text, a list, or {\"address\": \"203.0.113.9\"}";
            return invalid(&format!("{error}; {forms}"));
        }
    };
    if key.is_blank() {
        return Err("key is a blank text, which counts as no identity; for the key that requests \
                    without an identity share, give {\"unidentified\": true}"
            .into());
    }
    Ok((key, None))
}

fn parse_number(value: &Value) -> Option<u128> {
    let text = value.to_string();
    let digits = value.as_str().unwrap_or(&text);
    // `parse` alone also accepts a sign.
    digits.parse().ok().filter(|_| !digits.starts_with('+'))
}

/// Parses an address or a network, as `2001:db8::/48`. An address stands for its /32 or /64, as in
/// the extractors.
fn parse_address(text: &str) -> Option<ParsedKey> {
    let network = parse_network(text).filter(|network| network.prefix_len() > 0)?;
    let bits = match network {
        IpNet::V6(_) if !text.contains('/') => 64,
        _ => network.prefix_len(),
    };
    let prefix = (bits < network.max_prefix_len()).then_some(bits);
    Some((Prefix::of(bits, bits).key(network.addr()), prefix))
}

/// Returns a key as JSON that [`parse`] reads. It contains the key in clear text.
pub(super) fn written(key: &Key) -> Value {
    json(key).unwrap_or_default()
}

fn json(key: &Key) -> Option<Value> {
    let (tag, bytes) = key.content()?;
    let typed = match tag {
        Tag::Everyone => TypedKey::Everyone(true),
        Tag::Unidentified => TypedKey::Unidentified(true),
        Tag::Text => match std::str::from_utf8(&bytes) {
            Ok(text) if text.trim() == text => TypedKey::Text(text.to_owned()),
            _ => TypedKey::Bytes(STANDARD.encode(bytes)),
        },
        Tag::Number => {
            let number = u128::from_le_bytes(bytes.try_into().ok()?);
            TypedKey::Number(number.to_string().into())
        }
        Tag::V4 => TypedKey::Address(Ipv4Addr::from(*bytes.first_chunk()?).to_string()),
        Tag::V6 => {
            let address = Ipv6Addr::from(*bytes.first_chunk::<16>()?);
            // Without a prefix, it would stand for its /64.
            let prefix = if address.to_bits() << 64 == 0 { "" } else { "/128" };
            TypedKey::Address(format!("{address}{prefix}"))
        }
        Tag::Parts => return Some(Key::split(&bytes)?.iter().map(written).collect()),
    };
    Some(json!(typed))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn v6(parts: [u16; 4]) -> Key {
        let [a, b, c, d] = parts;
        Prefix::of(64, 64).key(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
    }

    #[test]
    fn a_written_key_is_parsed_to_the_same_key() {
        for key in [
            Key::everyone(),
            Key::unidentified(),
            Key::from("alice"),
            Key::from("127.0.0.1"),
            Key::from(&b"\xff"[..]),
            Key::from(&b"alice "[..]),
            Key::from("long".repeat(100)),
            Key::from(7_u32),
            Key::from(u128::MAX),
            Ipv4Addr::new(203, 0, 113, 9).into(),
            v6([0x2001, 0xdb8, 0, 1]),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1).into(),
            Key::join(&["a".into(), Key::join(&["b".repeat(50).into(), 7_u32.into()])]),
        ] {
            let written = written(&key);
            assert_eq!(parse(&written).map(|(key, _)| key), Ok(key), "{written}");
        }
    }

    #[test]
    fn an_address_has_its_prefix() {
        let prefix = |text: &str| parse(&json!({ "address": text })).expect("a key").1;
        assert_eq!(prefix("203.0.113.9"), None);
        assert_eq!(prefix("203.0.113.9/24"), Some(24));
        assert_eq!(prefix("::ffff:203.0.113.9"), None);
        assert_eq!(prefix("::ffff:203.0.113.9/120"), Some(24));
        assert_eq!(prefix("2001:db8::1"), Some(64));
        assert_eq!(prefix("2001:db8::1/48"), Some(48));
        assert_eq!(prefix("2001:db8::1/128"), None);
        let pair = json!(["GET", { "address": "2001:db8::1/48" }]);
        assert_eq!(parse(&pair).expect("a key").1, Some(48));
    }

    #[test]
    fn a_value_that_is_no_key_is_an_error_with_a_fix() {
        for (written, said) in [
            (json!(null), "key is null; "),
            (json!([]), "key is []; "),
            (json!({}), "key is {}; "),
            (json!(7), "key is 7; "),
            (json!({ "user": "alice" }), "unknown variant `user`, expected one of `text`, `bytes`"),
            (json!({ "address": "::1", "number": 1 }), "give text, a list, or {\"address\""),
            (json!({ "address": 7 }), "expected a string"),
            (json!({ "address": "alice" }), "give an address, as \"203.0.113.9\""),
            (json!({ "address": "010.0.0.1" }), "give an address"),
            (json!({ "address": "10.0.0.1/33" }), "or a network, as"),
            (json!({ "address": "10.0.0.1/0" }), "or a network, as"),
            (json!({ "address": "10.0.0.1/+8" }), "or a network, as"),
            (json!({ "address": "::1/129" }), "or a network, as"),
            (json!({ "number": -1 }), "give a whole number"),
            (json!({ "number": 1.5 }), "give a whole number"),
            (json!({ "number": "+7" }), "give a whole number"),
            (json!({ "number": format!("{}0", u128::MAX) }), "give a whole number"),
            (json!({ "bytes": "/w" }), "give base64 with its padding"),
            (json!({ "everyone": false }), "give true"),
            (json!(""), "key is a blank text"),
            (json!({ "bytes": "" }), "key is a blank text"),
            (json!("alice "), "remove the white space"),
            (json!({ "text": "\talice" }), "remove the white space"),
            (json!(["a", ""]), "key is a blank text"),
        ] {
            let error = parse(&written).expect_err("no key");
            assert!(error.contains(said), "{written}: {error}");
        }
    }
}
