//! Keys in Redis: of fixed length, with no byte of the user's, one slot of a cluster each.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use crate::{fingerprint::Secret, key::Key, name::RuleName};

/// Of what is kept under the keys: another version finds nothing of this one.
const VERSION: u32 = 1;

/// `<prefix>:<version>:{<hash>}`, the hash being SipHash-2-4 of 128 bits over the rule's name and
/// the key.
#[derive(Clone)]
pub(super) struct Addresses {
    pub(super) prefix: String,
    pub(super) secret: Secret,
    pub(super) readable: bool,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { prefix: "sluice".into(), secret: Secret::PUBLIC, readable: false }
    }

    pub(super) fn account(&self, rule: RuleName, key: &Key) -> String {
        // made for every decision: in one piece
        let mut address = String::with_capacity(self.prefix.len() + 32);
        let _ = write!(address, "{}:{VERSION}:{{", self.prefix);
        if self.readable {
            spell(&mut address, rule, key);
        } else {
            // no name has the byte between them
            let hash = self.secret.hash128(&[rule.as_str().as_bytes(), &[0xff], &key.to_bytes()]);
            BASE64_URL_SAFE_NO_PAD.encode_string(hash, &mut address);
        }
        address.push('}');
        address
    }

    /// The list of a log at `place` of the account: in the same slot.
    pub(super) fn list(account: &str, place: usize) -> String {
        format!("{account}:{place}")
    }
}

/// In clear, but for bytes that would end the braces or a line.
fn spell(address: &mut String, rule: RuleName, key: &Key) {
    let escaped = |byte: &u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' => (*byte as char).to_string(),
        byte => format!("%{byte:02x}"),
    };
    let spelt = |bytes: &[u8]| bytes.iter().map(escaped).collect::<String>();
    let _ = write!(address, "{}:{}", spelt(rule.as_str().as_bytes()), spelt(&key.to_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_fixed_length_and_no_byte_of_the_users() {
        let addresses = Addresses::new();
        let (rule, long) = (RuleName::default(), "x".repeat(10_000));
        for key in ["", "}", "{a}b", "a\r\nb\0*", &long] {
            let address = addresses.account(rule, &Key::from(key));
            assert_eq!(address.len(), "sluice:1:{}".len() + 22, "{address}");
            let inside = &address["sluice:1:{".len()..address.len() - 1];
            assert!(inside.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
        }
    }

    /// Or a new version finds nothing of the one before. By another implementation of the hash.
    #[test]
    fn an_address_stays_what_it_is() {
        let secret = Secret::from(*b"sixteen bytes ..");
        let addresses = Addresses { secret, ..Addresses::new() };
        let address = addresses.account(RuleName::default(), &Key::from("alice"));
        assert_eq!(address, "sluice:1:{qy8D-8W5JMFQOhgV5NIJ5g}");
    }

    #[test]
    fn rules_keys_kinds_and_secrets_are_told_apart() {
        let (one, two) =
            (RuleName::new("a").expect("a name"), RuleName::new("ab").expect("a name"));
        let mut addresses = Addresses::new();
        let plain = addresses.account(one, &Key::from("bc"));
        assert_ne!(plain, addresses.account(two, &Key::from("c")));
        let number = Key::from(7_u32);
        assert_ne!(addresses.account(one, &number), addresses.account(one, &Key::from("7")));
        addresses.secret = Secret::from(*b"sixteen bytes ..");
        assert_ne!(plain, addresses.account(one, &Key::from("bc")));
    }

    #[test]
    fn readable_addresses_keep_their_own_braces() {
        let addresses = Addresses { readable: true, ..Addresses::new() };
        let address = addresses.account(RuleName::default(), &Key::from("}{ü"));
        assert_eq!(address, "sluice:1:{default:%02%7d%7b%c3%bc}");
    }
}
