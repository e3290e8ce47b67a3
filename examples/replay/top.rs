//! Who was limited most, in memory that does not grow with the number of keys.
//!
//! By Misra and Gries (1982): of so many counters none is free for a newcomer, so all lose one
//! instead. A count is then too low by at most the number of times that happened.

use std::{collections::HashMap, time::Duration};

use tower_sluice::Key;

/// Keys that are counted at a time.
const COUNTERS: usize = 1_024;

/// How often by key; `None` is who has no key of its own.
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

    /// By how much a count may be too low.
    pub(crate) fn short(&self) -> u64 {
        self.short
    }

    /// Keys that are known to have been limited.
    pub(crate) fn len(&self) -> usize {
        self.counters.len()
    }

    /// Those limited most, in the same order each time.
    pub(crate) fn most(&self, n: usize) -> Vec<(Option<Key>, Times)> {
        let mut all: Vec<_> = self.counters.iter().map(|(key, it)| (key.clone(), *it)).collect();
        let bytes = |key: &Option<Key>| key.as_ref().map(Key::to_bytes);
        all.sort_by_cached_key(|(key, it)| (std::cmp::Reverse(it.count), it.first, bytes(key)));
        all.truncate(n);
        all
    }
}
