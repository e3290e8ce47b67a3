//! A list of charges by time, for the sliding algorithms.

use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    list: VecDeque<Entry>,
    /// The sum of the units of all entries.
    total: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) units: u64,
}

impl Entries {
    /// Creates a list from pairs of an instant and its units, oldest first.
    #[cfg(feature = "redis")]
    pub(super) fn from_pairs(entries: Vec<(u64, u64)>) -> Self {
        let total = entries.iter().map(|(_, units)| units).sum();
        Self { list: entries.into_iter().map(|(at, units)| Entry { at, units }).collect(), total }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.list.iter().copied()
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.list.back().map(|entry| entry.at)
    }

    /// Adds units to the newest entry if `joins` accepts the instant of that entry. Otherwise adds
    /// an entry.
    pub(super) fn add(&mut self, at: u64, units: u64, joins: impl Fn(u64) -> bool) {
        self.total += units;
        match self.list.back_mut() {
            Some(newest) if joins(newest.at) => {
                newest.at = newest.at.max(at);
                newest.units += units;
            }
            _ => self.list.push_back(Entry { at, units }),
        }
    }

    /// Removes up to `units` units, newest first, from entries whose instant `matches` accepts.
    pub(super) fn remove(&mut self, mut units: u64, matches: impl Fn(u64) -> bool) {
        for entry in self.list.iter_mut().rev().filter(|entry| matches(entry.at)) {
            let removed = entry.units.min(units);
            entry.units -= removed;
            units -= removed;
            self.total -= removed;
            if units == 0 {
                break;
            }
        }
        self.list.retain(|entry| entry.units > 0);
    }

    /// Drops the oldest entries while they are expired.
    pub(super) fn drop_oldest(&mut self, expired: impl Fn(u64) -> bool) {
        while self.list.front().is_some_and(|oldest| expired(oldest.at)) {
            self.total -= self.list.pop_front().map_or(0, |oldest| oldest.units);
        }
    }
}
