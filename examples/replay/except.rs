//! Keys that are exempt from all rules, as by an allow list.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv6Addr},
};

use tower_sluice::{ClientIp, Key, KeyExtractor};

use crate::{
    rule::{AnyKey, KeyFlag, RuleFlag},
    simulate::Call,
};

/// The exempt keys of each rule.
pub(crate) struct Except(Vec<(AnyKey, HashSet<Key>)>);

impl Except {
    /// # Errors
    ///
    /// Fails for a text that no rule has as a key.
    pub(crate) fn of(
        given: &[String],
        rules: &[RuleFlag],
        client: Option<&ClientIp>,
    ) -> Result<Self, String> {
        let useless = |text: &&String| rules.iter().all(|rule| key(text, &rule.key).is_none());
        if let Some(text) = given.iter().find(useless) {
            return Err(format!(
                "--except {text:?} is a key of no rule; give a key as the report shows it, as \
                 203.0.113.9"
            ));
        }
        let keys = |rule: &RuleFlag| given.iter().filter_map(|text| key(text, &rule.key)).collect();
        let with_keys = |rule: &RuleFlag| Ok((rule.key.extractor(client)?, keys(rule)));
        let rules = rules.iter().filter(|_| !given.is_empty());
        Ok(Self(rules.map(with_keys).collect::<Result<_, String>>()?))
    }

    /// Returns `true` if the request has an exempt key under any rule.
    pub(crate) fn has(&self, call: &Call) -> bool {
        self.0.iter().any(|(extractor, keys)| {
            let key = extractor.extract(&call.head()).ok().flatten();
            key.is_some_and(|key| keys.contains(&key))
        })
    }
}

/// Reads a key of this kind. IPv6 addresses count by their first 64 bits.
fn key(text: &str, flag: &KeyFlag) -> Option<Key> {
    match flag {
        KeyFlag::Peer | KeyFlag::Client => {
            let address: IpAddr = text.strip_suffix("/64").unwrap_or(text).parse().ok()?;
            Some(match address.to_canonical() {
                IpAddr::V6(address) => {
                    Key::from(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64))
                }
                address => Key::from(address),
            })
        }
        KeyFlag::Header(_) => Some(Key::from(text)),
        KeyFlag::Everyone | KeyFlag::Route => None,
    }
}
