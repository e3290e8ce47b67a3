//! What newcomers share when every slot of their set is in debt.
//!
//! Per rule, place of a quota and group of sets there is one account. Its debt is everybody's:
//! newcomers are held to one quota together, and one who gets a slot later starts with the debt it
//! had part in. So a flood of fresh keys neither frees an exhausted key nor locks out other rules,
//! and its memory is bounded by the number of rules.
//!
//! At its capacity a table has some sets without room (four in a thousand) while it is half empty.
//! They cost nobody but their own newcomers: each set has the instant until which newcomers of it
//! may owe something. A group is many sets in a large table, and without that the newcomers of all
//! of them would start with what those of one owe.

use std::collections::HashMap;

use super::sync::{
    AtomicU64, Mutex, MutexGuard,
    Ordering::{Acquire, Relaxed, Release},
    PoisonError,
};
use crate::name::RuleName;

const SHARDS: usize = 16;
const GROUPS: usize = 4_096;

/// Which shared account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    set: usize,
    rule: RuleName,
    place: usize,
}

impl Address {
    /// The account that newcomers of this set share under the quota at `place` of `rule`.
    pub(super) fn new(set: usize, rule: RuleName, place: usize) -> Self {
        Self { set, rule, place }
    }

    /// The address of the first set of its group.
    fn group(self) -> Self {
        Self { set: self.set % GROUPS, ..self }
    }
}

/// Shared accounts of type `A`; the default one is cold.
#[derive(Debug)]
pub(super) struct Overflow<A> {
    /// Per set: until when its newcomers owe something. Past it there is nothing to look up.
    until: Box<[AtomicU64]>,
    shards: [Shard<A>; SHARDS],
}

#[derive(Debug)]
struct Shard<A> {
    decisions: AtomicU64,
    accounts: Mutex<HashMap<Address, A>>,
}

impl<A: Clone + Default> Overflow<A> {
    /// What the newcomers of so many sets share.
    pub(super) fn new(sets: usize) -> Self {
        Self {
            until: (0..sets).map(|_| AtomicU64::default()).collect(),
            shards: Default::default(),
        }
    }

    /// The shared account, cold where newcomers of this set owe nothing.
    pub(super) fn get(&self, address: Address, now: u64) -> A {
        if self.until[address.set].load(Acquire) <= now {
            return A::default();
        }
        let (group, shard) = self.shard(address);
        shard.accounts().get(&group).cloned().unwrap_or_default()
    }

    /// Changes the shared account; `change` also says until when it is to be kept.
    pub(super) fn update<R>(&self, address: Address, change: impl FnOnce(&mut A) -> (u64, R)) -> R {
        let (group, shard) = self.shard(address);
        shard.decisions.fetch_add(1, Relaxed);
        let (until, said) = change(shard.accounts().entry(group).or_default());
        self.until[address.set].fetch_max(until, Release);
        said
    }

    /// Changes the shared account, if there is one.
    pub(super) fn lower(&self, address: Address, change: impl FnOnce(&mut A)) {
        let (group, shard) = self.shard(address);
        if let Some(account) = shard.accounts().get_mut(&group) {
            change(account);
        }
    }

    /// Decisions made over shared accounts so far.
    pub(super) fn decisions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.decisions.load(Relaxed)).sum()
    }

    /// Where the account is, and by which name.
    fn shard(&self, address: Address) -> (Address, &Shard<A>) {
        let group = address.group();
        (group, &self.shards[group.set % SHARDS])
    }
}

impl<A> Shard<A> {
    fn accounts(&self) -> MutexGuard<'_, HashMap<Address, A>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A> Default for Shard<A> {
    fn default() -> Self {
        Self { decisions: AtomicU64::new(0), accounts: Mutex::default() }
    }
}
