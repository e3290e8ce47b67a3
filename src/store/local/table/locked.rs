//! The locked accounts of one decision.

use smallvec::SmallVec;

use super::{
    NO_SET, Table,
    located::{Located, Position},
    set::Set,
    shared::{Shared, SharedAccounts, SharedTable},
};
use crate::{algorithm::AccountState, quota::Quota, store::sync::MutexGuard};

/// The locks of the accounts of one decision.
pub(crate) struct LockedAccounts<'a> {
    table: &'a Table,
    /// The sets, in ascending order of their indexes.
    sets: SmallVec<[MutexGuard<'a, Set>; 4]>,
    shared: Option<MutexGuard<'a, SharedTable>>,
    /// The instant of the decision.
    pub(crate) now: u64,
    /// `true` if some account is shared by new keys.
    pub(crate) overflowed: bool,
}

impl<'a> LockedAccounts<'a> {
    #[inline]
    pub(super) fn new(table: &'a Table, now: u64) -> Self {
        Self {
            table,
            sets: SmallVec::new(),
            shared: None,
            now,
            overflowed: false,
        }
    }

    /// Locks a set, and finds the entries of its accounts. Returns the index of the next set to lock.
    #[inline]
    pub(super) fn lock_set<A: AsMut<Located>>(
        &mut self,
        index: usize,
        accounts: &mut [A],
    ) -> usize {
        let set = self.table.sets[index].0.lock();
        let mut next = NO_SET;
        for account in accounts.iter_mut().map(A::as_mut) {
            if account.set == index {
                account.lock = self.sets.len();
                account.position = set
                    .find(account.id)
                    .map_or(Position::Shared, Position::Entry);
            } else if account.set > index {
                next = next.min(account.set);
            }
        }
        self.now = self.now.max(set.newest);
        self.sets.push(set);
        next
    }

    /// Finds a free entry for each new account.
    #[cold]
    #[inline(never)]
    pub(super) fn find_rooms<A>(&mut self, accounts: &mut [A])
    where
        A: AsRef<Located> + AsMut<Located>,
    {
        for index in 0..accounts.len() {
            let account = *accounts[index].as_ref();
            if !account.has_no_entry() {
                continue;
            }
            let others = accounts.iter().map(A::as_ref);
            let room = self.sets[account.lock].room(account.id, self.now, |at| {
                others
                    .clone()
                    .any(|other| other.lock == account.lock && other.is_at(at))
            });
            match room {
                Some(at) => accounts[index].as_mut().position = Position::Room(at),
                None => self.overflowed = true,
            }
        }
    }

    /// Returns the account if its state is a single instant.
    #[inline]
    pub(crate) fn instant(&mut self, account: &Located) -> Option<&mut u64> {
        match account.position {
            Position::Entry(at) => self.sets[account.lock].instant(at),
            _ => None,
        }
    }

    /// Calls `read` with the account.
    #[inline]
    pub(crate) fn look<T>(
        &mut self,
        account: &Located,
        read: impl FnOnce(Option<&AccountState>) -> T,
    ) -> T {
        match account.position {
            Position::Entry(at) => self.sets[account.lock].look(at, self.now, read),
            Position::Room(_) => read(self.inherited(account).as_ref()),
            Position::Shared => read(self.shared(account)),
            Position::Nowhere => read(None),
        }
    }

    /// Applies `change` to the account. `change` may create the account, unless it is nowhere: then nothing
    /// is kept.
    #[inline]
    pub(crate) fn update<T>(
        &mut self,
        account: &mut Located,
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let now = self.now;
        let (at, mut stored) = match account.position {
            Position::Entry(at) => (at, self.sets[account.lock].take(at, now)),
            Position::Room(at) => (at, self.inherited(account)),
            Position::Shared => return self.update_shared(account, quota, change),
            Position::Nowhere => return change(&mut None),
        };
        let result = change(&mut stored);
        let set = &mut self.sets[account.lock];
        if !account.has_entry() {
            set.claim(at, account.id, now);
            account.position = Position::Entry(at);
        }
        set.put(at, stored, quota, now);
        result
    }

    /// Applies `change`, which undoes a charge that was made at the instant `charged`.
    ///
    /// Does nothing if the key has no account of its own, or after a later reset of an account in the
    /// same group of sets.
    pub(crate) fn undo(
        &mut self,
        account: &Located,
        quota: &Quota,
        charged: u64,
        change: impl FnOnce(&mut AccountState),
    ) {
        if charged < self.table.void_before(account.set) {
            return;
        }
        // A shared account may not have the charge, because the key may have had an account of its own.
        if let Position::Entry(at) = account.position {
            self.sets[account.lock].undo(at, quota, self.now, change);
        }
    }

    /// Drops the key's own account, and prevents the undo of earlier charges.
    ///
    /// Calls `clock` while the account is locked, so that no earlier charge has a later instant.
    pub(crate) fn reset(
        &mut self,
        account: &mut Located,
        quota: &Quota,
        clock: impl FnOnce() -> u64,
    ) {
        if account.has_entry() {
            self.update(account, quota, |stored| *stored = None);
        }
        self.table.void_charges(account.set, clock() + 1);
    }

    /// Lets new keys without an entry share accounts, as many as there may be. The others are nowhere.
    ///
    /// The caller has taken all other locks, because the shared accounts are locked last.
    #[cold]
    pub(crate) fn share<A: AsRef<Located> + AsMut<Located>>(&mut self, accounts: &mut [A]) {
        let all = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let none = SharedAccounts::default();
        for index in 0..accounts.len() {
            let account = *accounts[index].as_ref();
            if !account.has_no_entry() {
                continue;
            }
            let earlier = accounts[..index].iter().map(A::as_ref);
            let opened = earlier.filter(|other| other.is_in_group_of(&account));
            let opened = opened.map(|other| other.address);
            let known = all.get(&account.set_group()).unwrap_or(&none);
            if !known.has_room(account.address, opened, self.now) {
                accounts[index].as_mut().position = Position::Nowhere;
            }
        }
    }

    /// Returns `true` if the account is one that new keys share, or starts with its debt.
    pub(crate) fn has_shared_debt(&self, account: &Located) -> bool {
        match account.position {
            Position::Entry(_) | Position::Nowhere => false,
            Position::Room(_) => self.sets[account.lock].may_have_debt(self.now),
            Position::Shared => true,
        }
    }

    /// Returns the initial state of a new account: the debt of the shared account, if any.
    #[cold]
    fn inherited(&mut self, account: &Located) -> Option<AccountState> {
        if !self.has_shared_debt(account) {
            return None;
        }
        self.shared(account).map(AccountState::condensed)
    }

    #[cold]
    fn shared(&mut self, account: &Located) -> Option<&AccountState> {
        let all = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let accounts = all.get(&account.set_group())?;
        accounts.find(account.address, self.now)
    }

    /// Returns the time until one of the shared accounts ends, of which there are too many for another.
    #[cold]
    pub(crate) fn shared_wait(&self, account: &Located) -> Option<u64> {
        let accounts = self.shared.as_ref()?.get(&account.set_group())?;
        accounts.wait(self.now)
    }

    #[cold]
    fn update_shared<T>(
        &mut self,
        account: &Located,
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let all = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let accounts = all.entry(account.set_group()).or_default();
        let mut stored = accounts.take(account.address, self.now);
        let result = change(&mut stored);
        if let Some(state) = stored {
            let expires_at = state.expires_at(quota);
            accounts.put(Shared {
                address: account.address,
                expires_at,
                state,
            });
            self.sets[account.lock].extend_debt(expires_at);
        }
        result
    }
}
