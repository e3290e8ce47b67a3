//! A set of entries that is charged like the embedded store, by the simplest GCRA.

use std::{slice, sync::Arc};

use loom::thread;
use tower_sluice::rule::RuleName;

use super::table::{Located, LockedAccounts, Table};

/// The time in which one unit returns.
pub(crate) const T: u64 = 10;

/// Accounts. The lowest bit of an account selects the entry at which its search begins.
pub(crate) const ALICE: u64 = 2;
pub(crate) const BOB: u64 = 4;
pub(crate) const CAROL: u64 = 6;
pub(crate) const OTHER: u64 = 3;
/// An account in the second of two sets.
pub(crate) const FAR: u64 = (1 << 63) + 8;
/// The end of a debt that outlasts every model.
pub(crate) const LONG: Instant = 1_000;

/// The state of an account: the instant at which it is full again.
pub(crate) type Instant = u64;

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

/// An account of a decision.
pub(crate) struct Account<'a> {
    pub(crate) at: Located,
    pub(crate) quota: &'a Quota,
}

impl AsRef<Located> for Account<'_> {
    fn as_ref(&self) -> &Located {
        &self.at
    }
}

impl AsMut<Located> for Account<'_> {
    fn as_mut(&mut self) -> &mut Located {
        &mut self.at
    }
}

pub(crate) struct Ledger {
    table: Table,
    limit: u64,
    /// Accounts are kept beside their entries.
    beside: bool,
}

impl Ledger {
    /// Creates a set whose accounts hold `limit` units. The first entries have the given debts.
    pub(crate) fn new(limit: u64, debts: &[(u64, Instant)]) -> Self {
        let ledger = Self { table: Table::new(1), limit, beside: false };
        ledger.open(debts);
        ledger
    }

    /// Keeps new accounts beside their entries, if `beside` is `true`.
    pub(crate) fn with_accounts_beside(self, beside: bool) -> Self {
        Self { beside, ..self }
    }

    /// Creates two sets whose accounts are kept beside their entries, or in them.
    pub(crate) fn wide(limit: u64, beside: bool) -> Self {
        Self { table: Table::new(3), limit, beside }
    }

    fn open(&self, debts: &[(u64, Instant)]) {
        for (id, until) in debts {
            let mut account = account(*id);
            let mut locked = self.table.lock(slice::from_mut(&mut account), 1);
            locked.update(&mut account.at, account.quota, |it| *it = Some(self.state(*until)));
        }
    }

    fn state(&self, tat: Instant) -> AccountState {
        if self.beside { AccountState::Beside(tat) } else { AccountState::Gcra(tat) }
    }

    /// Charges a unit, if it fits.
    pub(crate) fn take(&self, id: u64, now: Instant) -> Option<Charged> {
        if !self.beside
            && let Some(([tat], locked)) = self.table.lock_instants([id], now)
        {
            let new = self.step(tat, now)?;
            locked.store([new]);
            return Some(Charged::Own(new));
        }
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let shared = locked.overflowed;
        let new = self.charge(&mut locked, &mut account.at, 1);
        new.map(if shared { Charged::Shared } else { Charged::Own })
    }

    /// Charges a unit of each account, if both fit.
    pub(crate) fn take_both(&self, ids: [u64; 2], now: Instant) -> bool {
        if !self.beside
            && let Some((tats, locked)) = self.table.lock_instants(ids, now)
        {
            let new = tats.map(|tat| self.step(tat, now));
            let [Some(one), Some(other)] = new else { return false };
            locked.store([one, other]);
            return true;
        }
        let mut both = ids.map(account);
        let mut locked = self.table.lock(&mut both, now);
        let tats = both.each_ref().map(|it| locked.look(&it.at, tat));
        let units = if both[0].at.shares(&both[1].at) { 2 } else { 1 };
        let fits = tats.iter().all(|tat| self.steps(*tat, locked.now, units).is_some());
        fits && both.iter_mut().all(|it| self.charge(&mut locked, &mut it.at, 1).is_some())
    }

    fn charge(
        &self,
        locked: &mut LockedAccounts<'_>,
        at: &mut Located,
        units: u64,
    ) -> Option<Instant> {
        let (now, tat) = (locked.now, locked.look(at, tat));
        let new = self.steps(tat, now, units)?;
        locked.update(at, &Quota, |account| *account = Some(self.state(new)));
        Some(new)
    }

    fn step(&self, tat: Instant, now: Instant) -> Option<Instant> {
        self.steps(tat, now, 1)
    }

    fn steps(&self, tat: Instant, now: Instant, units: u64) -> Option<Instant> {
        let after = tat.max(now) + units * T;
        (after <= now + self.limit * T).then_some(after)
    }

    /// Gives a unit back.
    pub(crate) fn refund(&self, id: u64, now: Instant) {
        self.undo(id, now, LONG);
    }

    /// Lowers the key's own account to `to`, or drops it if that is in the past.
    pub(crate) fn lower(&self, id: u64, now: Instant, to: Instant) {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let to = to.max(locked.now);
        if account.at.has_entry() {
            locked.update(&mut account.at, &Quota, |account| {
                if let Some(tat) = account.as_mut().map(AccountState::tat) {
                    *tat = to.min(*tat);
                }
            });
        }
    }

    /// Drops the account. The clock reads `now` once it is dropped.
    pub(crate) fn reset(&self, id: u64, now: Instant) {
        let mut account = account(id);
        self.table.lock(slice::from_mut(&mut account), now).reset(&mut account.at, &Quota, || now);
    }

    /// Undoes a unit that was charged at that instant.
    pub(crate) fn undo(&self, id: u64, now: Instant, charged: Instant) {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        let now = locked.now;
        locked.undo(&account.at, &Quota, charged, |account| {
            *account.tat() = account.tat().saturating_sub(T).max(now);
        });
    }

    /// Returns the state of the key's own account, if it has one.
    pub(crate) fn look(&self, id: u64) -> Option<Instant> {
        let mut account = account(id);
        let mut locked = self.table.lock(slice::from_mut(&mut account), 0);
        account
            .at
            .has_entry()
            .then(|| locked.look(&account.at, |it| it.map(|it| tat(Some(it)))))
            .flatten()
    }

    /// Returns the state of the account that new keys share, as a key without an entry reads it.
    pub(crate) fn look_shared(&self, now: Instant) -> Instant {
        let mut account = account(CAROL + 2);
        let mut locked = self.table.lock(slice::from_mut(&mut account), now);
        assert!(locked.overflowed, "there is room");
        locked.look(&account.at, tat)
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

fn account(id: u64) -> Account<'static> {
    Account { at: Located::new(id, RuleName::default(), 0, QuotaAddress, false), quota: &Quota }
}

fn tat(account: Option<&AccountState>) -> Instant {
    account.map_or(0, |account| account.expires_at(&Quota))
}
