//! Names of the keys in Redis. All keys of an account are in one hash slot.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use crate::{fingerprint::FingerprintKey, key::Key, name::RuleName};

/// The version of the stored format. Different versions use different keys.
const VERSION: &str = "4";
/// The length of a hash in base64.
const HASH: usize = 22;

/// The separator of a rule's name and a key. Names do not contain this byte.
const SEPARATOR: &[u8] = &[0xff];

/// Builds keys `<prefix>:<version>:{<hash>}`. The hash is the 128-bit SipHash-2-4 of the rule's
/// name and the key.
#[derive(Clone)]
pub(crate) struct Addresses {
    pub(crate) prefix: String,
    pub(crate) secret: FingerprintKey,
    pub(crate) readable: bool,
    /// `true` if the hash tag is the hash of the key alone: `<prefix>:<version>:{<key>}:<rule>`.
    pub(crate) tagged: bool,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        let secret = FingerprintKey::PUBLIC;
        Self {
            prefix: "sluice".into(),
            secret,
            readable: false,
            tagged: false,
        }
    }

    /// Returns the key of the set of processes that run.
    pub(crate) fn instances(&self) -> String {
        format!("{}:{VERSION}:instances", self.prefix)
    }

    pub(crate) fn account(&self, rule: RuleName, key: &Key) -> String {
        // The capacity is reserved in one allocation, because this code runs for every decision.
        let mut address = String::with_capacity(self.prefix.len() + 2 * HASH + 8);
        [&self.prefix, ":", VERSION, ":{"]
            .iter()
            .for_each(|part| address.push_str(part));
        let rule = rule.as_str().as_bytes();
        let key = &*key.small_bytes();
        if self.tagged {
            self.push(&mut address, &[key]);
            address.push_str("}:");
            self.push(&mut address, &[rule]);
        } else {
            self.push(&mut address, &[rule, SEPARATOR, key]);
            address.push('}');
        }
        address
    }

    /// Appends the hash of these bytes, or the bytes themselves in readable keys.
    fn push(&self, address: &mut String, parts: &[&[u8]]) {
        if self.readable {
            parts.iter().for_each(|part| push_readable(address, part));
        } else {
            BASE64_URL_SAFE_NO_PAD.encode_string(self.secret.hash128(parts), address);
        }
    }
}

/// Appends a name in plain text, or `:` for the separator. Escapes all bytes except letters, digits
/// and `-_.`.
fn push_readable(address: &mut String, name: &[u8]) {
    if name == SEPARATOR {
        return address.push(':');
    }
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            address.push(byte.into());
        } else {
            let _ = write!(address, "%{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_fixed_length_and_no_user_input() {
        let addresses = Addresses::new();
        let (rule, long) = (RuleName::default(), "x".repeat(10_000));
        for key in ["", "}", "{a}b", "a\r\nb\0*", &long] {
            let address = addresses.account(rule, &Key::from(key));
            assert_eq!(address.len(), "sluice:4:{}".len() + 22, "{address}");
            let inside = &address["sluice:4:{".len()..address.len() - 1];
            assert!(
                inside
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
            );
        }
    }

    /// The expected value comes from another implementation of the hash.
    #[test]
    fn addresses_are_stable() {
        let secret = FingerprintKey::from(*b"sixteen bytes ..");
        let addresses = Addresses {
            secret,
            ..Addresses::new()
        };
        let address = addresses.account(RuleName::default(), &Key::from("alice"));
        assert_eq!(address, "sluice:4:{qy8D-8W5JMFQOhgV5NIJ5g}");
    }

    #[test]
    fn tagged_addresses_of_a_key_differ_only_behind_the_tag() {
        let secret = FingerprintKey::from(*b"sixteen bytes ..");
        let tagged = Addresses {
            secret,
            tagged: true,
            ..Addresses::new()
        };
        let rules = ["a", "b"].map(|name| RuleName::new(name).expect("a name"));
        let [one, two] = rules.map(|rule| tagged.account(rule, &Key::from("alice")));
        // The values come from another implementation of the hash.
        assert_eq!(
            one,
            "sluice:4:{Twi7oovdGfTO1zlU5uh99g}:bEcF_hrqLjKGHDCOIpWQYw"
        );
        assert_eq!(
            two,
            "sluice:4:{Twi7oovdGfTO1zlU5uh99g}:fqREEgE3oRmkpKEpuzaU_w"
        );
        let other = tagged.account(rules[0], &Key::from("bob"));
        assert_eq!(
            one.split_once("}:").map(|it| it.1),
            other.split_once("}:").map(|it| it.1)
        );
        let readable = Addresses {
            readable: true,
            ..tagged
        };
        assert_eq!(
            readable.account(rules[0], &Key::from("alice")),
            "sluice:4:{%02alice}:a"
        );
    }

    #[test]
    fn rules_keys_kinds_and_secrets_change_the_address() {
        let (one, two) = (
            RuleName::new("a").expect("a name"),
            RuleName::new("ab").expect("a name"),
        );
        let mut addresses = Addresses::new();
        let plain = addresses.account(one, &Key::from("bc"));
        assert_ne!(plain, addresses.account(two, &Key::from("c")));
        let number = Key::from(7_u32);
        assert_ne!(
            addresses.account(one, &number),
            addresses.account(one, &Key::from("7"))
        );
        addresses.secret = FingerprintKey::from(*b"sixteen bytes ..");
        assert_ne!(plain, addresses.account(one, &Key::from("bc")));
    }

    #[test]
    fn readable_addresses_escape_braces_of_keys() {
        let addresses = Addresses {
            readable: true,
            ..Addresses::new()
        };
        let address = addresses.account(RuleName::default(), &Key::from("}{ü"));
        assert_eq!(address, "sluice:4:{default:%02%7d%7b%c3%bc}");
    }
}
