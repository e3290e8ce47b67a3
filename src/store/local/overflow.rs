//! What newcomers share when every slot of their set is in debt.
//!
//! Per rule, place of a quota and group of sets there is one account. Its debt is everybody's:
//! newcomers are held to one quota together, and one who gets a slot later starts with the debt it
//! had part in. So a flood of fresh keys neither frees an exhausted key nor locks out other rules,
//! and its memory is bounded by the number of rules.
//!
//! Groups are many, because one set without room costs the newcomers of its whole group: at its
//! capacity a table has some such sets (four in a thousand) while it is half empty.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::name::RuleName;

const SHARDS: usize = 16;
const GROUPS: usize = 4096;

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

#[derive(Debug, Default)]
pub(super) struct Overflow {
    shards: [Shard; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    /// The latest instant of its accounts: past it there is nothing to look up.
    until: AtomicU64,
    decisions: AtomicU64,
    accounts: Mutex<HashMap<Address, u64>>,
}

impl Overflow {
    /// The instant of the shared account; 0 where there is no debt.
    pub(super) fn until(&self, address: Address, now: u64) -> u64 {
        let shard = self.shard(address);
        if shard.until.load(Acquire) <= now {
            return 0;
        }
        shard.accounts().get(&address).copied().unwrap_or(0)
    }

    /// Applies `step` to the shared account; as `Slots::update`.
    pub(super) fn update(
        &self,
        address: Address,
        step: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let shard = self.shard(address);
        shard.decisions.fetch_add(1, Relaxed);
        let mut accounts = shard.accounts();
        let old = accounts.get(&address).copied().unwrap_or(0);
        let new = step(old).ok_or(old)?;
        accounts.insert(address, new);
        shard.until.fetch_max(new, Release);
        Ok(new)
    }

    /// Applies `step` to the shared account, if there is one.
    pub(super) fn lower(&self, address: Address, step: impl Fn(u64) -> u64) {
        if let Some(until) = self.shard(address).accounts().get_mut(&address) {
            *until = step(*until);
        }
    }

    /// Decisions made over shared accounts so far.
    pub(super) fn decisions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.decisions.load(Relaxed)).sum()
    }

    fn shard(&self, address: Address) -> &Shard {
        &self.shards[address.group % SHARDS]
    }
}

impl Shard {
    fn accounts(&self) -> MutexGuard<'_, HashMap<Address, u64>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
