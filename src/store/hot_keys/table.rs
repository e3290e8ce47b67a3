//! Hashes of charges, and tables that are addressed by these hashes.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::quality::SeedableRandomState;
use tokio::time::Instant;

use crate::{key::random_state, store::Charge};

/// The number of entries in one set of a table.
pub(super) const WAYS: usize = 8;

/// A table of sets of entries. A lock per set lets calls for other keys proceed.
#[derive(Debug)]
pub(super) struct HashedSets<T> {
    pub(super) hashes: Hashes,
    created: Instant,
    sets: Box<[Mutex<T>]>,
}

impl<T: Default> HashedSets<T> {
    /// Creates a table with room for `entries` entries.
    pub(super) fn new(entries: usize) -> Self {
        let sets = (0..entries.div_ceil(WAYS)).map(|_| Mutex::default()).collect();
        Self { hashes: Hashes::new(), created: Instant::now(), sets }
    }

    /// Returns the nanoseconds from the creation of the table to `instant`.
    pub(super) fn nanos(&self, instant: Instant) -> u64 {
        let age = instant.saturating_duration_since(self.created);
        u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn now(&self) -> u64 {
        self.nanos(Instant::now())
    }

    /// Locks the set of a tag.
    pub(super) fn set(&self, tag: u64) -> MutexGuard<'_, T> {
        let scaled = (u128::from(tag) * self.sets.len() as u128) >> 64;
        let set = &self.sets[usize::try_from(scaled).unwrap_or(0)];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks one set after another.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.sets.iter().map(|set| set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hashes charges with a random seed, so that clients cannot choose keys that collide.
#[derive(Debug)]
pub(super) struct Hashes(SeedableRandomState);

impl Hashes {
    fn new() -> Self {
        Self(random_state())
    }

    /// Returns the hash of the rule and the key.
    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.0.build_hasher();
        charge.key().hash_with(charge.rule().hash64(), &mut hasher);
        hasher.finish()
    }

    /// Returns the hash of the quotas, the rule and the key.
    pub(super) fn revision(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.0.build_hasher();
        charge.key().hash_with(!charge.rule().hash64(), &mut hasher);
        charge.quotas().hash(&mut hasher);
        hasher.finish()
    }

    /// Combines several hashes into one.
    pub(super) fn all(&self, hashes: &[u64]) -> u64 {
        match hashes {
            [one] => *one,
            several => self.0.hash_one(several),
        }
    }
}
