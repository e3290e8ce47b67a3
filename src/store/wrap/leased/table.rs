//! What is in hand for whom: entries in sets of eight, each under a lock that is held for a few dozen
//! nanoseconds and over nobody else's code.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::Waker,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    lease::Lease,
    pace::{Pace, SPAN},
    share::{Share, Shares},
};
use crate::{
    decision::Decision,
    store::{Charge, wrap::hashes::Hashes},
};

const WAYS: usize = 8;
/// Counts of changed accounts, one for many.
const STRIPES: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    made: Instant,
    hashes: Hashes,
    sets: Box<[Mutex<Set>]>,
    changes: [AtomicU64; STRIPES],
    shares: Arc<Shares>,
}

#[derive(Debug, Default)]
struct Set {
    /// Calls admitted from what was in hand.
    admitted: u64,
    flights: u64,
    /// At most `WAYS`.
    entries: Vec<Entry>,
}

/// A call: its rules and keys, and, apart from them, its quotas. Costs may differ.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    tag: u64,
    revision: u64,
    /// Each account by itself.
    pub(super) accounts: SmallVec<[u64; 2]>,
}

#[derive(Debug)]
struct Entry {
    tag: u64,
    revision: u64,
    pace: Pace,
    lease: Option<Box<Lease>>,
    flight: Option<Flight>,
}

/// A borrowing that is on its way.
#[derive(Debug)]
struct Flight {
    id: u64,
    waiting: Vec<Waker>,
}

/// What is to become of a call.
#[expect(clippy::large_enum_variant, reason = "boxes would cost the common case most")]
pub(super) enum Met {
    Admitted(Decision),
    /// The store is to be asked for this call only.
    Pass,
    /// Another borrows for the same.
    Wait(u64),
    /// Calls are to be borrowed.
    Borrow(Loan),
}

/// What is to be borrowed.
pub(super) struct Loan {
    pub(super) flight: u64,
    pub(super) calls: u32,
    /// Whether the store had less than was wanted lately.
    pub(super) scarce: bool,
    pub(super) share: Share,
}

/// What became of a borrowing.
pub(super) enum Landing {
    /// The store had less than was wanted: only so `few` calls come back in a short time.
    Lease { lease: Box<Lease>, few: Option<u32> },
    /// The store had less: so few calls come back in a short time, and more in so long.
    Scarce { few: u32, time: u64 },
    /// It refused, and will have enough in a moment.
    Refused,
    /// There is nothing to be held.
    Failed,
}

/// Leases that are over, whose units are to be given back.
pub(super) type Over = SmallVec<[Box<Lease>; 1]>;

impl Table {
    pub(super) fn new(capacity: usize, percent: u32) -> Self {
        Self {
            made: Instant::now(),
            hashes: Hashes::new(),
            sets: (0..capacity.div_ceil(WAYS)).map(|_| Mutex::default()).collect(),
            changes: [const { AtomicU64::new(0) }; STRIPES],
            shares: Shares::new(percent),
        }
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn tag(&self, charge: &Charge<'_>) -> u64 {
        self.hashes.tag(charge)
    }

    /// Who calls; nobody where an account is named twice.
    pub(super) fn caller(&self, charges: &[Charge<'_>]) -> Option<Caller> {
        let accounts: SmallVec<[u64; 2]> = charges.iter().map(|it| self.hashes.tag(it)).collect();
        let again = |at: usize| accounts[..at].contains(&accounts[at]);
        if (1..accounts.len()).any(again) {
            return None;
        }
        let revisions: SmallVec<[u64; 2]> =
            charges.iter().map(|it| self.hashes.revision(it)).collect();
        let (tag, revision) = (self.hashes.all(&accounts), self.hashes.all(&revisions));
        Some(Caller { tag, revision, accounts })
    }

    /// Admits a call by what is in hand, or says what to do.
    pub(super) fn ask(
        &self,
        caller: &Caller,
        charges: &[Charge<'_>],
        (most, at_most): (u32, u64),
    ) -> (Met, Over) {
        let (now, mut over) = (self.now(), Over::new());
        let mut set = self.set(caller.tag);
        set.end_other_plans(caller);
        let Set { admitted, flights, entries } = &mut *set;
        let Some(entry) = Entry::find(entries, caller, now) else { return (Met::Pass, over) };
        if let Some(lease) = &mut entry.lease {
            if lease.age(now) < at_most
                && let Some(decision) = lease.admit(charges, now)
            {
                *admitted += 1;
                return (Met::Admitted(decision), over);
            }
            over.extend(entry.end(now));
        }
        if let Some(flight) = &entry.flight {
            return (Met::Wait(flight.id), over);
        }
        let calls = entry.pace.ask(now, most);
        let (calls, share) = self.shares.reserve(charges, &caller.accounts, calls);
        if calls < 2 {
            return (Met::Pass, over);
        }
        *flights += 1;
        let flight = *flights;
        entry.flight = Some(Flight { id: flight, waiting: Vec::new() });
        (Met::Borrow(Loan { flight, calls, scarce: entry.pace.is_scarce(now), share }), over)
    }

    /// Whether a borrowing is still on its way; if so, it wakes `waker` when it has landed.
    pub(super) fn waits(&self, caller: &Caller, flight: u64, waker: &Waker) -> bool {
        // no code of others' under the lock
        let own = waker.clone();
        let mut set = self.set(caller.tag);
        let entry = set.entries.iter_mut().find(|entry| entry.is_of(caller));
        let same = |it: &&mut Flight| it.id == flight;
        let Some(it) = entry.and_then(|entry| entry.flight.as_mut()).filter(same) else {
            return false;
        };
        if !it.waiting.iter().any(|other| other.will_wake(waker)) {
            it.waiting.push(own);
        }
        true
    }

    /// Ends a borrowing. A lease is kept unless one of its accounts was changed since `changes`.
    pub(super) fn land(
        &self,
        caller: &Caller,
        flight: u64,
        changes: u64,
        landing: Landing,
    ) -> bool {
        let now = self.now();
        let mut set = self.set(caller.tag);
        let same =
            |it: &Entry| it.is_of(caller) && it.flight.as_ref().is_some_and(|f| f.id == flight);
        let Some(entry) = set.entries.iter_mut().find(|entry| same(entry)) else { return false };
        let waiting = entry.flight.take().map(|flight| flight.waiting).unwrap_or_default();
        let mut kept = false;
        match landing {
            Landing::Lease { lease, few } => {
                few.into_iter().for_each(|few| entry.pace.scarce(few, SPAN * 5, now));
                entry.pace.crowded(waiting.len());
                kept = self.changes(caller) == changes;
                entry.lease = kept.then_some(lease);
            }
            Landing::Scarce { few, time } => entry.pace.scarce(few, time, now),
            Landing::Refused => {}
            Landing::Failed => entry.pace.cool(),
        }
        drop(set);
        waiting.into_iter().for_each(Waker::wake);
        kept
    }

    /// How often the accounts of a call, and others, were changed.
    pub(super) fn changes(&self, caller: &Caller) -> u64 {
        let count = |account: &u64| self.stripe(*account).load(Acquire);
        caller.accounts.iter().map(count).fold(0, u64::wrapping_add)
    }

    /// Ends every lease of an account, and those to come that were asked for before.
    pub(super) fn end(&self, account: u64) -> Over {
        self.stripe(account).fetch_add(1, AcqRel);
        self.take_out(|entry, _| entry.lease.as_ref().is_some_and(|lease| lease.is_of(account)))
    }

    /// Ends the leases that lie unused or are too old.
    pub(super) fn sweep(&self, at_most: u64) -> Over {
        let idle = |lease: &Lease, now: u64| {
            lease.age(now) >= at_most || now.saturating_sub(lease.last) >= SPAN
        };
        self.take_out(|entry, now| entry.lease.as_ref().is_some_and(|lease| idle(lease, now)))
    }

    pub(super) fn end_all(&self) -> Over {
        self.take_out(|_, _| true)
    }

    pub(super) fn holds_any(&self) -> bool {
        self.sets.iter().any(|set| lock(set).entries.iter().any(|entry| entry.lease.is_some()))
    }

    /// Calls so far that were admitted from what was in hand.
    pub(super) fn admitted(&self) -> u64 {
        self.sets.iter().map(|set| lock(set).admitted).sum()
    }

    fn take_out(&self, which: impl Fn(&Entry, u64) -> bool) -> Over {
        let (now, mut over) = (self.now(), Over::new());
        for set in &self.sets {
            let mut set = lock(set);
            let ended = set.entries.iter_mut().filter(|entry| which(entry, now));
            over.extend(ended.filter_map(|entry| entry.end(now)));
        }
        over
    }

    fn stripe(&self, account: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let at = account as usize % STRIPES;
        &self.changes[at]
    }

    fn set(&self, tag: u64) -> MutexGuard<'_, Set> {
        let scaled = (u128::from(tag) * self.sets.len() as u128) >> 64;
        lock(&self.sets[usize::try_from(scaled).unwrap_or(0)])
    }
}

fn lock(set: &Mutex<Set>) -> MutexGuard<'_, Set> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Set {
    /// What was borrowed under other quotas is not given back under them: the account may by now be
    /// counted in another way.
    fn end_other_plans(&mut self, caller: &Caller) {
        let other = |it: &&mut Entry| it.tag == caller.tag && it.revision != caller.revision;
        self.entries.iter_mut().filter(other).for_each(|entry| drop(entry.lease.take()));
    }
}

impl Entry {
    fn is_of(&self, caller: &Caller) -> bool {
        self.tag == caller.tag && self.revision == caller.revision
    }

    /// The caller's entry, if need be in place of one that was not asked for longest and holds
    /// nothing. None where all hold something.
    fn find<'a>(entries: &'a mut Vec<Self>, caller: &Caller, now: u64) -> Option<&'a mut Self> {
        if let Some(at) = entries.iter().position(|entry| entry.is_of(caller)) {
            return entries.get_mut(at);
        }
        let (tag, revision) = (caller.tag, caller.revision);
        let new = Self { tag, revision, pace: Pace::default(), lease: None, flight: None };
        if entries.len() < WAYS {
            entries.push(new);
            return entries.last_mut();
        }
        let free = entries.iter_mut().filter(|it| it.lease.is_none() && it.flight.is_none());
        let oldest = free.min_by_key(|entry| entry.pace.last().min(now))?;
        drop(mem::replace(oldest, new));
        Some(oldest)
    }

    fn end(&mut self, now: u64) -> Option<Box<Lease>> {
        let mut lease = self.lease.take()?;
        lease.share = Share::default();
        self.pace.ended(&lease, lease.calls_left(now), now);
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `Leased::capacity` tells.
    #[test]
    fn what_is_watched_takes_no_more_room_than_documented() {
        assert!(size_of::<Mutex<Set>>() <= 48, "{}", size_of::<Mutex<Set>>());
        assert!(size_of::<Entry>() <= 104, "{}", size_of::<Entry>());
        assert!(size_of::<Lease>() <= 1_088, "{}", size_of::<Lease>());
    }
}
