//! Charges with their instants, oldest first: what the sliding algorithms keep.

use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    list: VecDeque<Entry>,
    /// Units of all entries.
    total: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) units: u64,
}

impl Entries {
    /// Instants and units, oldest first.
    #[cfg(feature = "redis")]
    pub(super) fn kept(entries: Vec<(u64, u64)>) -> Self {
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

    /// Adds to the newest entry where it `joins`, which takes over the later instant.
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

    /// Takes up to `units` from the entries that `which` names, the newest first.
    pub(super) fn take(&mut self, mut units: u64, which: impl Fn(u64) -> bool) {
        for entry in self.list.iter_mut().rev().filter(|entry| which(entry.at)) {
            let taken = entry.units.min(units);
            entry.units -= taken;
            units -= taken;
            self.total -= taken;
            if units == 0 {
                break;
            }
        }
        self.list.retain(|entry| entry.units > 0);
    }

    /// Drops the oldest entries while they are `gone`.
    pub(super) fn forget(&mut self, gone: impl Fn(u64) -> bool) {
        while self.list.front().is_some_and(|oldest| gone(oldest.at)) {
            self.total -= self.list.pop_front().map_or(0, |oldest| oldest.units);
        }
    }
}
