//! The accounts of a store, for every algorithm, or its blocked keys.
//!
//! A decision locks the sets of its accounts in ascending order, then the slots, which are not in this
//! table, and the shared accounts last. Those are locked only if a new key may need them. Its
//! instant is its reading of the clock, or the latest change in these sets if that is later. No line is
//! logged and no user code runs under these locks.

mod instants;
mod located;
mod locked;
mod set;
mod shared;

pub(super) use self::{located::Located, locked::LockedAccounts, set::Set};
use self::{located::Position, set::Aligned, shared::SharedTable};
use crate::store::sync::{
    AtomicU64, Mutex, MutexGuard, OnceLock,
    Ordering::{AcqRel, Acquire},
    WAYS,
};

/// The maximum number of groups of sets for resets, which are not those that share accounts. Each keeps
/// one instant: its latest reset.
const RESET_GROUPS: usize = 1_024;
/// The index of the set of an account that is in no set.
const NO_SET: usize = usize::MAX;
const SECOND: u64 = 1_000_000_000;

/// A table of accounts with fixed memory, divided into sets of entries with one lock each.
///
/// A lookup usually reads one entry, and at most sixteen. The entry of an expired account can be
/// reused, so no sweep is needed.
///
/// New keys share accounts if their set has no free entry. For these, the sets are divided into
/// `SET_GROUPS` groups. Each group has one shared account per rule and address of a quota, which limits
/// all new keys of the group together. A key that later gets an entry starts with the debt of the shared
/// account. A flood of new keys therefore neither frees an exhausted key nor affects other rules.
pub(super) struct Table {
    sets: Box<[Aligned]>,
    /// The shared accounts. The caller must not lock a set or slots while it holds this lock.
    shared: Mutex<SharedTable>,
    /// The latest reset of each group of sets. Charges before that instant cannot be undone.
    void_before: OnceLock<Box<[AtomicU64]>>,
}

impl Table {
    /// Creates a table with at least `entries` entries.
    pub(super) fn new(entries: usize) -> Self {
        let sets = (0..entries.div_ceil(WAYS).max(1))
            .map(|_| Aligned::default())
            .collect();
        Self {
            sets,
            shared: Mutex::default(),
            void_before: OnceLock::new(),
        }
    }

    /// Returns the number of entries.
    pub(super) fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Counts the accounts that have not expired. Reads every entry.
    pub(super) fn active(&self, now: u64) -> usize {
        let sets = self.sets.iter().map(|set| set.0.lock().active(now));
        sets.sum()
    }

    /// Returns the index of the set for `id`.
    #[inline]
    fn index(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.sets.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Locks the set for `id`.
    pub(super) fn set(&self, id: u64) -> MutexGuard<'_, Set> {
        self.sets[self.index(id)].0.lock()
    }

    /// Keeps an account until `until`. Returns `false` if there is no room.
    pub(super) fn keep(&self, id: u64, now: u64, until: u64) -> bool {
        let mut set = self.set(id);
        let found = set.find(id).or_else(|| set.room(id, now, |_| false));
        if let Some(at) = found {
            set.claim(at, id, now);
            set.expires_at[at] = until;
        }
        found.is_some()
    }

    /// Ends an account now.
    pub(super) fn end(&self, id: u64, now: u64) {
        let mut set = self.set(id);
        if let Some(at) = set.find(id) {
            set.expires_at[at] = now;
        }
    }

    /// Returns the nanoseconds until an account expires, or 0 if there is no account.
    pub(super) fn left(&self, id: u64, now: u64) -> u64 {
        let set = self.set(id);
        set.find(id)
            .map_or(0, |at| set.expires_at[at].saturating_sub(now))
    }

    /// Returns the instant before which charges in the group of a set cannot be undone.
    fn void_before(&self, set: usize) -> u64 {
        let groups = self.void_before.get();
        groups.map_or(0, |groups| groups[set % groups.len()].load(Acquire))
    }

    /// Prevents the undo of charges before an instant in the group of a set.
    fn void_charges(&self, set: usize, before: u64) {
        let number = self.sets.len().min(RESET_GROUPS);
        let groups = self
            .void_before
            .get_or_init(|| (0..number).map(|_| AtomicU64::new(0)).collect());
        groups[set % number].fetch_max(before, AcqRel);
    }

    /// Locks the accounts of a decision, and finds their positions. The ids must differ.
    #[inline]
    pub(crate) fn lock<A>(&self, accounts: &mut [A], now: u64) -> LockedAccounts<'_>
    where
        A: AsRef<Located> + AsMut<Located>,
    {
        let mut locked = LockedAccounts::new(self, now);
        let mut next = self.select_sets(accounts);
        while next < NO_SET {
            next = locked.lock_set(next, accounts);
        }
        if accounts.iter().map(A::as_ref).any(Located::has_no_entry) {
            locked.find_rooms(accounts);
        }
        locked
    }

    /// Selects the set of each account. Returns the index of the first set to lock.
    #[inline]
    fn select_sets<A: AsMut<Located>>(&self, accounts: &mut [A]) -> usize {
        let mut first = NO_SET;
        for account in accounts.iter_mut().map(A::as_mut) {
            if account.position != Position::Nowhere {
                account.set = self.index(account.id);
                first = first.min(account.set);
            }
        }
        first
    }
}
