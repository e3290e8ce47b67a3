//! Keys as operators write them: each names an account that the extractor of a rule charges.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::kind;
use crate::{
    key::{Key, KeyKind, Prefix},
    name::RuleName,
};

/// A key, and how many leading bits of its address count where that is fewer than all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) key: Key,
    pub(super) prefix: Option<u8>,
}

impl From<Key> for Named {
    fn from(key: Key) -> Self {
        Self { key, prefix: None }
    }
}

/// Why a value is no key of a kind.
enum Wrong {
    /// The value is of another kind.
    Kind,
    /// The value cannot be used.
    Value(String),
}

/// Reads a key of the rule, whose keys are of this kind.
///
/// # Errors
///
/// When no request of the rule has such a key, or it may be one of several.
pub(super) fn read(value: &Value, kind: &KeyKind, rule: RuleName) -> Result<Named, String> {
    let mut found: Vec<(Named, KeyKind)> = Vec::new();
    let mut wrong = None;
    for kind in kind::alternatives(kind).iter() {
        match of_kind(value, kind, rule) {
            Ok(named) if found.iter().any(|(other, _)| *other == named) => {}
            Ok(named) => found.push((named, kind.clone())),
            Err(Wrong::Value(why)) => wrong = wrong.or(Some(why)),
            Err(Wrong::Kind) => {}
        }
    }
    match (found.len(), wrong) {
        (1, _) => Ok(found.remove(0).0),
        (0, Some(why)) => Err(why),
        (0, None) => Err(format!(
            "key is {value}; rule {rule:?} counts {}: send {}",
            kind::text(kind),
            kind::forms(kind)
        )),
        _ => {
            let written = |(_, kind): &(Named, KeyKind)| kind::written(value, kind).to_string();
            let written: Vec<_> = found.iter().map(written).collect();
            Err(format!(
                "key is {value}, which rule {rule:?} may count in {} ways: send {}",
                found.len(),
                written.join(" or ")
            ))
        }
    }
}

fn of_kind(value: &Value, kind: &KeyKind, rule: RuleName) -> Result<Named, Wrong> {
    let wrong = |name: &str, value: &Value, fix: &str| {
        Wrong::Value(format!("{name} of key is {value}; {fix}"))
    };
    let text = |name: &str, value: &'_ Value| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong(name, value, "give text")),
    };
    match (kind, field(value)) {
        (KeyKind::Text, None) => match value {
            Value::String(text) => trimmed_key(text),
            _ => Err(Wrong::Kind),
        },
        (KeyKind::Text, Some(("text", value))) => trimmed_key(&text("text", value)?),
        (KeyKind::Text, Some(("bytes", value))) => match STANDARD.decode(text("bytes", value)?) {
            Ok(bytes) => text_key(&bytes),
            Err(_) => Err(wrong("bytes", value, "give base64 with its padding, as \"/w==\"")),
        },
        (KeyKind::Number, None) => number(value).ok_or(Wrong::Kind),
        (KeyKind::Number, Some(("number", value))) => number(value).ok_or_else(|| {
            let fix = "give a whole number of at most 128 bits, as 7, or above 64 bits as text";
            wrong("number", value, fix)
        }),
        (KeyKind::Address { .. }, None) => match value {
            // text that is no address may be of another kind
            Value::String(text) => match address(text, kind) {
                Err(fix) if text.contains('/') => Err(wrong("address", value, &fix)),
                read => read.map_err(|_| Wrong::Kind),
            },
            _ => Err(Wrong::Kind),
        },
        (KeyKind::Address { .. } | KeyKind::Any, Some((name @ ("address" | "ip"), value))) => {
            address(&text(name, value)?, kind).map_err(|fix| wrong(name, value, &fix))
        }
        (KeyKind::Everyone, Some((name @ "everyone", value))) => match value {
            Value::Bool(true) => Ok(Key::everyone().into()),
            _ => Err(wrong(name, value, "give true")),
        },
        (KeyKind::Unidentified, Some((name @ "unidentified", value))) => match value {
            Value::Bool(true) => Ok(Key::unidentified().into()),
            _ => Err(wrong(name, value, "give true")),
        },
        (KeyKind::Tuple(kinds), None) => match value {
            Value::Array(values) if values.len() == kinds.len() => {
                join(values.iter().zip(kinds), rule)
            }
            _ => Err(Wrong::Kind),
        },
        (KeyKind::Any, None) => match value {
            Value::String(text) => address(text, kind).map_err(|_| Wrong::Kind),
            // its parts are of any kind, too
            Value::Array(values) if !values.is_empty() => {
                join(values.iter().map(|value| (value, &KeyKind::Any)), rule)
            }
            _ => Err(Wrong::Kind),
        },
        _ => Err(Wrong::Kind),
    }
}

/// The one field of an object.
fn field(value: &Value) -> Option<(&str, &Value)> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.iter().next().map(|(name, value)| (name.as_str(), value))
}

fn join<'a>(
    parts: impl Iterator<Item = (&'a Value, &'a KeyKind)>,
    rule: RuleName,
) -> Result<Named, Wrong> {
    let parts = parts.map(|(value, kind)| read(value, kind, rule));
    let parts = parts.collect::<Result<Vec<_>, _>>().map_err(Wrong::Value)?;
    let prefix = parts.iter().filter_map(|part| part.prefix).min();
    let keys: Vec<_> = parts.into_iter().map(|part| part.key).collect();
    Ok(Named { key: Key::join(&keys), prefix })
}

/// No header has white space around it; what else may is given as bytes.
fn trimmed_key(text: &str) -> Result<Named, Wrong> {
    if text.trim() != text && !text.trim().is_empty() {
        return Err(Wrong::Value(format!(
            "key is {text:?}, with white space around it; drop that, or give {{ \"bytes\": .. }}"
        )));
    }
    text_key(text.as_bytes())
}

/// No request is charged under a blank text: it counts as missing.
fn text_key(bytes: &[u8]) -> Result<Named, Wrong> {
    let key = Key::from(bytes);
    if key.is_blank() {
        return Err(Wrong::Value(
            "key is a blank text, which counts as no identity; what requests without one share is \
             { \"unidentified\": true }"
                .into(),
        ));
    }
    Ok(key.into())
}

fn number(value: &Value) -> Option<Named> {
    let number = match value {
        Value::Number(number) => number.as_u64().map(u128::from),
        // of what is above 64 bits JSON makes a fraction; a parser of integers would take a sign
        Value::String(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok()
        }
        _ => None,
    };
    number.map(|number| Key::from(number).into())
}

/// An address as the extractor masks it. A prefix behind `/` must be the extractor's, where that is
/// known; where it is not, it is that of `PeerIp` and `ClientIp`, or the one given.
fn address(text: &str, kind: &KeyKind) -> Result<Named, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| "give an address, as \"203.0.113.9\" or \"2001:db8::1\"".to_owned())?;
    // as they are unfolded before they are masked
    let address = address.to_canonical();
    let most = if address.is_ipv4() { 32 } else { 128 };
    let given = match bits.map(str::parse::<u8>) {
        None => None,
        // a parser of integers would take a sign
        Some(Ok(given)) if (1..=most).contains(&given) && !text.contains('+') => Some(given),
        Some(_) => return Err(format!("give 1 to {most} bits behind the /")),
    };
    let counted = match (kind, address) {
        (KeyKind::Address { ipv4_prefix, .. }, IpAddr::V4(_)) => Some((*ipv4_prefix).min(most)),
        (KeyKind::Address { ipv6_prefix, .. }, IpAddr::V6(_)) => Some((*ipv6_prefix).min(most)),
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
    Ok(Named { key, prefix: (bits < most).then_some(bits) })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use serde_json::json;

    use super::*;

    const ADDRESS: KeyKind = KeyKind::Address { ipv4_prefix: 32, ipv6_prefix: 64 };
    const SITE: KeyKind = KeyKind::Address { ipv4_prefix: 24, ipv6_prefix: 48 };

    fn named(value: &Value, kind: &KeyKind) -> Result<Named, String> {
        read(value, kind, RuleName::new("user").expect("a name"))
    }

    fn v6(segments: [u16; 4]) -> Key {
        let [a, b, c, d] = segments;
        Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
    }

    #[test]
    fn a_key_is_the_one_that_an_extractor_of_its_kind_makes() {
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
            assert_eq!(named(&written, &kind).map(|named| named.key), Ok(made), "{written}");
        }
    }

    #[test]
    fn the_bits_that_count_are_those_of_the_extractor() {
        let prefix = |written: Value, kind: &KeyKind| named(&written, kind).expect("a key").prefix;
        assert_eq!(prefix(json!("203.0.113.9"), &ADDRESS), None);
        assert_eq!(prefix(json!("203.0.113.9"), &SITE), Some(24));
        assert_eq!(prefix(json!("2001:db8::1"), &ADDRESS), Some(64));
        assert_eq!(prefix(json!("2001:db8::1"), &SITE), Some(48));
        assert_eq!(prefix(json!({ "ip": "2001:db8::1/128" }), &KeyKind::Any), None);
        let pair = KeyKind::Tuple(vec![KeyKind::Text, SITE]);
        assert_eq!(prefix(json!(["GET", "2001:db8::1"]), &pair), Some(48));
        // an extractor may describe what there is not
        let odd = KeyKind::Address { ipv4_prefix: 0, ipv6_prefix: 255 };
        assert_eq!(named(&json!("10.0.0.1"), &odd).map(|named| named.prefix), Ok(Some(0)));
        assert_eq!(named(&json!("::1"), &odd).map(|named| named.prefix), Ok(None));
    }

    #[test]
    fn a_key_that_no_request_has_is_an_error_with_the_fix() {
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
            (json!({ "address": "10.0.0.1/33" }), KeyKind::Any, "give 1 to 32 bits behind the /"),
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
            (json!("alice "), KeyKind::Text, "key is \"alice \", with white space around it; drop"),
            (json!({ "text": "\talice" }), KeyKind::Any, "with white space around it; drop that"),
            (json!(["a", ""]), KeyKind::Any, "key is a blank text"),
            (json!({ "bytes": "" }), KeyKind::Text, "key is a blank text"),
        ] {
            let error = named(&written, &kind).expect_err("no key");
            assert!(error.contains(said), "{written}: {error}");
        }
    }
}
