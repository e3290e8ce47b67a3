//! Sets of entries, which hold the accounts.

use super::SECOND;
use crate::{
    algorithm::AccountState,
    quota::Quota,
    store::sync::{Mutex, WAYS},
};

/// A set and its lock, in as few cache lines as possible. They are loaded in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Aligned(pub(super) Mutex<Set>);

/// A set of entries. An entry holds one account: a part of its id, and the instant at which it expires.
/// For a plain GCRA quota, that instant is the whole state. Other states are kept beside the entries.
///
/// The fields are in the order in which a lookup needs them, so that it reads few cache lines.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Set {
    /// The states of accounts that need more than one instant, allocated on first use.
    states: Option<Box<[Option<AccountState>; WAYS]>>,
    /// The latest instant at which an account was changed or dropped. Charges of existing plain GCRA
    /// accounts are left out: their state is an instant that no older reading of the clock moves back.
    ///
    /// Decisions are made at this instant or later. Otherwise, a thread with an older reading of the clock
    /// could charge the same window twice, or its charge could join a newer one and not be found by its
    /// receipt.
    pub(super) newest: u64,
    /// The end of possible debt of new keys of this set, in seconds of Unix time. Without it, one full set
    /// would put the new keys of all sets of its group into debt.
    in_debt_until: u32,
    /// The low bits of the ids. The set has been selected by the high bits.
    ids: [[u8; 6]; WAYS],
    pub(super) expires_at: [u64; WAYS],
}

impl Set {
    /// Returns the entry that holds `id`, if any.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<usize> {
        let first = first(id);
        if self.ids[first] == low(id) {
            Some(first)
        } else {
            self.search(id)
        }
    }

    #[inline(never)]
    fn search(&self, id: u64) -> Option<usize> {
        probe(id).find(|at| self.ids[*at] == low(id))
    }

    /// Returns a free entry for `id` for which `except` returns `false`: the one that expired first. An
    /// entry that expired later may belong to a key that comes back soon.
    pub(super) fn room(&self, id: u64, now: u64, except: impl Fn(usize) -> bool) -> Option<usize> {
        let mut room = None;
        let mut least = now.saturating_add(1);
        for at in probe(id) {
            if self.expires_at[at] < least && !except(at) {
                (room, least) = (Some(at), self.expires_at[at]);
            }
            if least == 0 {
                break; // an entry that was never used
            }
        }
        room
    }

    /// Assigns a free entry to a new account, if it starts at `now` and without debt.
    #[inline(never)]
    pub(super) fn claim_without_debt(
        &mut self,
        id: u64,
        now: u64,
        except: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if self.newest > now || self.may_have_debt(now) {
            return None;
        }
        let at = self.room(id, now, except)?;
        self.claim(at, id, now);
        Some(at)
    }

    /// Assigns the free entry `at` to `id`.
    pub(super) fn claim(&mut self, at: usize, id: u64, now: u64) {
        self.ids[at % WAYS] = low(id);
        if let Some(states) = &mut self.states {
            states[at % WAYS] = None;
        }
        self.newest = self.newest.max(now);
    }

    /// Returns `true` if a new key may have the debt of a shared account.
    pub(super) fn may_have_debt(&self, now: u64) -> bool {
        u64::from(self.in_debt_until) > now / SECOND
    }

    /// Records that a shared account is in debt until an instant.
    pub(super) fn extend_debt(&mut self, until: u64) {
        let second = u32::try_from(until / SECOND + 1).unwrap_or(u32::MAX);
        self.in_debt_until = second.max(self.in_debt_until);
    }

    /// Counts the accounts that have not expired.
    pub(super) fn active(&self, now: u64) -> usize {
        let all = self.expires_at.iter();
        all.filter(|instant| **instant > now).count()
    }

    /// Returns the account in this entry, if its state is a single instant.
    #[inline]
    pub(super) fn instant(&mut self, at: usize) -> Option<&mut u64> {
        let is_instant = self.state(at).is_none();
        is_instant.then(|| &mut self.expires_at[at % WAYS])
    }

    /// Returns the state of the account in this entry, if the state is more than one instant.
    #[inline]
    fn state(&self, at: usize) -> Option<&AccountState> {
        self.states.as_ref()?[at % WAYS].as_ref()
    }

    /// Calls `read` with the account in this entry, unless it has expired.
    #[inline]
    pub(super) fn look<T>(
        &self,
        at: usize,
        now: u64,
        read: impl FnOnce(Option<&AccountState>) -> T,
    ) -> T {
        let expires_at = self.expires_at[at % WAYS];
        if expires_at <= now {
            return read(None);
        }
        match self.state(at) {
            Some(state) => read(Some(state)),
            None => read(Some(&AccountState::Gcra(expires_at))),
        }
    }

    /// Takes the account out of this entry, unless it has expired.
    #[inline]
    pub(super) fn take(&mut self, at: usize, now: u64) -> Option<AccountState> {
        let expires_at = self.expires_at[at % WAYS];
        let state = self
            .states
            .as_mut()
            .and_then(|states| states[at % WAYS].take());
        (expires_at > now).then(|| state.unwrap_or(AccountState::Gcra(expires_at)))
    }

    /// Stores an account in this entry. `None` drops the account.
    #[inline]
    pub(super) fn put(
        &mut self,
        at: usize,
        account: Option<AccountState>,
        quota: &Quota,
        now: u64,
    ) {
        self.newest = self.newest.max(now);
        let old = self.expires_at[at % WAYS];
        let expires_at = account
            .as_ref()
            .map_or(old.min(now), |account| account.expires_at(quota));
        self.store(at, account, expires_at);
    }

    /// Applies `change`, which undoes a charge. An account whose state is more than one instant
    /// expires no sooner than before.
    pub(super) fn undo(
        &mut self,
        at: usize,
        quota: &Quota,
        now: u64,
        change: impl FnOnce(&mut AccountState),
    ) {
        let before = self.expires_at[at % WAYS];
        let Some(mut account) = self.take(at, now) else {
            return;
        };
        self.newest = self.newest.max(now);
        change(&mut account);
        let by_quota = account.expires_at(quota);
        let expires_at = if is_instant(&account, by_quota) {
            by_quota
        } else {
            by_quota.max(before)
        };
        self.store(at, Some(account), expires_at);
    }

    #[inline]
    fn store(&mut self, at: usize, account: Option<AccountState>, expires_at: u64) {
        self.expires_at[at % WAYS] = expires_at;
        let state = account.filter(|account| !is_instant(account, expires_at));
        if state.is_some() || self.states.is_some() {
            self.states
                .get_or_insert_with(|| Box::new([const { None }; WAYS]))[at % WAYS] = state;
        }
    }
}

/// Returns `true` if the instant at which the account expires is its whole state.
fn is_instant(account: &AccountState, expires_at: u64) -> bool {
    matches!(account, AccountState::Gcra(tat) if *tat == expires_at)
}

/// Returns the bits of an id that a set keeps.
#[inline]
fn low(id: u64) -> [u8; 6] {
    let [low @ .., _, _] = id.to_le_bytes();
    low
}

/// Returns the first entry in the search order of `id`.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lowest bits are wanted"
)]
fn first(id: u64) -> usize {
    id as usize % WAYS
}

/// Returns all entries in the search order of `id`.
fn probe(id: u64) -> impl Iterator<Item = usize> {
    (0..WAYS).map(move |n| (first(id) + n) % WAYS)
}
