//! Wrappers that decide about hot keys without calling their store, and the table of these keys.
//!
//! The table consists of sets of eight entries. Each set has a lock, which is held for a few dozen
//! nanoseconds, and never while code of other crates runs. Each set also counts the changes of its
//! accounts. An answer of the store is kept only if no change was counted during the call.

mod denials;
mod leases;

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    slice,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
    time::Duration,
};

use foldhash::quality::SeedableRandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

pub use self::{denials::DenyCache, leases::Leased};
use crate::{
    algorithm::gcra,
    decision::Outcome,
    key::random_state,
    store::{Charge, nanos},
};

/// The number of entries in one set.
const WAYS: usize = 8;
const MAX_CAPACITY: usize = 1 << 24;
/// The default time for which a wrapper may decide without calling the store.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The longest time for which a wrapper may decide without calling the store.
const LONGEST_AGE: Duration = Duration::from_secs(60);

/// A table of hot keys. Instants are nanoseconds since the table was created.
struct HotKeys<T> {
    /// Random, so that clients cannot choose keys that collide.
    seed: SeedableRandomState,
    created: Instant,
    /// The longest time for which an entry is valid, in nanoseconds.
    max_age: u64,
    sets: Box<[HotSet<T>]>,
}

struct HotSet<T> {
    /// The number of changes of the accounts in this set.
    changes: AtomicU64,
    entries: Mutex<HotEntries<T>>,
}

struct HotEntries<T> {
    /// At most `WAYS` entries.
    list: Vec<(HotKey, T)>,
}

/// Identifies an account, or the accounts of a call, under certain quotas.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HotKey {
    /// The hash of the rule and the key.
    tag: u64,
    /// The hash of the addresses of the quotas, the rule and the key.
    accounts: u32,
    /// The hash of the quotas with their limits.
    limits: u32,
}

impl<T> HotKeys<T> {
    #[track_caller]
    fn new(capacity: usize, max_age: Duration) -> Self {
        assert!(
            (1..=MAX_CAPACITY).contains(&capacity),
            "capacity is {capacity}; give 1 to {MAX_CAPACITY}, the number of hot keys to keep"
        );
        assert!(
            !max_age.is_zero() && max_age <= LONGEST_AGE,
            "max_age is {max_age:?}; give a time such as 1s, at most {LONGEST_AGE:?}: until then, \
             a reset by another process has no effect here"
        );
        let sets = (0..capacity.div_ceil(WAYS)).map(|_| HotSet {
            changes: AtomicU64::new(0),
            entries: Mutex::new(HotEntries { list: Vec::new() }),
        });
        Self {
            seed: random_state(),
            created: Instant::now(),
            max_age: nanos(max_age),
            sets: sets.collect(),
        }
    }

    fn now(&self) -> u64 {
        nanos(self.created.elapsed())
    }

    /// Returns the key of an account, or of the accounts of a call.
    fn key(&self, charges: &[Charge<'_>]) -> HotKey {
        let mut tag = self.seed.build_hasher();
        let mut accounts = self.seed.build_hasher();
        let mut limits = self.seed.build_hasher();
        for charge in charges {
            charge.key.hash_with(charge.rule.hash64(), &mut tag);
            charge.key.hash_with(!charge.rule.hash64(), &mut accounts);
            charge
                .quotas
                .iter()
                .for_each(|quota| quota.address().hash(&mut accounts));
            charge.quotas.hash(&mut limits);
        }
        HotKey {
            tag: tag.finish(),
            accounts: high_half(accounts.finish()),
            limits: high_half(limits.finish()),
        }
    }

    fn tag(&self, charge: &Charge<'_>) -> u64 {
        self.key(slice::from_ref(charge)).tag
    }

    fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    fn set(&self, tag: u64) -> &HotSet<T> {
        let scaled = (u128::from(tag) * self.sets.len() as u128) >> 64;
        &self.sets[usize::try_from(scaled).unwrap_or(0)]
    }

    /// Locks the set of a key. Drops entries of its accounts under other limits.
    fn lock(&self, key: HotKey) -> MutexGuard<'_, HotEntries<T>> {
        let mut entries = self.set(key.tag).entries.lock();
        let before = entries.list.len();
        entries
            .list
            .retain(|(other, _)| !other.has_other_limits(key));
        if entries.list.len() < before {
            self.count_change(key.tag);
        }
        entries
    }

    /// Returns the number of changes of some accounts, and of others.
    fn changes(&self, tags: &[u64]) -> u64 {
        tags.iter()
            .map(|tag| self.set(*tag).changes.load(Acquire))
            .sum()
    }

    /// Counts a change of an account, so that earlier answers of the store are not kept.
    fn count_change(&self, tag: u64) {
        self.set(tag).changes.fetch_add(1, AcqRel);
    }
}

/// Leaves the entries out, of which there may be thousands.
impl<T> fmt::Debug for HotKeys<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotKeys").finish_non_exhaustive()
    }
}

impl HotKey {
    /// Returns `true` for the same accounts under other limits. Another plan has other accounts.
    fn has_other_limits(self, other: Self) -> bool {
        self.tag == other.tag && self.accounts == other.accounts && self.limits != other.limits
    }
}

fn high_half(hash: u64) -> u32 {
    u32::try_from(hash >> 32).unwrap_or(0)
}

impl<T> HotEntries<T> {
    /// Returns the values of a key.
    fn of(&mut self, key: HotKey) -> impl Iterator<Item = &mut T> {
        self.list
            .iter_mut()
            .filter(move |(known, _)| *known == key)
            .map(|(_, value)| value)
    }

    /// Adds an entry. A full set replaces the entry with the lowest rank, if any has a rank.
    fn add(&mut self, key: HotKey, value: T, rank: impl Fn(&T) -> Option<u64>) {
        if self.list.len() < WAYS {
            return self.list.push((key, value));
        }
        let ranked = self
            .list
            .iter_mut()
            .filter_map(|old| Some((rank(&old.1)?, old)));
        if let Some((_, first)) = ranked.min_by_key(|(rank, _)| *rank) {
            *first = (key, value);
        }
    }
}

/// Returns an outcome of `charge` for its own cost, from the outcome for another cost.
pub(crate) fn for_cost_of(charge: &Charge<'_>, outcome: &Outcome) -> Outcome {
    let demand = charge.demand().without_queueing();
    let index = outcome.quota_index();
    let quota = charge.quotas.get(index).filter(|quota| quota.is_gcra());
    if let Some(quota) = quota
        && outcome.interval().is_some()
    {
        let snapshot = gcra::look(outcome.reset_ns(), quota, 0, demand).snapshot;
        return Outcome::with(outcome.rule(), index, snapshot);
    }
    if outcome.is_known() && demand.need() <= outcome.remaining().into() {
        outcome.with_retry_after(Some(Duration::ZERO))
    } else {
        *outcome
    }
}

/// Returns `true` if no two charges have the same rule, so that outcomes identify their charge.
fn have_distinct_rules(charges: &[Charge<'_>]) -> bool {
    let mut all = charges.iter().enumerate();
    all.all(|(at, charge)| Charge::find(&charges[..at], charge.rule).is_none())
}
