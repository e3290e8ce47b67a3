//! Cached denials, in sets of eight entries.
//!
//! Each set has a lock and a version, which counts the changes of the set. A denial is cached only
//! if the version has not changed during the call. Otherwise the denial may be out of date.

use std::ops::ControlFlow;

use super::{
    DenyCacheConfig,
    account::{CachedDenial, HashedCharge, PendingTake, add_unknown},
};
use crate::{
    decision::{Decision, Outcome, Source},
    store::{
        Charge,
        hot_keys::table::{HashedSets, WAYS},
    },
};

#[derive(Debug)]
pub(super) struct Denials {
    config: DenyCacheConfig,
    sets: HashedSets<CacheSet>,
}

#[derive(Debug, Default)]
struct CacheSet {
    version: u64,
    /// The number of calls that the set has answered.
    hits: u64,
    /// The cached denials, at most `WAYS`.
    entries: Vec<CachedDenial>,
}

impl Denials {
    pub(super) fn new(config: DenyCacheConfig) -> Self {
        Self { config, sets: HashedSets::new(config.capacity) }
    }

    pub(super) fn config(&self) -> DenyCacheConfig {
        self.config
    }

    /// Returns the number of calls that the cache has answered so far.
    pub(super) fn hits(&self) -> u64 {
        self.sets.each().map(|set| set.hits).sum()
    }

    /// Breaks with a cached denial, or continues with the call that must be made.
    pub(super) fn look_up(&self, charges: &[Charge<'_>]) -> ControlFlow<Decision, PendingTake> {
        let mut pending = self.sets.hashes.pending_take(charges, self.sets.now());
        let mut found = false;
        for account in &mut pending.accounts {
            found |= self.sets.set(account.tag).check(account, pending.at);
        }
        let found = found && pending.cacheable;
        // The entry may have been removed since `check`.
        let denial = found.then(|| self.denial(charges, &pending)).flatten();
        denial.map_or(ControlFlow::Continue(pending), ControlFlow::Break)
    }

    /// Returns a cached denial of the call, if any.
    fn denial(&self, charges: &[Charge<'_>], pending: &PendingTake) -> Option<Decision> {
        let empty = || Decision::new(false, 0).with_source(Source::DenyCache);
        let (mut denial, mut block, mut denied) = (empty(), None::<Decision>, false);
        for (charge, account) in charges.iter().zip(&pending.accounts) {
            let mut set = self.sets.set(account.tag);
            match set.find(account, pending.at) {
                None => {
                    add_unknown(&mut denial, charge);
                    continue;
                }
                Some(entry) if entry.is_blocked() => {
                    let mut other = empty().with_blocked();
                    entry.add_to(&mut other, charge, pending.at);
                    let longer = |block: &Decision| block.retry_after() < other.retry_after();
                    block = if block.as_ref().is_none_or(longer) { Some(other) } else { block };
                }
                Some(entry) => entry.add_to(&mut denial, charge, pending.at),
            }
            set.hits += u64::from(!denied);
            denied = true;
        }
        denied.then(|| block.unwrap_or(denial))
    }

    /// Updates the cache after an answer of the store.
    pub(super) fn update(&self, pending: &PendingTake, decision: &Decision) {
        let charging = pending.accounts.iter().filter(|account| account.charges);
        if decision.is_allowed() {
            // After a charge, the account has fewer units than a cached denial reports.
            return charging.for_each(|account| self.invalidate(account.tag));
        }
        for (account, outcomes) in pending.outcomes(decision) {
            let cached = account.cacheable && self.cache(account, outcomes, decision, pending.at);
            // A store with several servers may have charged the other accounts for a short time.
            if !cached && account.charges && pending.accounts.len() > 1 {
                self.invalidate(account.tag);
            }
        }
    }

    /// Caches a denial. Returns `false` if it cannot be cached.
    fn cache(
        &self,
        account: &HashedCharge,
        outcomes: &[Outcome],
        denial: &Decision,
        called_at: u64,
    ) -> bool {
        let (answered_at, max_age) = (self.sets.now(), self.config.max_age);
        let times = (called_at, answered_at);
        let entry = CachedDenial::new(account, outcomes, denial.is_blocked(), times, max_age);
        entry.is_some_and(|entry| self.sets.set(account.tag).insert(entry, account.version))
    }

    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        self.sets.hashes.tag(charge)
    }

    /// Removes the denials of an account. Answers to calls in flight are not cached.
    pub(super) fn invalidate(&self, tag: u64) {
        self.sets.set(tag).invalidate(tag);
    }
}

impl CacheSet {
    /// Returns `true` if an entry denies the account. Stores the version of the set in `account`.
    fn check(&mut self, account: &mut HashedCharge, now: u64) -> bool {
        if self.has_other_quotas(account.tag, account.revision) {
            self.invalidate(account.tag);
        }
        account.version = self.version;
        self.find(account, now).is_some()
    }

    fn find(&self, account: &HashedCharge, now: u64) -> Option<&CachedDenial> {
        self.entries.iter().find(|entry| entry.denies(account, now))
    }

    /// Inserts an entry, unless the set has changed since `version`.
    ///
    /// In a full set, the new entry replaces the entry with the earliest end.
    fn insert(&mut self, entry: CachedDenial, version: u64) -> bool {
        if self.version != version {
            return false;
        }
        if self.has_other_quotas(entry.tag, entry.revision) {
            // The order of the two decisions is unknown.
            self.invalidate(entry.tag);
            return false;
        }
        let same = |old: &CachedDenial| old.tag == entry.tag && old.need == entry.need;
        let ends = |at: &usize| self.entries[*at].until;
        let first = || (0..self.entries.len()).min_by_key(ends);
        let full = self.entries.len() >= WAYS;
        let position = self.entries.iter().position(same).or_else(|| first().filter(|_| full));
        match position {
            Some(at) => self.entries[at] = entry,
            None => self.entries.push(entry),
        }
        true
    }

    fn has_other_quotas(&self, tag: u64, revision: u64) -> bool {
        self.entries.iter().any(|entry| entry.tag == tag && entry.revision != revision)
    }

    fn invalidate(&mut self, tag: u64) {
        self.version = self.version.wrapping_add(1);
        self.entries.retain(|entry| entry.tag != tag);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn sets_and_entries_are_no_larger_than_documented() {
        assert!(size_of::<Mutex<CacheSet>>() <= 48, "{}", size_of::<Mutex<CacheSet>>());
        assert!(size_of::<CachedDenial>() <= 128, "{}", size_of::<CachedDenial>());
        assert!(size_of::<Outcome>() <= 64, "{}", size_of::<Outcome>());
    }
}
