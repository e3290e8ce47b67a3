//! Keys as JSON, in requests of operators.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ipnet::{IpNet, Ipv6Net};
use serde::Deserialize;
use serde_json::Value;

use crate::key::{Key, parse_network};

/// A key with its type. Plain text and lists are written without a type.
#[derive(Deserialize)]
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

const FORMS: &str = "text without outer white space, {\"address\": \"203.0.113.9\"} or a network \
                     with its prefix length, {\"number\": 7}, {\"bytes\": \"/w==\"} in base64, \
                     {\"everyone\": true}, {\"unidentified\": true}, or a list of keys";

/// Parses a key.
///
/// # Errors
///
/// Fails if `value` is not a key. The error contains the value and the fix.
pub(super) fn parse(value: &Value) -> Result<Key, String> {
    let typed = match value {
        Value::String(text) => TypedKey::Text(text.clone()),
        Value::Array(parts) if !parts.is_empty() => {
            let keys: Vec<_> = parts.iter().map(parse).collect::<Result<_, _>>()?;
            return Ok(Key::join(&keys));
        }
        other => TypedKey::deserialize(other)
            .map_err(|error| format!("key is {value}: {error}; give {FORMS}"))?,
    };
    // A blank key counts as no identity.
    typed
        .key()
        .filter(|key| !key.is_blank())
        .ok_or_else(|| format!("key is {value}; give {FORMS}"))
}

impl TypedKey {
    fn key(self) -> Option<Key> {
        match self {
            Self::Text(text) => (text.trim() == text).then(|| text.into()),
            Self::Bytes(text) => Some((&*STANDARD.decode(text).ok()?).into()),
            Self::Number(number) => parse_number(&number).map(Key::from),
            Self::Address(text) => parse_address(&text),
            Self::Everyone(is) => is.then(Key::everyone),
            Self::Unidentified(is) => is.then(Key::unidentified),
        }
    }
}

fn parse_number(value: &Value) -> Option<u128> {
    let text = value.to_string();
    // `parse` alone also accepts a sign.
    text.trim_matches('"')
        .parse()
        .ok()
        .filter(|_| !text.contains('+'))
}

/// Parses an address or a network, as `2001:db8::/48`. An address stands for its /32 or /64, as in
/// the extractors.
fn parse_address(text: &str) -> Option<Key> {
    let network = parse_network(text).filter(|network| network.prefix_len() > 0)?;
    let network = match network {
        IpNet::V6(one) if !text.contains('/') => Ipv6Net::new(one.addr(), 64).ok()?.into(),
        network => network,
    };
    Some(network.trunc().addr().into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use serde_json::json;

    use super::*;

    fn v4(text: &str) -> Key {
        text.parse::<Ipv4Addr>().expect("an address").into()
    }

    fn v6(text: &str, bits: u8) -> Key {
        let network = Ipv6Net::new(text.parse().expect("an address"), bits).expect("a length");
        network.trunc().addr().into()
    }

    #[test]
    fn a_typed_key_is_that_of_an_extractor() {
        for (written, key) in [
            (json!({ "everyone": true }), Key::everyone()),
            (json!({ "unidentified": true }), Key::unidentified()),
            (json!("127.0.0.1"), Key::from("127.0.0.1")),
            (json!({ "text": "alice" }), Key::from("alice")),
            (json!({ "bytes": "/w==" }), Key::from(&b"\xff"[..])),
            (json!({ "number": 7 }), Key::from(7_u32)),
            (
                json!({ "number": u128::MAX.to_string() }),
                Key::from(u128::MAX),
            ),
            (json!({ "address": "203.0.113.9" }), v4("203.0.113.9")),
            (json!({ "address": "203.0.113.9/24" }), v4("203.0.113.0")),
            (
                json!({ "address": "::ffff:203.0.113.9/120" }),
                v4("203.0.113.0"),
            ),
            (
                json!({ "address": "2001:db8:0:1::7" }),
                v6("2001:db8:0:1::", 64),
            ),
            (
                json!({ "address": "2001:db8:0:1::7/48" }),
                v6("2001:db8::", 48),
            ),
            (
                json!({ "address": "2001:db8:0:1::7/128" }),
                v6("2001:db8:0:1::7", 128),
            ),
            (
                json!(["a", ["b", { "number": 7 }]]),
                Key::join(&["a".into(), Key::join(&["b".into(), 7_u32.into()])]),
            ),
        ] {
            assert_eq!(parse(&written), Ok(key), "{written}");
        }
    }

    #[test]
    fn a_value_that_is_no_key_is_an_error_with_the_value_and_the_forms() {
        for (written, said) in [
            (json!(null), "key is null: "),
            (json!([]), "key is []: "),
            (json!({}), "key is {}: "),
            (json!(7), "key is 7: "),
            (
                json!({ "user": "alice" }),
                "unknown variant `user`, expected one of `text`, `bytes`",
            ),
            (
                json!({ "address": "::1", "number": 1 }),
                "key is {\"address\":\"::1\",\"number\":1}: ",
            ),
            (json!({ "address": 7 }), "expected a string"),
            (
                json!({ "address": "alice" }),
                "key is {\"address\":\"alice\"}; ",
            ),
            (json!({ "address": "010.0.0.1" }), "}; "),
            (json!({ "address": "10.0.0.1/33" }), "}; "),
            (json!({ "address": "10.0.0.1/0" }), "}; "),
            (json!({ "address": "10.0.0.1/+8" }), "}; "),
            (json!({ "address": "::1/129" }), "}; "),
            (json!({ "number": -1 }), "key is {\"number\":-1}; "),
            (json!({ "number": 1.5 }), "}; "),
            (json!({ "number": "+7" }), "}; "),
            (json!({ "number": format!("{}0", u128::MAX) }), "}; "),
            (json!({ "bytes": "/w" }), "}; "),
            (json!({ "everyone": false }), "}; "),
            (json!(""), "key is \"\"; "),
            (json!({ "bytes": "" }), "}; "),
            (json!("alice "), "key is \"alice \"; "),
            (json!({ "text": "\talice" }), "}; "),
            (json!(["a", ""]), "key is \"\"; "),
        ] {
            let error = parse(&written).expect_err("no key");
            assert!(error.contains(said), "{written}: {error}");
            assert!(error.ends_with(&format!("; give {FORMS}")), "{error}");
        }
    }
}
