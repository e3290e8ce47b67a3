//! The table of leases, in sets of eight entries.
//!
//! Each set has a lock. The lock is held for a few dozen nanoseconds, and never while code of other
//! crates runs.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
};

use smallvec::SmallVec;
use tokio::{sync::watch, time::Instant};

use super::{
    lease::Lease,
    sizing::{SPAN, Share, Shares, Sizing},
};
use crate::{
    decision::Decision,
    store::{
        Charge,
        hot_keys::table::{HashedSets, WAYS},
    },
};

/// The number of change counters. Several accounts share a counter.
const STRIPES: usize = 64;

#[derive(Debug)]
pub(super) struct LeaseTable {
    sets: HashedSets<LeaseSet>,
    changes: [AtomicU64; STRIPES],
    shares: Arc<Shares>,
}

#[derive(Debug, Default)]
struct LeaseSet {
    /// The number of calls that leases admitted.
    admitted: u64,
    borrows: u64,
    /// At most `WAYS` entries.
    entries: Vec<LeaseEntry>,
}

/// Identifies calls with the same rules, keys and quotas. The costs may differ.
#[derive(Clone, Debug)]
pub(super) struct CallKey {
    tag: u64,
    revision: u64,
    /// The hash of each account.
    pub(super) accounts: SmallVec<[u64; 2]>,
}

#[derive(Debug)]
struct LeaseEntry {
    tag: u64,
    revision: u64,
    sizing: Sizing,
    lease: Option<Box<Lease>>,
    pending: Option<Box<PendingBorrow>>,
}

/// A borrow operation in progress.
#[derive(Debug)]
struct PendingBorrow {
    id: u64,
    /// The start of the request that borrows.
    start: Instant,
    /// Dropped at the end of the operation, which wakes the waiting calls.
    end: watch::Sender<()>,
}

/// The next step of a call.
#[expect(clippy::large_enum_variant, reason = "boxes would cost the common case most")]
pub(super) enum Lookup {
    Admitted(Decision),
    /// Sends only this call to the store.
    Bypass,
    /// Waits for another call to borrow, until the sender is dropped.
    Wait(watch::Receiver<()>),
    /// Borrows units for several calls.
    Borrow(BorrowRequest),
}

/// A request to borrow units for several calls.
pub(super) struct BorrowRequest {
    pub(super) id: u64,
    pub(super) calls: u32,
    /// `true` if the store recently had too few units.
    pub(super) scarce: bool,
    pub(super) share: Share,
}

/// The result of a borrow operation.
pub(super) enum BorrowResult {
    Lease(Box<Lease>),
    /// The store denied the call.
    Denied,
    /// No lease was created.
    Failed,
}

/// Ended leases, whose units must be returned.
pub(super) type EndedLeases = SmallVec<[Box<Lease>; 1]>;

impl LeaseTable {
    pub(super) fn new(capacity: usize, percent: u32) -> Self {
        Self {
            sets: HashedSets::new(capacity),
            changes: [const { AtomicU64::new(0) }; STRIPES],
            shares: Shares::new(percent),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.sets.now()
    }

    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        self.sets.hashes.tag(charge)
    }

    /// Returns the identity of a call, or `None` if two charges have the same account.
    pub(super) fn call_key(&self, charges: &[Charge<'_>]) -> Option<CallKey> {
        let accounts: SmallVec<[u64; 2]> =
            charges.iter().map(|it| self.sets.hashes.tag(it)).collect();
        let is_repeated = |at: usize| accounts[..at].contains(&accounts[at]);
        if (1..accounts.len()).any(is_repeated) {
            return None;
        }
        let revisions: SmallVec<[u64; 2]> =
            charges.iter().map(|it| self.sets.hashes.revision(it)).collect();
        let (tag, revision) = (self.sets.hashes.all(&accounts), self.sets.hashes.all(&revisions));
        Some(CallKey { tag, revision, accounts })
    }

    /// Admits a call with a lease, or returns the next step.
    pub(super) fn lookup(
        &self,
        call: &CallKey,
        charges: &[Charge<'_>],
        [start, now]: [Instant; 2],
        (max_lease, max_age): (u32, u64),
    ) -> (Lookup, EndedLeases) {
        let (now, mut ended) = (self.sets.nanos(now), EndedLeases::new());
        let mut set = self.sets.set(call.tag);
        set.end_other_plans(call);
        let LeaseSet { admitted, borrows, entries } = &mut *set;
        let Some(entry) = LeaseEntry::find(entries, call, now) else {
            return (Lookup::Bypass, ended);
        };
        if let Some(lease) = &mut entry.lease {
            if lease.age(now) < max_age
                && let Some(decision) = lease.admit(charges, now)
            {
                *admitted += 1;
                return (Lookup::Admitted(decision), ended);
            }
            ended.extend(entry.end(now));
        }
        if let Some(pending) = &entry.pending {
            entry.sizing.count(1, now);
            // The wait for a later request could exceed the timeout of this one.
            let waits = pending.start <= start;
            return (
                if waits { Lookup::Wait(pending.end.subscribe()) } else { Lookup::Bypass },
                ended,
            );
        }
        let calls = entry.sizing.calls_to_borrow(now, max_lease);
        let (calls, share) = self.shares.reserve(charges, &call.accounts, calls);
        if calls < 2 {
            entry.sizing.count(1, now);
            return (Lookup::Bypass, ended);
        }
        *borrows += 1;
        let borrow_id = *borrows;
        entry.pending =
            Some(Box::new(PendingBorrow { id: borrow_id, start, end: watch::Sender::new(()) }));
        let scarce = entry.sizing.is_scarce(now);
        (Lookup::Borrow(BorrowRequest { id: borrow_id, calls, scarce, share }), ended)
    }

    /// Ends a borrow operation.
    ///
    /// Drops the lease if the change counters of the accounts no longer add up to `changes`.
    pub(super) fn finish_borrow(
        &self,
        call: &CallKey,
        borrow_id: u64,
        changes: u64,
        result: BorrowResult,
    ) -> bool {
        let now = self.now();
        let mut set = self.sets.set(call.tag);
        let Some(entry) = set.borrowing(call, borrow_id) else { return false };
        let pending = entry.pending.take();
        let mut kept = false;
        match result {
            BorrowResult::Lease(lease) => {
                kept = self.changes(call) == changes;
                entry.lease = kept.then_some(lease);
            }
            BorrowResult::Denied => entry.sizing.count(1, now),
            BorrowResult::Failed => entry.sizing.reset(),
        }
        drop(set);
        drop(pending);
        kept
    }

    /// Limits leases to `max_calls` for a time.
    pub(super) fn set_scarce(&self, call: &CallKey, max_calls: u32, time: u64) {
        let (now, mut set) = (self.now(), self.sets.set(call.tag));
        if let Some(entry) = set.entries.iter_mut().find(|entry| entry.is_of(call)) {
            entry.sizing.set_scarce(max_calls, time, now);
        }
    }

    /// Returns the sum of the change counters of the call's accounts.
    pub(super) fn changes(&self, call: &CallKey) -> u64 {
        let count = |account: &u64| self.stripe(*account).load(Acquire);
        call.accounts.iter().map(count).fold(0, u64::wrapping_add)
    }

    /// Ends all leases of an account, including unfinished borrow operations.
    pub(super) fn end_account(&self, account: u64) -> EndedLeases {
        self.stripe(account).fetch_add(1, AcqRel);
        self.end_where(|entry, _| entry.lease.as_ref().is_some_and(|lease| lease.is_of(account)))
    }

    /// Ends leases that are unused or held for longer than `max_age`.
    pub(super) fn sweep(&self, max_age: u64) -> EndedLeases {
        let idle = |lease: &Lease, now: u64| {
            lease.age(now) >= max_age || now.saturating_sub(lease.last) >= SPAN
        };
        self.end_where(|entry, now| entry.lease.as_ref().is_some_and(|lease| idle(lease, now)))
    }

    pub(super) fn end_all(&self) -> EndedLeases {
        self.end_where(|_, _| true)
    }

    pub(super) fn holds_any(&self) -> bool {
        self.sets.each().any(|set| set.entries.iter().any(|entry| entry.lease.is_some()))
    }

    /// Returns the number of calls that leases have admitted.
    pub(super) fn admitted(&self) -> u64 {
        self.sets.each().map(|set| set.admitted).sum()
    }

    fn end_where(&self, which: impl Fn(&LeaseEntry, u64) -> bool) -> EndedLeases {
        let (now, mut ended) = (self.now(), EndedLeases::new());
        for mut set in self.sets.each() {
            let matching = set.entries.iter_mut().filter(|entry| which(entry, now));
            ended.extend(matching.filter_map(|entry| entry.end(now)));
        }
        ended
    }

    fn stripe(&self, account: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let at = account as usize % STRIPES;
        &self.changes[at]
    }
}

impl LeaseSet {
    /// Returns the entry of a call while the borrow operation is in progress.
    fn borrowing(&mut self, call: &CallKey, borrow_id: u64) -> Option<&mut LeaseEntry> {
        let is_it = |it: &PendingBorrow| it.id == borrow_id;
        let mut entries = self.entries.iter_mut();
        entries.find(|it| it.is_of(call) && it.pending.as_deref().is_some_and(is_it))
    }

    /// Drops leases that were borrowed for the same call under other quotas.
    ///
    /// The units are not returned, because the new quotas may count the account in another way.
    fn end_other_plans(&mut self, call: &CallKey) {
        let other = |it: &&mut LeaseEntry| it.tag == call.tag && it.revision != call.revision;
        self.entries.iter_mut().filter(other).for_each(|entry| drop(entry.lease.take()));
    }
}

impl LeaseEntry {
    fn is_of(&self, call: &CallKey) -> bool {
        self.tag == call.tag && self.revision == call.revision
    }

    /// Returns the entry of the call, or a new entry.
    ///
    /// A full set replaces its oldest unused entry. Returns `None` if all entries are in use.
    fn find<'a>(entries: &'a mut Vec<Self>, call: &CallKey, now: u64) -> Option<&'a mut Self> {
        if let Some(at) = entries.iter().position(|entry| entry.is_of(call)) {
            return entries.get_mut(at);
        }
        let (tag, revision) = (call.tag, call.revision);
        let new = Self { tag, revision, sizing: Sizing::default(), lease: None, pending: None };
        if entries.len() < WAYS {
            entries.push(new);
            return entries.last_mut();
        }
        let free = entries.iter_mut().filter(|it| it.lease.is_none() && it.pending.is_none());
        let oldest = free.min_by_key(|entry| entry.sizing.last().min(now))?;
        drop(mem::replace(oldest, new));
        Some(oldest)
    }

    fn end(&mut self, now: u64) -> Option<Box<Lease>> {
        let mut lease = self.lease.take()?;
        lease.share = Share::default();
        self.sizing.lease_ended(&lease, lease.calls_left(now), now);
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn entries_take_no_more_memory_than_documented() {
        assert!(size_of::<Mutex<LeaseSet>>() <= 48, "{}", size_of::<Mutex<LeaseSet>>());
        assert!(size_of::<LeaseEntry>() <= 64, "{}", size_of::<LeaseEntry>());
        assert!(size_of::<Lease>() <= 1_176, "{}", size_of::<Lease>());
    }
}
