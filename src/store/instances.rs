//! The number of processes that share a store.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The rank of a process that does not know its rank.
const UNKNOWN: u32 = u32::MAX;

/// The number of processes that share a store, each with its part of every limit.
///
/// A number is fixed. `RedisStore::live_instances` counts the processes that run. Clones share the
/// count.
///
/// ```
/// use tower_sluice::{LocalStore, StoreExt, store::Instances};
///
/// let instances = Instances::from(4);
/// assert_eq!(instances.count(), 4);
///
/// let store = LocalStore::new().fallback(LocalStore::new(), instances);
/// ```
#[derive(Clone, Debug)]
pub struct Instances(pub(super) Arc<AtomicU64>);

impl Instances {
    /// Returns the number of processes.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.part().instances.get()
    }

    pub(super) fn part(&self) -> Part {
        Part::unpack(self.0.load(Relaxed))
    }
}

impl From<u32> for Instances {
    /// Creates a fixed number of processes.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0.
    #[track_caller]
    fn from(instances: u32) -> Self {
        const ZERO: &str = "instances is 0; give at least 1, because this process counts too";
        let part = Part::equal(NonZeroU32::new(instances).expect(ZERO));
        Self(Arc::new(AtomicU64::new(part.pack())))
    }
}

/// The part of one process in the limits that several processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) instances: NonZeroU32,
    /// The position of the process among all, or [`UNKNOWN`].
    rank: u32,
}

impl Part {
    /// Creates the part of each of `instances` processes, which do not know their rank.
    pub(crate) const fn equal(instances: NonZeroU32) -> Self {
        Self {
            instances,
            rank: UNKNOWN,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn ranked(instances: u32, rank: u32) -> Option<Self> {
        let instances = NonZeroU32::new(instances).filter(|all| rank < all.get())?;
        Some(Self { instances, rank })
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.instances.get()) << 32 | u64::from(self.rank)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is the rank"
    )]
    pub(super) fn unpack(packed: u64) -> Self {
        let instances = NonZeroU32::new((packed >> 32) as u32).unwrap_or(NonZeroU32::MIN);
        Self {
            instances,
            rank: packed as u32,
        }
    }

    /// Returns this process's part of `units`. The parts of all ranks together are `units`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a part is at most the whole"
    )]
    pub(crate) fn of(self, units: u32) -> u32 {
        if self.rank == UNKNOWN {
            units / self.instances
        } else {
            let all = u64::from(self.instances.get());
            let start = u64::from(units) * u64::from(self.rank);
            let end = start + u64::from(units);
            (end / all - start / all) as u32
        }
    }

    /// Returns the number of processes that have a part of these units.
    pub(crate) fn holders(self, units: u32) -> u32 {
        let all = self.instances.get();
        if self.rank == UNKNOWN {
            all
        } else {
            all.min(units)
        }
    }

    /// Returns the part for a key. Each key has another first process, the same in all processes, so that
    /// no process is without a part of every small limit.
    pub(super) fn for_key(self, key: &impl Hash) -> Self {
        if self.rank == UNKNOWN {
            return self;
        }
        let all = u64::from(self.instances.get());
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let rank = (u64::from(self.rank) + hasher.finish() % all) % all;
        Self {
            rank: rank.try_into().unwrap_or(0),
            ..self
        }
    }

    /// Returns this process's part of a burst. If no process knows its rank, each has one unit.
    pub(crate) fn of_burst(self, units: u32) -> u32 {
        self.of(units).max((self.rank == UNKNOWN).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_part_is_the_same() {
        for part in [
            Part::equal(NonZeroU32::MAX),
            Part {
                rank: 3,
                instances: NonZeroU32::MIN,
            },
        ] {
            assert_eq!(Part::unpack(part.pack()), part);
        }
    }

    #[test]
    fn the_parts_of_all_ranks_are_the_whole() {
        for (units, instances) in [(0, 1), (1, 9), (7, 3), (10, 4), (u32::MAX, 7), (5, 1_000)] {
            let all = NonZeroU32::new(instances).expect("not zero");
            let parts = (0..instances).map(|rank| {
                Part {
                    instances: all,
                    rank,
                }
                .of_burst(units)
            });
            let parts: Vec<_> = parts.collect();
            assert_eq!(
                parts.iter().map(|part| u64::from(*part)).sum::<u64>(),
                u64::from(units)
            );
            let (least, most) = (units / instances, units.div_ceil(instances));
            assert!(
                parts.iter().all(|part| (least..=most).contains(part)),
                "{parts:?}"
            );
            assert_eq!(Part::equal(all).of_burst(units), least.max(1));
        }
    }
}
