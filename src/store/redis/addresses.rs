//! The keys in Redis. Each account is in one cluster slot.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use crate::{fingerprint::FingerprintKey, key::Key, name::RuleName};

/// The version of the stored format. Different versions use different keys.
const VERSION: u32 = 2;

/// Builds keys `<prefix>:<version>:{<hash>}`. The hash is the 128-bit SipHash-2-4 of the rule's
/// name and the key.
#[derive(Clone)]
pub(super) struct Addresses {
    pub(super) prefix: String,
    pub(super) secret: FingerprintKey,
    pub(super) readable: bool,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { prefix: "sluice".into(), secret: FingerprintKey::PUBLIC, readable: false }
    }

    pub(super) fn account(&self, rule: RuleName, key: &Key) -> String {
        // The capacity is reserved in one allocation, because this code runs for every decision.
        let mut address = String::with_capacity(self.prefix.len() + 32);
        let _ = write!(address, "{}:{VERSION}:{{", self.prefix);
        if self.readable {
            push_readable(&mut address, rule, key);
        } else {
            // Names do not contain the separator byte.
            let hash = self.secret.hash128(&[rule.as_str().as_bytes(), &[0xff], &key.to_bytes()]);
            BASE64_URL_SAFE_NO_PAD.encode_string(hash, &mut address);
        }
        address.push('}');
        address
    }

    /// Returns the key of a sliding log's list, in the cluster slot of the account.
    pub(super) fn list(account: &str, quota_index: usize) -> String {
        format!("{account}:{quota_index}")
    }
}

/// Appends the rule and the key in plain text. Escapes all bytes except letters, digits and `-_.`.
fn push_readable(address: &mut String, rule: RuleName, key: &Key) {
    let escaped = |byte: &u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' => (*byte as char).to_string(),
        byte => format!("%{byte:02x}"),
    };
    let text = |bytes: &[u8]| bytes.iter().map(escaped).collect::<String>();
    let _ = write!(address, "{}:{}", text(rule.as_str().as_bytes()), text(&key.to_bytes()));
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
            assert_eq!(address.len(), "sluice:2:{}".len() + 22, "{address}");
            let inside = &address["sluice:2:{".len()..address.len() - 1];
            assert!(inside.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
        }
    }

    /// The expected value comes from another implementation of the hash.
    #[test]
    fn addresses_are_stable() {
        let secret = FingerprintKey::from(*b"sixteen bytes ..");
        let addresses = Addresses { secret, ..Addresses::new() };
        let address = addresses.account(RuleName::default(), &Key::from("alice"));
        assert_eq!(address, "sluice:2:{qy8D-8W5JMFQOhgV5NIJ5g}");
    }

    #[test]
    fn rules_keys_kinds_and_secrets_change_the_address() {
        let (one, two) =
            (RuleName::new("a").expect("a name"), RuleName::new("ab").expect("a name"));
        let mut addresses = Addresses::new();
        let plain = addresses.account(one, &Key::from("bc"));
        assert_ne!(plain, addresses.account(two, &Key::from("c")));
        let number = Key::from(7_u32);
        assert_ne!(addresses.account(one, &number), addresses.account(one, &Key::from("7")));
        addresses.secret = FingerprintKey::from(*b"sixteen bytes ..");
        assert_ne!(plain, addresses.account(one, &Key::from("bc")));
    }

    #[test]
    fn readable_addresses_escape_braces_of_keys() {
        let addresses = Addresses { readable: true, ..Addresses::new() };
        let address = addresses.account(RuleName::default(), &Key::from("}{ü"));
        assert_eq!(address, "sluice:2:{default:%02%7d%7b%c3%bc}");
    }
}
