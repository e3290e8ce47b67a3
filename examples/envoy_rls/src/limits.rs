//! The limits of a file, and those that a request of Envoy meets.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use serde::Deserialize;
use tower_sluice::{Key, Quota, rule::RuleName};

/// The limits of a file. Of those that match a descriptor, the first counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    limit: Vec<Limit>,
}

/// A limit of descriptors with these entries, in this order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    pub(crate) name: RuleName,
    domain: String,
    entries: Vec<Pattern>,
    pub(crate) quota: Quota,
}

/// An entry with this value, or with any value: each has an account of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pattern {
    key: String,
    value: Option<String>,
}

impl Limits {
    /// Reads limits from TOML.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid, or if two limits have one name.
    pub fn read(text: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let limits: Self = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for limit in &limits.limit {
            if !names.insert(limit.name.as_str()) {
                return Err(format!("two limits have the name {}; rename one", limit.name).into());
            }
        }
        Ok(limits)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Limit> {
        self.limit.iter()
    }

    /// Returns the limit of a descriptor, if there is one.
    pub(crate) fn of(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Option<&Limit> {
        self.limit.iter().find(|limit| limit.domain == domain && limit.matches(descriptor))
    }
}

impl Limit {
    fn matches(&self, descriptor: &RateLimitDescriptor) -> bool {
        let entries = &descriptor.entries;
        let mut pairs = self.entries.iter().zip(entries);
        self.entries.len() == entries.len()
            && pairs.all(|(pattern, entry)| {
                let is_value = pattern.value.as_ref().is_none_or(|value| *value == entry.value);
                pattern.key == entry.key && is_value
            })
    }
}

/// Returns the key of the account: the values of the descriptor.
pub(crate) fn key(descriptor: &RateLimitDescriptor) -> Key {
    let mut values = Vec::new();
    for entry in &descriptor.entries {
        values.push(Key::from(entry.value.as_str()));
    }
    Key::join(&values)
}
