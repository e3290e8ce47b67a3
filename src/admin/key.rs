//! Keys as operators write them: each names the account that an extractor charges.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::key::{Key, Prefix};

const FIX: &str = "give text, { \"ip\": .. }, { \"number\": .. }, { \"bytes\": .. }, \
                   { \"everyone\": true }, { \"unidentified\": true } or a list of such";

/// The key, or what is wrong with it and the fix.
pub(super) fn read(value: &Value) -> Result<Key, String> {
    match value {
        Value::String(text) => text_key(text.as_bytes()),
        Value::Array(parts) if !parts.is_empty() => {
            let parts = parts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            Ok(Key::join(&parts))
        }
        Value::Object(fields) => match fields.iter().next() {
            Some((kind, value)) if fields.len() == 1 => of_kind(kind, value),
            _ => Err(format!("key has {} fields; {FIX}", fields.len())),
        },
        other => Err(format!("key is {other}; {FIX}")),
    }
}

fn of_kind(kind: &str, value: &Value) -> Result<Key, String> {
    let wrong = |fix: &str| format!("{kind} of key is {value}; {fix}");
    let text = || value.as_str().ok_or_else(|| wrong("give text"));
    match (kind, value) {
        ("ip", _) => address(text()?).map_err(|fix| wrong(&fix)),
        ("number", Value::Number(number)) if number.is_u64() => {
            Ok(number.as_u64().unwrap_or_default().into())
        }
        // of what is above 64 bits JSON makes a fraction
        ("number", Value::String(digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let number = digits.parse::<u128>();
            number.map(Key::from).map_err(|_| wrong("give a whole number of at most 128 bits"))
        }
        ("number", _) => Err(wrong("give a whole number, as 7, or above 64 bits as text")),
        ("bytes", _) => match STANDARD.decode(text()?) {
            Ok(bytes) => text_key(&bytes),
            Err(_) => Err(wrong("give base64 with its padding, as \"/w==\"")),
        },
        ("everyone", Value::Bool(true)) => Ok(Key::everyone()),
        ("unidentified", Value::Bool(true)) => Ok(Key::unidentified()),
        ("everyone" | "unidentified", _) => Err(wrong("give true")),
        _ => Err(format!("{kind:?} (set to {value}) is no kind of key; {FIX}")),
    }
}

/// No request is charged under a blank text: it counts as missing.
fn text_key(bytes: &[u8]) -> Result<Key, String> {
    let key = Key::from(bytes);
    if key.is_blank() {
        return Err("key is a blank text, which counts as no identity; what requests without one \
                    share is { \"unidentified\": true }"
            .into());
    }
    Ok(key)
}

/// An address, by so many bits as `PeerIp` and `ClientIp` take unless told, or as stand behind `/`.
fn address(text: &str) -> Result<Key, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| "give an address, as \"203.0.113.9\" or \"2001:db8::1/48\"".to_owned())?;
    // as they are unfolded before they are masked
    let address = address.to_canonical();
    let Some(bits) = bits else { return Ok(Prefix::USUAL.key(address)) };
    let most = if address.is_ipv4() { 32 } else { 128 };
    // a parser of integers would take a sign
    let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
    match bits.parse() {
        Ok(bits) if digits && (1..=most).contains(&bits) => Ok(match address {
            IpAddr::V4(_) => Prefix::USUAL.v4(bits),
            IpAddr::V6(_) => Prefix::USUAL.v6(bits),
        }
        .key(address)),
        _ => Err(format!("give 1 to {most} bits behind the /")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_is_the_key_that_its_extractor_makes() {
        let site = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0);
        let of = |value: Value| read(&value).expect("a key");
        for (written, made) in [
            (json!("alice"), Key::from("alice")),
            (json!({ "ip": "203.0.113.9" }), Ipv4Addr::new(203, 0, 113, 9).into()),
            (json!({ "ip": "203.0.113.9/24" }), Ipv4Addr::new(203, 0, 113, 0).into()),
            (json!({ "ip": "::ffff:203.0.113.9" }), Ipv4Addr::new(203, 0, 113, 9).into()),
            (json!({ "ip": "::ffff:203.0.113.9/8" }), Ipv4Addr::new(203, 0, 0, 0).into()),
            (json!({ "ip": "2001:db8:0:1:2::3" }), site.into()),
            (json!({ "ip": "2001:db8:0:1:2::3/64" }), site.into()),
            (json!({ "ip": "2001:db8:0:1::/128" }), site.into()),
            (json!({ "number": 7 }), 7_u32.into()),
            (json!({ "number": u64::MAX }), u64::MAX.into()),
            (json!({ "number": u128::MAX.to_string() }), u128::MAX.into()),
            (json!({ "bytes": "/w==" }), Key::from(&b"\xff"[..])),
            (json!({ "bytes": "YWxpY2U=" }), Key::from("alice")),
            (json!({ "everyone": true }), Key::everyone()),
            (json!({ "unidentified": true }), Key::unidentified()),
            (json!(["a", { "number": 7 }]), Key::join(&["a".into(), 7_u32.into()])),
            (
                json!([["a", "b"], "c"]),
                Key::join(&[Key::join(&["a".into(), "b".into()]), "c".into()]),
            ),
        ] {
            assert_eq!(of(written.clone()), made, "{written}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_fix() {
        for (written, said) in [
            (json!(7), "key is 7; give text, { \"ip\": .. }"),
            (json!(null), "key is null; give"),
            (json!([]), "key is []; give"),
            (json!({}), "key has 0 fields; give"),
            (json!({ "ip": "::1", "number": 1 }), "key has 2 fields; give"),
            (json!({ "user": "alice" }), "\"user\" (set to \"alice\") is no kind of key; give"),
            (json!({ "ip": 7 }), "ip of key is 7; give text"),
            (json!({ "ip": "010.0.0.1" }), "ip of key is \"010.0.0.1\"; give an address"),
            (json!({ "ip": "10.0.0.1/33" }), "give 1 to 32 bits behind the /"),
            (json!({ "ip": "10.0.0.1/0" }), "give 1 to 32 bits"),
            (json!({ "ip": "10.0.0.1/+8" }), "give 1 to 32 bits"),
            (json!({ "ip": "::1/129" }), "give 1 to 128 bits"),
            (json!({ "number": -1 }), "number of key is -1; give a whole number, as 7"),
            (json!({ "number": 1.5 }), "give a whole number, as 7"),
            (json!({ "number": "" }), "at most 128 bits"),
            (json!({ "number": format!("{}0", u128::MAX) }), "at most 128 bits"),
            (json!({ "bytes": "/w" }), "bytes of key is \"/w\"; give base64 with its padding"),
            (json!({ "everyone": false }), "everyone of key is false; give true"),
            (json!(" \t"), "key is a blank text"),
            (json!(["a", ""]), "key is a blank text"),
            (json!({ "bytes": "" }), "key is a blank text"),
        ] {
            let error = read(&written).expect_err("no key");
            assert!(error.contains(said), "{written}: {error}");
        }
    }
}
