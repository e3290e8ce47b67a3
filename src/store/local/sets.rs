//! A table of slots with fixed memory, divided into sets with one lock each.
//!
//! A slot holds one account: a fingerprint of its address, and the instant at which the account
//! expires. For a plain GCRA quota, that instant is the whole state. Other states are kept beside
//! the slots.
//!
//! A lookup usually reads one slot, and at most sixteen. The slot of an expired account can be
//! reused, so no sweep is needed.

use super::sync::{Mutex, MutexGuard, WAYS};

/// An account that is kept in a slot.
pub(super) trait Stored: Clone {
    /// The quota of the account.
    type Quota;

    /// Creates an account whose whole state is `instant`.
    fn from_instant(instant: u64) -> Self;

    /// Returns the state of the account if it is a single instant.
    fn as_instant(&self, expires_at: u64) -> Option<u64>;

    /// Returns the instant at which the account expires. An expired account equals a new account.
    fn expires_at(&self, quota: &Self::Quota) -> u64;

    /// Returns an account with the same debt and a state of bounded size.
    #[must_use]
    fn condensed(&self) -> Self;
}

#[derive(Clone, Copy, Debug, Default)]
struct TableSlot {
    id: u64,
    expires_at: u64,
}

/// A set of slots.
#[derive(Debug)]
pub(super) struct Set<A> {
    slots: [TableSlot; WAYS],
    /// The states of accounts that need more than one instant, allocated on first use.
    states: Option<Box<[Option<A>; WAYS]>>,
    /// The latest instant at which an account was dropped.
    ///
    /// New accounts start at this instant or later. Otherwise, a thread with an older reading of
    /// the clock could charge the same window twice.
    dropped_at: u64,
}

impl<A> Default for Set<A> {
    fn default() -> Self {
        Self { slots: Default::default(), states: None, dropped_at: 0 }
    }
}

impl<A> Set<A> {
    /// Returns the slot that holds `id`, if any.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let first = first(id);
        if self.slots[first].id == id { Some(first) } else { self.search(id) }
    }

    #[inline(never)]
    fn search(&self, id: u64) -> Option<usize> {
        probe(id).find(|at| self.slots[*at].id == id)
    }

    /// Returns a free slot for `id` for which `except` returns `false`: the one that expired first. A
    /// slot that expired later may belong to a key that comes back soon.
    pub(super) fn room(&self, id: u64, now: u64, except: impl Fn(usize) -> bool) -> Option<usize> {
        let is_free = |at: &usize| self.slots[*at].expires_at <= now && !except(*at);
        probe(id).filter(is_free).min_by_key(|at| self.slots[*at].expires_at)
    }

    /// Assigns the free slot `at` to `id`.
    pub(super) fn claim(&mut self, at: usize, id: u64, now: u64) {
        self.slots[at].id = id;
        if let Some(states) = &mut self.states {
            states[at] = None;
        }
        self.dropped_at = self.dropped_at.max(now);
    }

    pub(super) fn dropped_at(&self) -> u64 {
        self.dropped_at
    }

    /// Returns the number of accounts that have not expired.
    pub(super) fn active(&self, now: u64) -> usize {
        self.slots.iter().filter(|slot| slot.expires_at > now).count()
    }

    /// Returns the instant at which the account in this slot expires.
    #[inline]
    pub(super) fn expires_at(&self, at: usize) -> u64 {
        self.slots[at % WAYS].expires_at
    }

    /// Returns the account in this slot, if its state is a single instant.
    #[inline]
    pub(super) fn instant(&mut self, at: usize) -> Option<&mut u64> {
        let is_instant = self.state(at).is_none();
        is_instant.then(|| &mut self.slots[at % WAYS].expires_at)
    }

    /// Stores an account whose state is a single instant.
    pub(super) fn store_instant(&mut self, at: usize, instant: u64) {
        self.slots[at % WAYS].expires_at = instant;
    }

    /// Returns the state of the account in this slot, if the state is more than one instant.
    #[inline]
    pub(super) fn state(&self, at: usize) -> Option<&A> {
        self.states.as_ref()?[at % WAYS].as_ref()
    }
}

impl<A: Stored> Set<A> {
    /// Takes the account out of this slot, unless it has expired.
    #[inline]
    pub(super) fn take(&mut self, at: usize, now: u64) -> Option<A> {
        let expires_at = self.expires_at(at);
        let state = self.states.as_mut().and_then(|states| states[at % WAYS].take());
        (expires_at > now).then(|| state.unwrap_or_else(|| A::from_instant(expires_at)))
    }

    /// Stores an account in this slot. `None` drops the account.
    #[inline]
    pub(super) fn put(&mut self, at: usize, account: Option<A>, quota: &A::Quota, now: u64) {
        let old = self.expires_at(at);
        if account.is_none() && old > now {
            self.dropped_at = self.dropped_at.max(now);
        }
        let expires_at = account.as_ref().map_or(old.min(now), |it| it.expires_at(quota));
        self.store(at, account, expires_at);
    }

    /// Applies `change`, which undoes a charge. An account whose state is more than one instant
    /// expires no sooner than before.
    pub(super) fn undo(
        &mut self,
        at: usize,
        quota: &A::Quota,
        now: u64,
        change: impl FnOnce(&mut A),
    ) {
        let before = self.expires_at(at);
        let Some(mut account) = self.take(at, now) else { return };
        change(&mut account);
        let by_quota = account.expires_at(quota);
        let is_instant = account.as_instant(by_quota).is_some();
        let expires_at = if is_instant { by_quota } else { by_quota.max(before) };
        self.store(at, Some(account), expires_at);
    }

    #[inline]
    fn store(&mut self, at: usize, account: Option<A>, expires_at: u64) {
        self.store_instant(at, expires_at);
        let state = account.filter(|account| account.as_instant(expires_at).is_none());
        if state.is_some() || self.states.is_some() {
            self.states.get_or_insert_with(|| Box::new([const { None }; WAYS]))[at % WAYS] = state;
        }
    }
}

/// An array of sets.
#[derive(Debug)]
pub(super) struct Sets<A>(Box<[Mutex<Set<A>>]>);

impl<A> Sets<A> {
    /// Creates sets with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        Self((0..slots.div_ceil(WAYS).max(1)).map(|_| Mutex::default()).collect())
    }

    /// Returns the number of sets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.len() * WAYS
    }

    /// Counts the accounts that have not expired. Reads every slot.
    pub(super) fn active(&self, now: u64) -> usize {
        self.0.iter().map(|set| set.lock().active(now)).sum()
    }

    /// Returns the index of the set for `id`.
    #[inline]
    pub(super) fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.0.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    #[inline]
    pub(super) fn lock(&self, index: usize) -> MutexGuard<'_, Set<A>> {
        self.0[index].lock()
    }
}

/// Returns the first slot in the search order of `id`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
fn first(id: u64) -> usize {
    id as usize % WAYS
}

/// Returns all slots in the search order of `id`.
fn probe(id: u64) -> impl Iterator<Item = usize> {
    (first(id)..WAYS).chain(0..first(id))
}
