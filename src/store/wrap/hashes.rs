//! Charges as hashes.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::store::Charge;

/// Random, so that nobody outside can choose keys that meet.
#[derive(Debug)]
pub(super) struct Hashes(SeedableRandomState);

impl Hashes {
    pub(super) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self(SeedableRandomState::with_seed(seed, SharedSeed::global_random()))
    }

    /// The rule and the key.
    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.0.build_hasher();
        charge.key().hash_with(charge.rule().hash64(), &mut hasher);
        hasher.finish()
    }

    /// The quotas, and once more the key.
    pub(super) fn revision(&self, charge: &Charge<'_>) -> u64 {
        let mut hasher = self.0.build_hasher();
        charge.key().hash_with(!charge.rule().hash64(), &mut hasher);
        charge.quotas().hash(&mut hasher);
        hasher.finish()
    }

    /// Several hashes as one.
    pub(super) fn all(&self, hashes: &[u64]) -> u64 {
        match hashes {
            [one] => *one,
            several => self.0.hash_one(several),
        }
    }
}
