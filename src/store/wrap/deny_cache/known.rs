//! Which accounts are known to refuse: entries in sets of eight, each under a lock that is held for
//! a few dozen nanoseconds and over nobody else's code.
//!
//! A set counts its changes. A question remembers the count, and its refusal is kept only while
//! the count stands: what was asked before an account was changed says how things were.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{
    Settings,
    account::{Account, Asking},
    entry::{Entry, pass_over},
};
use crate::{
    decision::{Decision, Outcome, Source},
    store::{Charge, wrap::hashes::Hashes},
};

const WAYS: usize = 8;

#[derive(Debug)]
pub(super) struct Known {
    settings: Settings,
    made: Instant,
    hashes: Hashes,
    sets: Box<[Mutex<Set>]>,
}

#[derive(Debug, Default)]
struct Set {
    changes: u64,
    /// Refusals told.
    told: u64,
    /// At most `WAYS`.
    entries: Vec<Entry>,
}

/// What is to become of a call.
pub(super) enum Met {
    Known(Decision),
    Unknown(Asking),
}

impl Known {
    pub(super) fn new(settings: Settings) -> Self {
        let sets = settings.capacity.div_ceil(WAYS);
        Self {
            settings,
            made: Instant::now(),
            hashes: Hashes::new(),
            sets: (0..sets).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    /// Refusals told so far.
    pub(super) fn told(&self) -> u64 {
        self.sets.iter().map(|set| lock(set).told).sum()
    }

    /// Refuses what is known to be refused; otherwise gives what its answer is to be judged by.
    pub(super) fn ask(&self, charges: &[Charge<'_>]) -> Met {
        let mut asking = self.hashes.asking(charges, self.now());
        let mut known = false;
        for account in &mut asking.accounts {
            known |= self.set(account.tag).meet(account, asking.at);
        }
        let known = known && asking.plain;
        // which may have ended since
        match known.then(|| self.refusal(charges, &asking)).flatten() {
            Some(refusal) => Met::Known(refusal),
            None => Met::Unknown(asking),
        }
    }

    /// What is known of each, one outcome for every quota; of a blocked key only the block.
    fn refusal(&self, charges: &[Charge<'_>], asking: &Asking) -> Option<Decision> {
        let fresh = || Decision::new(false, 0).from_source(Source::DenyCache);
        let (mut refusal, mut block, mut refused) = (fresh(), None::<Decision>, false);
        for (charge, account) in charges.iter().zip(&asking.accounts) {
            let mut set = self.set(account.tag);
            match set.find(account, asking.at) {
                None => {
                    pass_over(charge, &mut refusal);
                    continue;
                }
                Some(entry) if entry.is_blocked() => {
                    let mut other = fresh().blocked();
                    entry.tell(charge, asking.at, &mut other);
                    let longer = |block: &Decision| block.retry_after() < other.retry_after();
                    block = if block.as_ref().is_none_or(longer) { Some(other) } else { block };
                }
                Some(entry) => entry.tell(charge, asking.at, &mut refusal),
            }
            set.told += u64::from(!refused);
            refused = true;
        }
        refused.then(|| block.unwrap_or(refusal))
    }

    /// Learns from the store's answer.
    pub(super) fn answered(&self, asking: &Asking, decision: &Decision) {
        let charging = asking.accounts.iter().filter(|account| account.charges);
        if decision.is_allowed() {
            // what is owed now is more than what was told
            return charging.for_each(|account| self.end(account.tag));
        }
        for (account, own) in asking.own(decision) {
            let learned = account.binds && self.learn(account, own, decision, asking.at);
            // a store of several servers may have charged the others for a moment
            if !learned && account.charges && asking.accounts.len() > 1 {
                self.end(account.tag);
            }
        }
    }

    fn learn(&self, account: &Account, own: &[Outcome], said: &Decision, asked: u64) -> bool {
        let (came, at_most) = (self.now(), self.settings.at_most());
        let entry = Entry::new(account, own, said.is_blocked(), (asked, came), at_most);
        entry.is_some_and(|entry| self.set(account.tag).keep(entry, account.changes))
    }

    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        self.hashes.tag(charge)
    }

    /// Forgets what is known of an account, and what is yet to come of questions asked before.
    pub(super) fn end(&self, tag: u64) {
        self.set(tag).end(tag);
    }

    fn set(&self, tag: u64) -> MutexGuard<'_, Set> {
        let scaled = (u128::from(tag) * self.sets.len() as u128) >> 64;
        lock(&self.sets[usize::try_from(scaled).unwrap_or(0)])
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Set {
    /// Whether the account is known to be refused; if not, it is asked for from here on.
    fn meet(&mut self, account: &mut Account, now: u64) -> bool {
        if self.is_of_another_plan(account.tag, account.revision) {
            self.end(account.tag);
        }
        account.changes = self.changes;
        self.find(account, now).is_some()
    }

    fn find(&self, account: &Account, now: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.refuses(account, now))
    }

    /// Keeps a refusal, unless something was changed since it was asked for: in place of its
    /// predecessor, or of the one that ends first.
    fn keep(&mut self, entry: Entry, changes: u64) -> bool {
        if self.changes != changes {
            return false;
        }
        if self.is_of_another_plan(entry.tag, entry.revision) {
            // which of the two questions the store met first is not known
            self.end(entry.tag);
            return false;
        }
        let same = |old: &Entry| old.tag == entry.tag && old.need == entry.need;
        let ends = |at: &usize| self.entries[*at].until;
        let first = || (0..self.entries.len()).min_by_key(ends);
        let full = self.entries.len() >= WAYS;
        let place = self.entries.iter().position(same).or_else(|| first().filter(|_| full));
        match place {
            Some(at) => self.entries[at] = entry,
            None => self.entries.push(entry),
        }
        true
    }

    fn is_of_another_plan(&self, tag: u64, revision: u64) -> bool {
        self.entries.iter().any(|entry| entry.tag == tag && entry.revision != revision)
    }

    fn end(&mut self, tag: u64) {
        self.changes = self.changes.wrapping_add(1);
        self.entries.retain(|entry| entry.tag != tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `DenyCache::capacity` tells.
    #[test]
    fn what_is_known_takes_no_more_room_than_documented() {
        assert!(size_of::<Mutex<Set>>() <= 48, "{}", size_of::<Mutex<Set>>());
        assert!(size_of::<Entry>() <= 128, "{}", size_of::<Entry>());
        assert!(size_of::<Outcome>() <= 64, "{}", size_of::<Outcome>());
    }
}
