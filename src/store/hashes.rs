//! Hashes of charges.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::store::Charge;

/// Hashes charges with a random seed, so that clients cannot choose keys that collide.
#[derive(Debug)]
pub(super) struct Hashes(SeedableRandomState);

impl Hashes {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self(SeedableRandomState::with_seed(seed, SharedSeed::global_random()))
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
