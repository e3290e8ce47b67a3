//! The most limited keys, in memory that does not grow with the number of keys.
//!
//! Uses the algorithm of Misra and Gries (1982): if no counter is free for a new key, all counters
//! lose one instead. A count is then too low by at most the number of times that happened.

use std::{collections::HashMap, time::Duration};

use tower_sluice::Key;

/// The number of keys that are counted at a time.
const COUNTERS: usize = 1_024;

/// Counts by key; `None` stands for requests without a key of their own.
#[derive(Default)]
pub(crate) struct Top {
    counters: HashMap<Option<Key>, Times>,
    short: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) first: Duration,
    pub(crate) last: Duration,
}

impl Top {
    pub(crate) fn add(&mut self, key: Option<Key>, at: Duration) {
        if let Some(known) = self.counters.get_mut(&key) {
            (known.count, known.last) = (known.count + 1, at);
        } else if self.counters.len() < COUNTERS {
            self.counters.insert(key, Times { count: 1, first: at, last: at });
        } else {
            self.short += 1;
            self.counters.retain(|_, times| {
                times.count -= 1;
                times.count > 0
            });
        }
    }

    /// Returns the maximum error of a count.
    pub(crate) fn short(&self) -> u64 {
        self.short
    }

    /// Returns the number of keys that are known to have been limited.
    pub(crate) fn len(&self) -> usize {
        self.counters.len()
    }

    /// Returns the most limited keys, in a reproducible order.
    pub(crate) fn most(&self, n: usize) -> Vec<(Option<Key>, Times)> {
        let mut all: Vec<_> = self.counters.iter().map(|(key, it)| (key.clone(), *it)).collect();
        let bytes = |key: &Option<Key>| key.as_ref().map(Key::to_bytes);
        all.sort_by_cached_key(|(key, it)| (std::cmp::Reverse(it.count), it.first, bytes(key)));
        all.truncate(n);
        all
    }
}
