//! Accounts that new keys share when every slot of their set is in debt.
//!
//! One account exists per rule, quota and group of sets. All new keys of the group use it, so one
//! quota limits them together. A key that gets a slot later starts with the debt of the shared
//! account. So a flood of new keys neither frees an exhausted key nor affects other rules. The
//! number of rules bounds the memory.
//!
//! At its capacity, a table is half empty, yet four in a thousand of its sets are full. Only the
//! new keys of these sets share an account. For this reason each set keeps the instant until which
//! its new keys may be in debt. A group is many sets in a large table. Without that instant, the
//! new keys of all sets of a group would start with the debt from one set.

use std::collections::HashMap;

use super::sync::{
    AtomicU64, Mutex, MutexGuard,
    Ordering::{Acquire, Relaxed, Release},
    PoisonError,
};
use crate::rule::RuleName;

const SHARDS: usize = 16;
const GROUPS: usize = 4_096;

/// The address of a shared account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedAddress {
    set: usize,
    rule: RuleName,
    quota_index: usize,
}

impl SharedAddress {
    pub(super) fn new(set: usize, rule: RuleName, quota_index: usize) -> Self {
        Self { set, rule, quota_index }
    }

    /// Returns the address with the first set of the group.
    fn group(self) -> Self {
        Self { set: self.set % GROUPS, ..self }
    }
}

/// Shared accounts of type `A`. The default value is a new account.
#[derive(Debug)]
pub(super) struct Overflow<A> {
    /// Per set: the instant until which its new keys may be in debt. After it, no lookup is needed.
    until: Box<[AtomicU64]>,
    shards: [Shard<A>; SHARDS],
}

#[derive(Debug)]
struct Shard<A> {
    decisions: AtomicU64,
    accounts: Mutex<HashMap<SharedAddress, A>>,
}

impl<A: Clone + Default> Overflow<A> {
    /// Creates the shared accounts of a table with `sets` sets.
    pub(super) fn new(sets: usize) -> Self {
        Self {
            until: (0..sets).map(|_| AtomicU64::default()).collect(),
            shards: Default::default(),
        }
    }

    /// Returns the shared account, or a new one if the new keys of this set are not in debt.
    pub(super) fn get(&self, address: SharedAddress, now: u64) -> A {
        if self.until[address.set].load(Acquire) <= now {
            return A::default();
        }
        let (group, shard) = self.shard(address);
        shard.accounts().get(&group).cloned().unwrap_or_default()
    }

    /// Changes the shared account. `change` also returns the instant at which the account expires.
    pub(super) fn update<R>(
        &self,
        address: SharedAddress,
        change: impl FnOnce(&mut A) -> (u64, R),
    ) -> R {
        let (group, shard) = self.shard(address);
        shard.decisions.fetch_add(1, Relaxed);
        let (until, result) = change(shard.accounts().entry(group).or_default());
        self.until[address.set].fetch_max(until, Release);
        result
    }

    /// Changes the shared account if it exists.
    pub(super) fn lower(&self, address: SharedAddress, change: impl FnOnce(&mut A)) {
        let (group, shard) = self.shard(address);
        if let Some(account) = shard.accounts().get_mut(&group) {
            change(account);
        }
    }

    /// Returns the number of decisions over shared accounts.
    pub(super) fn decisions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.decisions.load(Relaxed)).sum()
    }

    fn shard(&self, address: SharedAddress) -> (SharedAddress, &Shard<A>) {
        let group = address.group();
        (group, &self.shards[group.set % SHARDS])
    }
}

impl<A> Shard<A> {
    fn accounts(&self) -> MutexGuard<'_, HashMap<SharedAddress, A>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A> Default for Shard<A> {
    fn default() -> Self {
        Self { decisions: AtomicU64::new(0), accounts: Mutex::default() }
    }
}
