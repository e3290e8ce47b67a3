//! Keys and kinds of keys as text and as JSON, on the admin page and in its API.

use std::{borrow::Cow, net::IpAddr, string::FromUtf8Error};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    key::{Key, KeyContent, KeyKind, Prefix},
    rule::RuleName,
};

/// A parsed key, with a prefix length if the key is an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedKey {
    pub(super) key: Key,
    pub(super) prefix: Option<u8>,
}

impl From<Key> for ParsedKey {
    fn from(key: Key) -> Self {
        Self { key, prefix: None }
    }
}

/// The reason why a JSON value is not a key of the wanted kind.
enum ParseError {
    /// The value is a key of another kind.
    OtherKind,
    /// The value is invalid.
    Invalid(String),
}

/// Parses a key of a rule whose keys have the kind `kind`.
///
/// # Errors
///
/// Fails if `value` is not a key of this kind, or if `value` can be read as several keys.
pub(super) fn parse(value: &Value, kind: &KeyKind, rule: RuleName) -> Result<ParsedKey, String> {
    let mut found: Vec<(ParsedKey, KeyKind)> = Vec::new();
    let mut invalid = None;
    for kind in alternatives(kind).iter() {
        match parse_kind(value, kind, rule) {
            Ok(parsed) if found.iter().any(|(other, _)| *other == parsed) => {}
            Ok(parsed) => found.push((parsed, kind.clone())),
            Err(ParseError::Invalid(why)) => invalid = invalid.or(Some(why)),
            Err(ParseError::OtherKind) => {}
        }
    }
    match (found.len(), invalid) {
        (1, _) => Ok(found.remove(0).0),
        (0, Some(why)) => Err(why),
        (0, None) => Err(format!(
            "key is {value}; rule {rule:?} counts {}: send {}",
            kind_text(kind),
            forms(kind)
        )),
        _ => {
            let written = |(_, kind): &(ParsedKey, KeyKind)| unambiguous(value, kind).to_string();
            let written: Vec<_> = found.iter().map(written).collect();
            Err(format!(
                "key is {value}, which rule {rule:?} may count in {} ways: send {}",
                found.len(),
                written.join(" or ")
            ))
        }
    }
}

fn parse_kind(value: &Value, kind: &KeyKind, rule: RuleName) -> Result<ParsedKey, ParseError> {
    let invalid = |name: &str, value: &Value, fix: &str| {
        ParseError::Invalid(format!("{name} of key is {value}; {fix}"))
    };
    let text = |name: &str, value: &'_ Value| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(invalid(name, value, "give text")),
    };
    match (kind, field(value)) {
        (KeyKind::Text, None) => match value {
            Value::String(text) => trimmed_key(text),
            _ => Err(ParseError::OtherKind),
        },
        (KeyKind::Text, Some(("text", value))) => trimmed_key(&text("text", value)?),
        (KeyKind::Text, Some(("bytes", value))) => match STANDARD.decode(text("bytes", value)?) {
            Ok(bytes) => text_key(&bytes),
            Err(_) => Err(invalid("bytes", value, "give base64 with its padding, as \"/w==\"")),
        },
        (KeyKind::Number, None) => number(value).ok_or(ParseError::OtherKind),
        (KeyKind::Number, Some(("number", value))) => number(value).ok_or_else(|| {
            let fix = "give a whole number of at most 128 bits, as 7, or above 64 bits as text";
            invalid("number", value, fix)
        }),
        (KeyKind::Address { .. }, None) => match value {
            // Other text may be a key of another kind.
            Value::String(text) => match address(text, kind) {
                Err(fix) if text.contains('/') => Err(invalid("address", value, &fix)),
                parsed => parsed.map_err(|_| ParseError::OtherKind),
            },
            _ => Err(ParseError::OtherKind),
        },
        (KeyKind::Address { .. } | KeyKind::Any, Some((name @ ("address" | "ip"), value))) => {
            address(&text(name, value)?, kind).map_err(|fix| invalid(name, value, &fix))
        }
        (KeyKind::Everyone, Some((name @ "everyone", value))) => match value {
            Value::Bool(true) => Ok(Key::everyone().into()),
            _ => Err(invalid(name, value, "give true")),
        },
        (KeyKind::Unidentified, Some((name @ "unidentified", value))) => match value {
            Value::Bool(true) => Ok(Key::unidentified().into()),
            _ => Err(invalid(name, value, "give true")),
        },
        (KeyKind::Tuple(kinds), None) => match value {
            Value::Array(values) if values.len() == kinds.len() => {
                join(values.iter().zip(kinds), rule)
            }
            _ => Err(ParseError::OtherKind),
        },
        (KeyKind::Any, None) => match value {
            Value::String(text) => address(text, kind).map_err(|_| ParseError::OtherKind),
            // The parts may also have any kind.
            Value::Array(values) if !values.is_empty() => {
                join(values.iter().map(|value| (value, &KeyKind::Any)), rule)
            }
            _ => Err(ParseError::OtherKind),
        },
        _ => Err(ParseError::OtherKind),
    }
}

/// Returns the field of a JSON object that has exactly one field.
fn field(value: &Value) -> Option<(&str, &Value)> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.iter().next().map(|(name, value)| (name.as_str(), value))
}

fn join<'a>(
    parts: impl Iterator<Item = (&'a Value, &'a KeyKind)>,
    rule: RuleName,
) -> Result<ParsedKey, ParseError> {
    let parts = parts.map(|(value, kind)| parse(value, kind, rule));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(ParseError::Invalid)?;
    let prefix = parts.iter().filter_map(|part| part.prefix).min();
    let keys: Vec<_> = parts.into_iter().map(|part| part.key).collect();
    Ok(ParsedKey { key: Key::join(&keys), prefix })
}

/// Parses text. White space around the text is an error, because header values never have it.
fn trimmed_key(text: &str) -> Result<ParsedKey, ParseError> {
    if text.trim() != text && !text.trim().is_empty() {
        return Err(ParseError::Invalid(format!(
            "key is {text:?}, with white space around it; remove that, or give {{ \"bytes\": .. }}"
        )));
    }
    text_key(text.as_bytes())
}

/// Creates a key from text. Blank text is an error.
fn text_key(bytes: &[u8]) -> Result<ParsedKey, ParseError> {
    let key = Key::from(bytes);
    if key.is_blank() {
        return Err(ParseError::Invalid(
            "key is a blank text, which counts as no identity; for the key that requests without \
             an identity share, give { \"unidentified\": true }"
                .into(),
        ));
    }
    Ok(key.into())
}

/// Returns a key as JSON that [`parse`] reads. It contains the key in clear text.
pub(super) fn written(key: &Key) -> Value {
    match key.content() {
        Some(KeyContent::Everyone) => json!({ "everyone": true }),
        Some(KeyContent::Unidentified) => json!({ "unidentified": true }),
        Some(KeyContent::Text(bytes)) => match String::from_utf8(bytes) {
            Ok(text) if text.trim() == text => json!({ "text": text }),
            other => {
                let bytes = other.map_or_else(FromUtf8Error::into_bytes, String::into_bytes);
                json!({ "bytes": STANDARD.encode(bytes) })
            }
        },
        Some(KeyContent::Number(number)) => json!({ "number": number.to_string() }),
        Some(KeyContent::Address(address)) => json!({ "address": address }),
        Some(KeyContent::Parts(parts)) => parts.iter().map(written).collect(),
        None => Value::Null,
    }
}

fn number(value: &Value) -> Option<ParsedKey> {
    let number = match value {
        Value::Number(number) => number.as_u64().map(u128::from),
        // Larger numbers are floats in JSON. `parse` alone also accepts a sign.
        Value::String(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok()
        }
        _ => None,
    };
    number.map(|number| Key::from(number).into())
}

/// Parses an address, with an optional prefix length, as in `2001:db8::/48`.
///
/// The prefix length must equal that of the rule. For a rule without a prefix length, the default
/// is /32 for IPv4 and /64 for IPv6.
fn address(text: &str, kind: &KeyKind) -> Result<ParsedKey, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| "give an address, as \"203.0.113.9\" or \"2001:db8::1\"".to_owned())?;
    // Extractors also convert an IPv4-mapped address first.
    let address = address.to_canonical();
    let width = if address.is_ipv4() { 32 } else { 128 };
    let given = match bits.map(str::parse::<u8>) {
        None => None,
        // `parse` alone also accepts a sign.
        Some(Ok(given)) if (1..=width).contains(&given) && !text.contains('+') => Some(given),
        Some(_) => return Err(format!("give 1 to {width} bits after the /")),
    };
    let counted = match (kind, address) {
        (KeyKind::Address { ipv4_prefix, .. }, IpAddr::V4(_)) => Some((*ipv4_prefix).min(width)),
        (KeyKind::Address { ipv6_prefix, .. }, IpAddr::V6(_)) => Some((*ipv6_prefix).min(width)),
        _ => None,
    };
    let bits = match (counted, given) {
        (Some(counted), Some(given)) if counted != given => {
            return Err(format!("the rule counts by /{counted}; give that, or the address alone"));
        }
        (Some(bits), _) | (None, Some(bits)) => bits,
        (None, None) if address.is_ipv4() => 32,
        (None, None) => 64,
    };
    let key = Prefix::of(bits, bits).key(address);
    Ok(ParsedKey { key, prefix: (bits < width).then_some(bits) })
}

/// Returns the kinds that a key of kind `kind` may have.
fn alternatives(kind: &KeyKind) -> Cow<'_, [KeyKind]> {
    const ALL: &[KeyKind] =
        &[KeyKind::Text, KeyKind::Number, KeyKind::Any, KeyKind::Everyone, KeyKind::Unidentified];
    match kind {
        KeyKind::Any => ALL.into(),
        KeyKind::OneOf(kinds) => {
            kinds.iter().flat_map(|kind| alternatives(kind).into_owned()).collect()
        }
        kind => std::slice::from_ref(kind).into(),
    }
}

/// Returns the kind as a plural noun, for messages such as "counts addresses".
fn kind_text(kind: &KeyKind) -> String {
    let all = |kinds: &[KeyKind], between: &str| {
        kinds.iter().map(kind_text).collect::<Vec<_>>().join(between)
    };
    match kind {
        KeyKind::Any => "keys of any kind".into(),
        KeyKind::Text => "text".into(),
        KeyKind::Number => "numbers".into(),
        KeyKind::Address { .. } => "addresses".into(),
        KeyKind::Everyone => "all requests together".into(),
        KeyKind::Unidentified => "requests without an identity together".into(),
        KeyKind::OneOf(kinds) => all(kinds, " or "),
        KeyKind::Tuple(kinds) => format!("lists of {}", all(kinds, " and ")),
    }
}

/// Returns example keys of the kind.
fn forms(kind: &KeyKind) -> String {
    if *kind == KeyKind::Any {
        return "text, {\"address\": ..}, {\"number\": ..}, {\"bytes\": ..}, {\"everyone\": true}, \
                {\"unidentified\": true} or a list of these"
            .into();
    }
    let forms = alternatives(kind);
    let forms: Vec<_> = forms.iter().map(|kind| example(kind).to_string()).collect();
    forms.join(" or ")
}

fn example(kind: &KeyKind) -> Value {
    match kind {
        KeyKind::Any | KeyKind::Text => json!("alice"),
        KeyKind::Number => json!({ "number": 7 }),
        KeyKind::Address { .. } => json!({ "address": "203.0.113.9" }),
        KeyKind::Everyone => json!({ "everyone": true }),
        KeyKind::Unidentified => json!({ "unidentified": true }),
        KeyKind::OneOf(kinds) => kinds.first().map_or(Value::Null, example),
        KeyKind::Tuple(kinds) => kinds.iter().map(example).collect(),
    }
}

/// Returns the value in an unambiguous form, such as `{"text": "7"}`.
fn unambiguous(value: &Value, kind: &KeyKind) -> Value {
    match (value, kind) {
        (Value::String(_), KeyKind::Text) => json!({ "text": value }),
        (Value::String(_) | Value::Number(_), KeyKind::Number) => json!({ "number": value }),
        (Value::String(_), KeyKind::Any | KeyKind::Address { .. }) => json!({ "address": value }),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use serde_json::json;

    use super::*;

    const ADDRESS: KeyKind = KeyKind::Address { ipv4_prefix: 32, ipv6_prefix: 64 };
    const SITE: KeyKind = KeyKind::Address { ipv4_prefix: 24, ipv6_prefix: 48 };

    fn parsed(value: &Value, kind: &KeyKind) -> Result<ParsedKey, String> {
        parse(value, kind, RuleName::new("user").expect("a name"))
    }

    fn v6(segments: [u16; 4]) -> Key {
        let [a, b, c, d] = segments;
        Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
    }

    #[test]
    fn a_parsed_key_equals_the_key_of_its_extractor() {
        let pair = || KeyKind::Tuple(vec![KeyKind::Text, KeyKind::Number]);
        let joined = Key::join(&["a".into(), 7_u32.into()]);
        for (written, kind, made) in [
            (json!("alice"), KeyKind::Text, Key::from("alice")),
            (json!({ "text": "127.0.0.1" }), KeyKind::Text, Key::from("127.0.0.1")),
            (json!("127.0.0.1"), KeyKind::Text, Key::from("127.0.0.1")),
            (json!("7"), KeyKind::Text, Key::from("7")),
            (json!({ "bytes": "/w==" }), KeyKind::Text, Key::from(&b"\xff"[..])),
            (json!({ "bytes": "YWxpY2U=" }), KeyKind::Text, Key::from("alice")),
            (json!({ "bytes": "YWxpY2Ug" }), KeyKind::Text, Key::from("alice ")),
            (json!("127.0.0.1"), ADDRESS, Ipv4Addr::LOCALHOST.into()),
            (json!({ "address": "203.0.113.9" }), ADDRESS, Ipv4Addr::new(203, 0, 113, 9).into()),
            (json!({ "ip": "203.0.113.9/32" }), ADDRESS, Ipv4Addr::new(203, 0, 113, 9).into()),
            (json!({ "ip": "::ffff:203.0.113.9" }), SITE, Ipv4Addr::new(203, 0, 113, 0).into()),
            (json!("2001:db8:0:1:2::3"), ADDRESS, v6([0x2001, 0xdb8, 0, 1])),
            (json!("2001:db8:0:1:2::3/64"), ADDRESS, v6([0x2001, 0xdb8, 0, 1])),
            (json!("2001:db8:0:1:2::3"), SITE, v6([0x2001, 0xdb8, 0, 0])),
            (json!({ "number": 7 }), KeyKind::Number, 7_u32.into()),
            (json!(7), KeyKind::Number, 7_u32.into()),
            (json!("7"), KeyKind::Number, 7_u32.into()),
            (json!({ "number": u64::MAX }), KeyKind::Number, u64::MAX.into()),
            (json!({ "number": u128::MAX.to_string() }), KeyKind::Number, u128::MAX.into()),
            (json!({ "everyone": true }), KeyKind::Everyone, Key::everyone()),
            (json!({ "unidentified": true }), KeyKind::Unidentified, Key::unidentified()),
            (json!(["a", 7]), pair(), joined.clone()),
            (json!("alice"), KeyKind::Text.or(ADDRESS), Key::from("alice")),
            (json!("::1"), KeyKind::Number.or(ADDRESS), v6([0, 0, 0, 0])),
            (json!(["a", { "number": 7 }]), KeyKind::Any, joined),
            (json!({ "ip": "2001:db8::/32" }), KeyKind::Any, v6([0x2001, 0xdb8, 0, 0])),
            (json!({ "address": "2001:db8:0:1:2::3" }), KeyKind::Any, v6([0x2001, 0xdb8, 0, 1])),
            (json!("alice"), KeyKind::Any, Key::from("alice")),
            (
                json!([["a", "b"], "c"]),
                KeyKind::Any,
                Key::join(&[Key::join(&["a".into(), "b".into()]), "c".into()]),
            ),
        ] {
            assert_eq!(parsed(&written, &kind).map(|parsed| parsed.key), Ok(made), "{written}");
        }
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
            Key::join(&["a".into(), Key::join(&["b".repeat(50).into(), 7_u32.into()])]),
        ] {
            let written = written(&key);
            assert_eq!(
                parsed(&written, &KeyKind::Any).map(|parsed| parsed.key),
                Ok(key),
                "{written}"
            );
        }
    }

    #[test]
    fn an_address_has_the_prefix_of_its_extractor() {
        let prefix = |written: Value, kind: &KeyKind| parsed(&written, kind).expect("a key").prefix;
        assert_eq!(prefix(json!("203.0.113.9"), &ADDRESS), None);
        assert_eq!(prefix(json!("203.0.113.9"), &SITE), Some(24));
        assert_eq!(prefix(json!("2001:db8::1"), &ADDRESS), Some(64));
        assert_eq!(prefix(json!("2001:db8::1"), &SITE), Some(48));
        assert_eq!(prefix(json!({ "ip": "2001:db8::1/128" }), &KeyKind::Any), None);
        let pair = KeyKind::Tuple(vec![KeyKind::Text, SITE]);
        assert_eq!(prefix(json!(["GET", "2001:db8::1"]), &pair), Some(48));
        // An extractor may report prefixes that are out of range.
        let odd = KeyKind::Address { ipv4_prefix: 0, ipv6_prefix: 255 };
        assert_eq!(parsed(&json!("10.0.0.1"), &odd).map(|parsed| parsed.prefix), Ok(Some(0)));
        assert_eq!(parsed(&json!("::1"), &odd).map(|parsed| parsed.prefix), Ok(None));
    }

    #[test]
    fn a_key_that_no_request_can_have_is_an_error_with_a_fix() {
        let pair = || KeyKind::Tuple(vec![KeyKind::Text, ADDRESS]);
        for (written, kind, said) in [
            (
                json!({ "text": "127.0.0.1" }),
                ADDRESS,
                "key is {\"text\":\"127.0.0.1\"}; rule \"user\" counts addresses: send \
                 {\"address\":\"203.0.113.9\"}",
            ),
            (json!("alice"), ADDRESS, "key is \"alice\"; rule \"user\" counts addresses: send"),
            (json!({ "ip": "::1" }), KeyKind::Text, "rule \"user\" counts text: send \"alice\""),
            (json!({ "number": 7 }), KeyKind::Text, "counts text: send \"alice\""),
            (json!(7), KeyKind::Text, "key is 7; rule \"user\" counts text: send \"alice\""),
            (json!("alice"), KeyKind::Number, "counts numbers: send {\"number\":7}"),
            (json!("x"), KeyKind::Everyone, "counts all requests together: send {\"everyone\""),
            (json!({ "unidentified": true }), ADDRESS, "counts addresses: send"),
            (json!({ "everyone": true }), ADDRESS, "counts addresses: send"),
            (json!("a"), pair(), "lists of text and addresses: send [\"alice\",{\"address\":"),
            (json!(["a"]), pair(), "lists of text and addresses: send"),
            (json!(["a", "b"]), pair(), "key is \"b\"; rule \"user\" counts addresses: send"),
            (
                json!("10.0.0.1"),
                KeyKind::Text.or(ADDRESS),
                "key is \"10.0.0.1\", which rule \"user\" may count in 2 ways: send \
                 {\"text\":\"10.0.0.1\"} or {\"address\":\"10.0.0.1\"}",
            ),
            (json!("7"), KeyKind::Any, "in 2 ways: send {\"text\":\"7\"} or {\"number\":\"7\"}"),
            (json!("::1"), KeyKind::Any, "send {\"text\":\"::1\"} or {\"address\":\"::1\"}"),
            (json!(null), KeyKind::Any, "key is null; rule \"user\" counts keys of any kind: send"),
            (json!([]), KeyKind::Any, "key is []; rule"),
            (json!({}), KeyKind::Any, "key is {}; rule"),
            (json!({ "ip": "::1", "number": 1 }), KeyKind::Any, "rule \"user\" counts keys of any"),
            (json!({ "user": "alice" }), KeyKind::Any, "send text, {\"address\": ..}"),
            (json!({ "ip": 7 }), ADDRESS, "ip of key is 7; give text"),
            (json!({ "ip": "010.0.0.1" }), ADDRESS, "ip of key is \"010.0.0.1\"; give an address"),
            (json!({ "address": "10.0.0.1/33" }), KeyKind::Any, "give 1 to 32 bits after the /"),
            (json!({ "ip": "10.0.0.1/0" }), KeyKind::Any, "give 1 to 32 bits"),
            (json!({ "ip": "10.0.0.1/+8" }), KeyKind::Any, "give 1 to 32 bits"),
            (json!("::1/129"), ADDRESS, "address of key is \"::1/129\"; give 1 to 128 bits"),
            (
                json!({ "address": "2001:db8::/48" }),
                ADDRESS,
                "the rule counts by /64; give that, or the address alone",
            ),
            (json!({ "ip": "10.0.0.0/8" }), ADDRESS, "the rule counts by /32"),
            (json!({ "number": -1 }), KeyKind::Number, "number of key is -1; give a whole number"),
            (json!({ "number": 1.5 }), KeyKind::Number, "give a whole number of at most 128 bits"),
            (json!({ "number": "" }), KeyKind::Number, "at most 128 bits"),
            (json!({ "number": "+7" }), KeyKind::Number, "at most 128 bits"),
            (json!({ "number": format!("{}0", u128::MAX) }), KeyKind::Any, "at most 128 bits"),
            (json!({ "bytes": "/w" }), KeyKind::Text, "bytes of key is \"/w\"; give base64 with"),
            (json!({ "everyone": false }), KeyKind::Any, "everyone of key is false; give true"),
            (json!(" \t"), KeyKind::Text, "key is a blank text"),
            (json!("alice "), KeyKind::Text, "is \"alice \", with white space around it; remove"),
            (json!({ "text": "\talice" }), KeyKind::Any, "with white space around it; remove that"),
            (json!(["a", ""]), KeyKind::Any, "key is a blank text"),
            (json!({ "bytes": "" }), KeyKind::Text, "key is a blank text"),
        ] {
            let error = parsed(&written, &kind).expect_err("no key");
            assert!(error.contains(said), "{written}: {error}");
        }
    }
}
