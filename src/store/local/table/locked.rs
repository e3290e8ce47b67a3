//! The locked accounts of one decision.

use smallvec::SmallVec;

use super::{
    RESET_GROUPS, SECOND, Table,
    located::{Located, Place},
    set::Set,
    shared::{SHARED_QUOTAS, Shared, SharedAccounts},
};
use crate::{
    algorithm::AccountState,
    quota::Quota,
    store::sync::{
        AtomicU64, MutexGuard,
        Ordering::{AcqRel, Acquire},
        WAYS,
    },
};

/// The locks of the accounts of one decision.
pub(crate) struct LockedAccounts<'a> {
    pub(super) table: &'a Table,
    /// The sets, in ascending order of their indexes.
    pub(super) sets: SmallVec<[MutexGuard<'a, Set>; 4]>,
    pub(super) shared: Option<MutexGuard<'a, SharedAccounts>>,
    /// The instant of the decision.
    pub(crate) now: u64,
    /// `true` if some account is shared by new keys.
    pub(crate) overflowed: bool,
}

impl LockedAccounts<'_> {
    /// Finds a free slot for each new account.
    #[cold]
    #[inline(never)]
    pub(super) fn find_rooms<A>(&mut self, accounts: &mut [A])
    where
        A: AsRef<Located> + AsMut<Located>,
    {
        for index in 0..accounts.len() {
            let Located {
                id, lock, place, ..
            } = *accounts[index].as_ref();
            if place != Place::Shared {
                continue;
            }
            let room = self.sets[lock].room(id, self.now, |at| {
                let mut all = accounts
                    .iter()
                    .map(A::as_ref)
                    .filter(|other| other.lock == lock);
                all.any(|other| [Place::Slot(at), Place::Room(at)].contains(&other.place))
            });
            match room {
                Some(at) => accounts[index].as_mut().place = Place::Room(at),
                None => self.overflowed = true,
            }
        }
    }

    /// Returns the account if its state is a single instant.
    #[inline]
    pub(crate) fn instant(&mut self, account: &Located) -> Option<&mut u64> {
        match account.place {
            Place::Slot(at) => self.sets[account.lock].instant(at),
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
        let now = self.now;
        match account.place {
            Place::Slot(at) => {
                let set = &self.sets[account.lock];
                match (set.state(at), set.expires_at[at % WAYS]) {
                    (_, expires_at) if expires_at <= now => read(None),
                    (Some(state), _) => read(Some(state)),
                    (None, instant) => read(Some(&AccountState::Gcra(instant))),
                }
            }
            Place::Room(_) => read(self.inherited(account).as_ref()),
            Place::Shared | Place::Elsewhere => read(self.shared(account)),
        }
    }

    /// Applies `change` to the account. `change` may create the account.
    #[inline]
    pub(crate) fn update<T>(
        &mut self,
        account: &mut Located,
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let now = self.now;
        let (at, mut stored) = match account.place {
            Place::Slot(at) => (at, self.sets[account.lock].take(at, now)),
            Place::Room(at) => (at, self.inherited(account)),
            Place::Shared | Place::Elsewhere => return self.update_shared(account, quota, change),
        };
        let result = change(&mut stored);
        let set = &mut self.sets[account.lock];
        if !account.has_slot() {
            set.claim(at, account.id, now);
            account.place = Place::Slot(at);
        }
        set.put(at, stored, quota, now);
        result
    }

    /// Applies `change`, which undoes a charge that was made at the instant `charged`.
    ///
    /// Does nothing if the key has no account of its own, or after a later reset of an account in the
    /// same group of sets. The quota may be older than the account, so the account expires no sooner
    /// than before.
    pub(crate) fn undo(
        &mut self,
        account: &Located,
        quota: &Quota,
        charged: u64,
        change: impl FnOnce(&mut AccountState),
    ) {
        let void_before = self
            .table
            .void_before
            .get()
            .map(|all| &all[account.set % all.len()]);
        if charged < void_before.map_or(0, |instant| instant.load(Acquire)) {
            return;
        }
        // A shared account may not have the charge, because the key may have had an account of its own.
        if let Place::Slot(at) = account.place {
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
        if account.has_slot() {
            self.update(account, quota, |stored| *stored = None);
        }
        let groups = self.table.sets.len().min(RESET_GROUPS);
        let all = self
            .table
            .void_before
            .get_or_init(|| (0..groups).map(|_| AtomicU64::new(0)).collect());
        all[account.set % groups].fetch_max(clock() + 1, AcqRel);
    }

    /// Returns the initial state of a new account: the debt of the shared account, if any.
    #[cold]
    fn inherited(&mut self, account: &Located) -> Option<AccountState> {
        let until = self.sets[account.lock].in_debt_until;
        let in_debt = u64::from(until) > self.now / SECOND;
        in_debt
            .then(|| self.shared(account).map(AccountState::condensed))
            .flatten()
    }

    #[cold]
    fn shared(&mut self, account: &Located) -> Option<&AccountState> {
        let now = self.now;
        let accounts = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let mut all = accounts.get(&account.shared_group())?.iter();
        let found =
            all.find(|shared| shared.address == account.address && shared.expires_at > now)?;
        Some(&found.state)
    }

    /// Returns the time until the quota of a new key can have a shared account, or `None` if it has
    /// one, can have one, or needs none.
    #[cold]
    pub(crate) fn shared_wait(&mut self, account: &Located) -> Option<u64> {
        if account.place != Place::Shared || self.shared(account).is_some() {
            return None;
        }
        let accounts = self.shared.as_ref()?.get(&account.shared_group())?;
        let left = accounts
            .iter()
            .map(|account| account.expires_at.saturating_sub(self.now));
        let left = left.filter(|left| *left > 0);
        if left.clone().count() < SHARED_QUOTAS {
            None
        } else {
            left.min()
        }
    }

    #[cold]
    fn update_shared<T>(
        &mut self,
        account: &Located,
        quota: &Quota,
        change: impl FnOnce(&mut Option<AccountState>) -> T,
    ) -> T {
        let now = self.now;
        let all = self.shared.get_or_insert_with(|| self.table.shared.lock());
        let accounts = all.entry(account.shared_group()).or_default();
        if accounts.len() >= SHARED_QUOTAS {
            accounts.retain(|shared| shared.expires_at > now || shared.address == account.address);
        }
        let at = accounts
            .iter()
            .position(|shared| shared.address == account.address);
        let stored = at
            .map(|at| accounts.swap_remove(at))
            .filter(|account| account.expires_at > now);
        let mut stored = stored.map(|account| account.state);
        let result = change(&mut stored);
        if let Some(state) = stored {
            let expires_at = state.expires_at(quota);
            let second = u32::try_from(expires_at / SECOND + 1).unwrap_or(u32::MAX);
            let until = &mut self.sets[account.lock].in_debt_until;
            *until = second.max(*until);
            // Most rules have one quota.
            accounts.reserve_exact(1);
            accounts.push(Shared {
                address: account.address,
                expires_at,
                state,
            });
        }
        result
    }
}
