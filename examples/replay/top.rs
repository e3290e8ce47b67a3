//! The most limited keys, in memory that does not grow with the number of keys.
//!
//! Uses the algorithm of Misra and Gries (1982): if no counter is free for a new key, all counters
//! lose one instead. A count is then too low by at most the number of times that happened.

use std::{cmp::Reverse, collections::HashMap};

use tower_sluice::Key;

/// The number of keys that are counted at a time.
const COUNTERS: usize = 1_024;

/// Counts by key; `None` stands for requests without a key of their own.
#[derive(Default)]
pub(crate) struct Top {
    counters: HashMap<Option<Key>, u64>,
    /// The maximum error of a count.
    pub(crate) short: u64,
}

impl Top {
    pub(crate) fn add(&mut self, key: Option<Key>) {
        if let Some(count) = self.counters.get_mut(&key) {
            *count += 1;
        } else if self.counters.len() < COUNTERS {
            self.counters.insert(key, 1);
        } else {
            self.short += 1;
            self.counters.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
    }

    /// Returns the number of keys that are known to have been limited.
    pub(crate) fn len(&self) -> usize {
        self.counters.len()
    }

    /// Returns the most limited keys, in a reproducible order.
    pub(crate) fn most(&self, n: usize) -> Vec<(&Option<Key>, u64)> {
        let mut all: Vec<_> = self.counters.iter().map(|(key, count)| (key, *count)).collect();
        all.sort_by_cached_key(|(key, count)| (Reverse(*count), key.as_ref().map(Key::to_bytes)));
        all.truncate(n);
        all
    }
}
