//! A table of the crate, charged as the embedded store does, by the simplest GCRA: an account is the
//! instant at which it is full again, and each charged unit moves it by `T`.

use std::{slice, sync::Arc};

use loom::thread;
use tower_sluice::rule::RuleName;

use super::{
    sync::WAYS,
    table::{Located, LockedAccounts, Table},
};

/// The state of an account: the instant at which it is full again.
pub(crate) type Instant = u64;

/// The time in which one unit returns.
pub(crate) const T: u64 = 10;

/// The ids of accounts. The lowest bit selects the entry of its set at which the search for one begins.
pub(crate) const ALICE: u64 = 2;
pub(crate) const BOB: u64 = 4;
pub(crate) const CAROL: u64 = 6;
pub(crate) const OTHER: u64 = 3;
/// An account in the second set, where there are two.
pub(crate) const FAR: u64 = (1 << 63) + 8;
/// The end of a debt that outlasts every model.
pub(crate) const LONG: Instant = 1_000;

/// A charge to the key's own account, or to the account that keys without an entry share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Charged {
    Own(Instant),
    Shared(Instant),
}

/// An account that is kept in its entry, or beside it.
#[derive(Clone, Debug)]
pub(crate) enum AccountState {
    Gcra(Instant),
    Beside(Instant),
}

pub(crate) struct Quota;

/// All accounts of the models count the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaAddress;

impl AccountState {
    pub(crate) fn expires_at(&self, _: &Quota) -> Instant {
        let (Self::Gcra(tat) | Self::Beside(tat)) = self;
        *tat
    }

    pub(crate) fn condensed(&self) -> Self {
        self.clone()
    }

    fn tat(&mut self) -> &mut Instant {
        let (Self::Gcra(tat) | Self::Beside(tat)) = self;
        tat
    }
}

/// The accounts of a decision are their places alone, as all have one quota.
impl AsRef<Located> for Located {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl AsMut<Located> for Located {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// Accounts that hold `limit` units each.
pub(crate) struct Ledger {
    table: Table,
    limit: u64,
    /// `true` if new accounts are kept beside their entries, as those of other algorithms.
    is_beside: bool,
}

impl Ledger {
    /// Creates one set, whose first entries have accounts that are full again at these instants.
    pub(crate) fn new(limit: u64, accounts: &[(u64, Instant)]) -> Self {
        let ledger = Self { table: Table::new(WAYS), limit, is_beside: false };
        ledger.open(accounts);
        ledger
    }

    /// Creates two sets.
    pub(crate) fn of_two_sets(limit: u64) -> Self {
        Self { table: Table::new(2 * WAYS), limit, is_beside: false }
    }

    /// Keeps the accounts that are opened from now on beside their entries, or in them.
    pub(crate) fn beside(self, is_beside: bool) -> Self {
        Self { is_beside, ..self }
    }

    fn open(&self, accounts: &[(u64, Instant)]) {
        for (id, full_at) in accounts {
            let mut account = account(*id);
            let mut locked = self.table.lock(slice::from_mut(&mut account), 1);
            locked.update(&mut account, &Quota, |state| *state = Some(self.state(*full_at)));
        }
    }

    fn state(&self, tat: Instant) -> AccountState {
        if self.is_beside { AccountState::Beside(tat) } else { AccountState::Gcra(tat) }
    }

    /// Charges a unit, if it fits.
    pub(crate) fn take(&self, id: u64, now: Instant) -> Option<Charged> {
        if !self.is_beside
            && let Some(([tat], locked)) = self.table.lock_instants([id], now)
        {
            let new = self.charged(tat, now, 1)?;
            locked.store([new]);
            return Some(Charged::Own(new));
        }
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let is_shared = locked.overflowed;
        let new = self.charge(&mut locked, &mut account);
        new.map(if is_shared { Charged::Shared } else { Charged::Own })
    }

    /// Charges a unit of each account, if both fit.
    pub(crate) fn take_both(&self, ids: [u64; 2], now: Instant) -> bool {
        if !self.is_beside
            && let Some((tats, locked)) = self.table.lock_instants(ids, now)
        {
            let [Some(one), Some(other)] = tats.map(|tat| self.charged(tat, now, 1)) else {
                return false;
            };
            locked.store([one, other]);
            return true;
        }
        let mut both = ids.map(account);
        let mut locked = self.table.lock(&mut both, now);
        let tats = both.each_ref().map(|account| locked.look(account, tat));
        let are_one = both[0].is_shared_by(&both[1]) && locked.has_shared_debt(&both[1]);
        let units = if are_one { 2 } else { 1 };
        let fits = tats.iter().all(|tat| self.charged(*tat, locked.now, units).is_some());
        fits && both.iter_mut().all(|account| self.charge(&mut locked, account).is_some())
    }

    /// Charges a unit, if it fits. Returns the new state.
    fn charge(&self, locked: &mut LockedAccounts<'_>, account: &mut Located) -> Option<Instant> {
        let new = self.charged(locked.look(account, tat), locked.now, 1)?;
        locked.update(account, &Quota, |state| *state = Some(self.state(new)));
        Some(new)
    }

    /// Returns the state of an account after a charge, if it fits.
    fn charged(&self, tat: Instant, now: Instant, units: u64) -> Option<Instant> {
        let after = tat.max(now) + units * T;
        (after <= now + self.limit * T).then_some(after)
    }

    /// Gives a unit back.
    pub(crate) fn refund(&self, id: u64, now: Instant) {
        // The receipt is later than any reset.
        self.undo(id, now, LONG);
    }

    /// Lowers the key's own account to `to`, or to full if that is in the past, without a receipt.
    pub(crate) fn lower(&self, id: u64, now: Instant, to: Instant) {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let to = to.max(locked.now);
        if account.has_entry() {
            locked.update(&mut account, &Quota, |state| {
                if let Some(tat) = state.as_mut().map(AccountState::tat) {
                    *tat = to.min(*tat);
                }
            });
        }
    }

    /// Drops the account. The clock is read before it is locked, and once more when it is dropped.
    pub(crate) fn reset(&self, id: u64, clock: impl Fn() -> Instant) {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), clock());
        locked.reset(&mut account, &Quota, clock);
    }

    /// Undoes a unit that was charged at that instant.
    pub(crate) fn undo(&self, id: u64, now: Instant, charged: Instant) {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let now = locked.now;
        locked.undo(&account, &Quota, charged, |account| {
            *account.tat() = account.tat().saturating_sub(T).max(now);
        });
    }

    /// Returns the state of the key's own account, if it has one.
    pub(crate) fn look(&self, id: u64) -> Option<Instant> {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), 0);
        if !account.has_entry() {
            return None;
        }
        locked.look(&account, |state| state.map(|state| state.expires_at(&Quota)))
    }

    /// Returns the state of the account that new keys share, as a key without an entry reads it.
    pub(crate) fn look_shared(&self, now: Instant) -> Instant {
        let mut account = account(CAROL + 2);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        assert!(locked.overflowed, "there is room");
        locked.look(&account, tat)
    }

    pub(crate) fn active(&self, now: Instant) -> usize {
        self.table.active(now)
    }

    /// Runs all three at once.
    pub(crate) fn all<A, B: 'static, C: 'static>(
        self,
        one: impl FnOnce(&Self) -> A,
        two: impl FnOnce(&Self) -> B + 'static,
        three: impl FnOnce(&Self) -> C + 'static,
    ) -> (Arc<Self>, A, (B, C)) {
        let ledger = Arc::new(self);
        let (shared, also) = (ledger.clone(), ledger.clone());
        let two = thread::spawn(move || two(&shared));
        let three = thread::spawn(move || three(&also));
        let one = one(&ledger);
        let others = (two.join().expect("no panic"), three.join().expect("no panic"));
        (ledger, one, others)
    }

    /// Runs both at once.
    pub(crate) fn both<A, B: 'static>(
        self,
        one: impl FnOnce(&Self) -> A,
        other: impl FnOnce(&Self) -> B + 'static,
    ) -> (Arc<Self>, A, B) {
        let ledger = Arc::new(self);
        let shared = ledger.clone();
        let other = thread::spawn(move || other(&shared));
        let one = one(&ledger);
        (ledger, one, other.join().expect("no panic"))
    }
}

fn account(id: u64) -> Located {
    Located::new(id, RuleName::default(), 0, QuotaAddress, false)
}

/// Returns the state of an account, also of one that was never charged.
fn tat(account: Option<&AccountState>) -> Instant {
    account.map_or(0, |account| account.expires_at(&Quota))
}
