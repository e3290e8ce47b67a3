//! What newcomers share when every slot of their set is in debt.
//!
//! Per rule, place of a quota and group of sets there is one account. Its debt is everybody's:
//! newcomers are held to one quota together, and one who gets a slot later starts with the debt it
//! had part in. So a flood of fresh keys neither frees an exhausted key nor locks out other rules,
//! and its memory is bounded by the number of rules.
//!
//! Groups are many, because one set without room costs the newcomers of its whole group: at its
//! capacity a table has some such sets (four in a thousand) while it is half empty.

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
    group: usize,
    rule: RuleName,
    place: usize,
}

impl Address {
    /// The account that newcomers of this set share under the quota at `place` of `rule`.
    pub(super) fn new(set: usize, rule: RuleName, place: usize) -> Self {
        Self { group: set % GROUPS, rule, place }
    }
}

/// Shared accounts of type `A`; the default one is cold.
#[derive(Debug, Default)]
pub(super) struct Overflow<A> {
    shards: [Shard<A>; SHARDS],
}

#[derive(Debug)]
struct Shard<A> {
    /// The latest instant of its accounts: past it there is nothing to look up.
    until: AtomicU64,
    decisions: AtomicU64,
    accounts: Mutex<HashMap<Address, A>>,
}

impl<A: Clone + Default> Overflow<A> {
    /// The shared account, cold where there is no debt.
    pub(super) fn get(&self, address: Address, now: u64) -> A {
        let shard = self.shard(address);
        if shard.until.load(Acquire) <= now {
            return A::default();
        }
        shard.accounts().get(&address).cloned().unwrap_or_default()
    }

    /// Changes the shared account; `change` also says until when it is to be kept.
    pub(super) fn update<R>(&self, address: Address, change: impl FnOnce(&mut A) -> (u64, R)) -> R {
        let shard = self.shard(address);
        shard.decisions.fetch_add(1, Relaxed);
        let (until, said) = change(shard.accounts().entry(address).or_default());
        shard.until.fetch_max(until, Release);
        said
    }

    /// Changes the shared account, if there is one.
    pub(super) fn lower(&self, address: Address, change: impl FnOnce(&mut A)) {
        if let Some(account) = self.shard(address).accounts().get_mut(&address) {
            change(account);
        }
    }

    /// Decisions made over shared accounts so far.
    pub(super) fn decisions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.decisions.load(Relaxed)).sum()
    }

    fn shard(&self, address: Address) -> &Shard<A> {
        &self.shards[address.group % SHARDS]
    }
}

impl<A> Shard<A> {
    fn accounts(&self) -> MutexGuard<'_, HashMap<Address, A>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A> Default for Shard<A> {
    fn default() -> Self {
        Self { until: AtomicU64::new(0), decisions: AtomicU64::new(0), accounts: Mutex::default() }
    }
}
