//! Fields that a thread has rendered before.

use std::cell::RefCell;

use super::lines::Lines;
use crate::key::mix;

/// The numbers of one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) item: u16,
    pub(super) remaining: u32,
    /// The seconds of the reset field: of the effective window, until the next unit, or of `Retry-After`.
    /// Without any, 0.
    pub(super) time: u32,
}

/// Recently rendered fields.
///
/// Most responses of a service repeat a few sets of fields: most accounts are almost full, and the waits of
/// denials are whole seconds. Each thread has a cache, which needs no lock.
#[derive(Default)]
struct Recent {
    key: RecentKey,
    /// Set if the readings occurred twice in succession, because keeping fields has a cost.
    lines: Option<Lines>,
}

/// Identifies the fields of a response.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct RecentKey {
    pub(super) template: u64,
    /// The seconds of `Retry-After`.
    pub(super) retry: u64,
    /// `true` if the request was allowed beyond a quota.
    pub(super) overage: bool,
    pub(super) readings: [Option<Reading>; 2],
}

/// The number of cached responses of a thread, at about 0.7 KiB each.
const RECENT: usize = 128;

thread_local! {
    static CACHE: RefCell<Vec<Recent>> = const { RefCell::new(Vec::new()) };
}

impl RecentKey {
    /// Returns the kept fields, or renders them.
    #[inline]
    pub(super) fn lines(self, render: impl Fn() -> Lines) -> Lines {
        let cached = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            if cache.is_empty() {
                cache.resize_with(RECENT, Recent::default);
            }
            let recent = &mut cache[self.index()];
            let is_known = recent.key == self;
            if let Some(lines) = recent.lines.as_ref().filter(|_| is_known) {
                return lines.clone();
            }
            let lines = render();
            recent.key = self;
            recent.lines = is_known.then(|| lines.clone());
            lines
        });
        cached.unwrap_or_else(|_| render())
    }

    /// Returns the index in the cache.
    #[inline]
    fn index(&self) -> usize {
        let mut hash = mix(self.template, self.retry);
        for reading in self.readings.iter().flatten() {
            hash = mix(
                hash,
                u64::from(reading.remaining) | u64::from(reading.time) << 32,
            );
        }
        usize::try_from(hash >> 32).unwrap_or(0) % RECENT
    }
}
