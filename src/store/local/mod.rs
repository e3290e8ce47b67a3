//! The embedded store: exact, bounded at construction, and the same cost at any load.

mod clock;
mod overflow;
mod slots;

use std::{
    convert::Infallible,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::Arc,
};

use foldhash::{SharedSeed, quality::SeedableRandomState};
use smallvec::SmallVec;

pub(crate) use self::clock::Clock;
use self::{overflow::Overflow, slots::Slots};
use super::{Answer, Charge, Never, Store};
use crate::{
    algorithm::gcra::{Ask, Gcra},
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
};

/// Two slots a key: at the configured capacity a set of 16 then overflows for less than one key in
/// a thousand.
const SLOTS_PER_KEY: usize = 2;
const DEFAULT_KEYS: usize = 131_072;
/// How often a decision over several accounts looks again because another thread charged in
/// between. It ends, since two newcomers who share an account may each fit and both never.
const RACES: usize = 16;

/// The embedded store: accounts in this process's memory.
///
/// Its memory is fixed at construction (34 bytes for each key of the capacity) and a flood of
/// fresh keys cannot grow it. An account in debt is never forgotten; when there is no room for a
/// newcomer, newcomers share an account per rule and quota until there is (see
/// [`Stats::overflowed`]), so they may be refused early, and no exhausted key is freed.
///
/// An account takes one slot per quota of its rule, and a full account takes none. So the capacity
/// has to hold the keys that are *in debt* at a time, times the quotas of a rule.
///
/// A clone is the same store. What a process admits is exact whatever the number of threads; other
/// processes do not share it.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota};
///
/// let store = LocalStore::with_capacity(1_000_000); // 34 MB
/// let limiter = Limiter::new(store.clone());
/// limiter.take("alice", &Quota::per_minute(5), 1).now();
/// assert_eq!(store.stats().in_debt, 1);
/// ```
#[derive(Clone)]
pub struct LocalStore(Arc<Inner>);

struct Inner {
    clock: Clock,
    /// Random per store, so that nobody outside can choose keys that meet in one set.
    seed: SeedableRandomState,
    slots: Slots,
    overflow: Overflow,
}

/// How full a [`LocalStore`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Slots of the table, about two per key of the capacity.
    pub slots: usize,
    /// Slots whose account is not full: it cannot be forgotten now.
    pub in_debt: usize,
    /// Decisions so far over an account that newcomers share for want of a slot. Above 0 the
    /// capacity was too small for what came.
    pub overflowed: u64,
}

/// One quota of one charge, and where its account lives.
#[derive(Clone, Copy)]
struct Account {
    id: u64,
    rule: RuleName,
    place: usize,
    gcra: Gcra,
    ask: Ask,
}

impl Account {
    fn take(&self, tat: u64, now: u64) -> Option<u64> {
        self.gcra.take(tat, now, self.ask)
    }

    /// What to say of the account at `tat`: an allowed charge wants nothing any more.
    fn outcome(&self, tat: u64, now: u64, allowed: bool) -> Outcome {
        let need = if allowed { 0 } else { self.ask.need() };
        let ahead = tat.saturating_sub(now);
        Outcome::refilling(self.rule, self.place, self.gcra.quota(), ahead, need)
    }
}

/// The accounts of several charges: each once, and in which order they were named.
#[derive(Default)]
struct Accounts {
    distinct: SmallVec<[Account; 4]>,
    named: SmallVec<[usize; 8]>,
}

impl LocalStore {
    /// A store for 131 072 keys in debt at a time (4.5 MB).
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_KEYS)
    }

    /// A store for `keys` keys in debt at a time, at 34 bytes each, rounded up to a whole set.
    #[must_use]
    pub fn with_capacity(keys: usize) -> Self {
        Self::on(Clock::shared(), keys)
    }

    pub(crate) fn on(clock: Clock, keys: usize) -> Self {
        let seed = RandomState::new().hash_one(0);
        Self(Arc::new(Inner {
            clock,
            seed: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            slots: Slots::new(keys.saturating_mul(SLOTS_PER_KEY)),
            overflow: Overflow::default(),
        }))
    }

    /// How full the store is. Looks at every slot: call it now and then, not per request.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let inner = &*self.0;
        Stats {
            slots: inner.slots.len(),
            in_debt: inner.slots.in_debt(inner.clock.now()),
            overflowed: inner.overflow.decisions(),
        }
    }
}

impl Inner {
    fn take(&self, charges: &[Charge<'_>]) -> Decision {
        let now = self.clock.now();
        if let [charge] = charges
            && let [quota] = charge.quotas()
        {
            return self.take_one(&self.account(charge, 0, quota), now);
        }
        let (accounts, mut races) = (self.accounts(charges), 0..RACES);
        loop {
            match self.take_all(&accounts, now) {
                Err(_) if races.next().is_some() => {}
                Ok(decision) | Err(decision) => return decision,
            }
        }
    }

    /// The common case, without lists.
    #[inline]
    fn take_one(&self, account: &Account, now: u64) -> Decision {
        if account.ask.cost == 0 {
            let tat = self.look(account, now);
            return Decision::allow().at(now).outcome(account.outcome(tat, now, true));
        }
        match self.charge(account, now) {
            Ok(tat) => {
                let wait = account.gcra.wait(tat, now, account.ask);
                Decision::allow().at(now).waiting(wait).outcome(account.outcome(tat, now, true))
            }
            Err(tat) => Decision::deny().at(now).outcome(account.outcome(tat, now, false)),
        }
    }

    /// Looks at all, then charges all. `Err` with a refusal when another thread charged in between:
    /// what was charged is given back, and it is time to look again.
    fn take_all(&self, accounts: &Accounts, now: u64) -> Result<Decision, Decision> {
        let all = &accounts.distinct;
        let look = || all.iter().map(|a| self.look(a, now)).collect();
        let mut tats: SmallVec<[u64; 4]> = look();
        let fits = all.iter().zip(&tats).all(|(a, tat)| a.take(*tat, now).is_some());
        if fits {
            for at in 0..all.len() {
                if all[at].ask.cost == 0 {
                    continue;
                }
                match self.charge(&all[at], now) {
                    Ok(tat) => tats[at] = tat,
                    Err(tat) => {
                        let taken = all.iter().zip(&tats).take(at);
                        taken.for_each(|(account, tat)| self.undo(account, now, *tat));
                        tats = look();
                        tats[at] = tat;
                        return Err(accounts.decision(&tats, now, false));
                    }
                }
            }
        }
        Ok(accounts.decision(&tats, now, fits))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Decision {
        let now = self.clock.now();
        let settle = |account: &Account| {
            let gcra = account.gcra;
            if units >= 0 {
                let back = |tat, floor| gcra.settle(tat, floor, units);
                let settled = self.slots.lower(account.id, now, back);
                return settled.unwrap_or_else(|_| self.shared(account, now));
            }
            let late = |tat, now| Some(gcra.settle(tat, now, units));
            match self.change(account, now, late) {
                Ok(tat) | Err(tat) => tat,
            }
        };
        self.each(charge, now, settle)
    }

    fn reset(&self, charge: &Charge<'_>) -> Decision {
        let now = self.clock.now();
        self.each(charge, now, |account| {
            let settled = self.slots.lower(account.id, now, |_, floor| floor);
            settled.unwrap_or_else(|_| self.shared(account, now))
        })
    }

    fn give_back(&self, charges: &[Charge<'_>], taken: &Decision) {
        let now = self.clock.now();
        let accounts = self.accounts(charges);
        for (at, account) in accounts.distinct.iter().enumerate() {
            let named = accounts.named.iter().position(|named| *named == at);
            if let Some(outcome) = named.and_then(|named| taken.outcomes().get(named)) {
                self.undo(account, now, taken.receipt(outcome));
            }
        }
    }

    /// Undoes a charge that left `account` at `receipt`.
    fn undo(&self, account: &Account, now: u64, receipt: u64) {
        let back = |tat, floor| account.gcra.give_back(tat, floor, receipt, account.ask.cost);
        if let Err(now) = self.slots.lower(account.id, now, back) {
            self.overflow.lower(self.shard(account), |tat| back(tat, now));
        }
    }

    /// Applies `step` to every account of `charge` and says what is left.
    fn each(&self, charge: &Charge<'_>, now: u64, step: impl Fn(&Account) -> u64) -> Decision {
        let accounts = self.accounts(&[*charge]);
        let tats: SmallVec<[u64; 4]> = accounts.distinct.iter().map(step).collect();
        accounts.decision(&tats, now, true)
    }

    fn account(&self, charge: &Charge<'_>, place: usize, quota: &Quota) -> Account {
        let mut hasher = self.seed.build_hasher();
        hasher.write_u64(charge.rule().hash64().wrapping_add(place as u64));
        charge.key().hash(&mut hasher);
        let (id, gcra) = (hasher.finish(), Gcra::new(quota));
        Account { id, rule: charge.rule(), place, gcra, ask: charge.ask() }
    }

    fn accounts(&self, charges: &[Charge<'_>]) -> Accounts {
        let mut accounts = Accounts::default();
        for charge in charges {
            for (place, quota) in charge.quotas().iter().enumerate() {
                accounts.add(self.account(charge, place, quota));
            }
        }
        accounts
    }

    /// The account's instant.
    fn look(&self, account: &Account, now: u64) -> u64 {
        match self.slots.update(account.id, |_| None) {
            Some(Ok(tat) | Err(tat)) => tat,
            None => self.shared(account, now),
        }
    }

    #[inline]
    fn charge(&self, account: &Account, now: u64) -> Result<u64, u64> {
        self.change(account, now, |tat, now| account.take(tat, now))
    }

    /// Applies `step` to the account, which is opened if need be: `Ok` with its new instant, `Err`
    /// with the present one where the step gave none.
    #[inline]
    fn change(
        &self,
        account: &Account,
        now: u64,
        step: impl Fn(u64, u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        match self.slots.update(account.id, |tat| step(tat, now)) {
            Some(done) => done,
            None => self.open(account, now, step),
        }
    }

    #[cold]
    #[inline(never)]
    fn open(
        &self,
        account: &Account,
        now: u64,
        step: impl Fn(u64, u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        // A newcomer inherits the debt it may have had part in; one that is refused opens nothing.
        let open = |now| {
            let debt = self.shared(account, now);
            step(debt, now).ok_or(debt)
        };
        let share = |now| self.overflow.update(self.shard(account), |tat| step(tat, now));
        self.slots.claim(account.id, now, |tat| step(tat, now), open, share)
    }

    /// The instant of an account that has no slot: 0, or the debt that newcomers share.
    fn shared(&self, account: &Account, now: u64) -> u64 {
        self.overflow.until(self.shard(account), now)
    }

    fn shard(&self, account: &Account) -> overflow::Address {
        let set = self.slots.set_of(account.id);
        overflow::Address::new(set, account.rule, account.place)
    }
}

impl Accounts {
    /// One account named twice is charged once, costs added.
    fn add(&mut self, account: Account) {
        let known = self.distinct.iter().position(|known| known.id == account.id);
        let at = known.unwrap_or(self.distinct.len());
        match known {
            Some(at) => {
                let ask = &mut self.distinct[at].ask;
                ask.cost = ask.cost.saturating_add(account.ask.cost);
                ask.headroom = ask.headroom.max(account.ask.headroom);
                ask.max_wait = ask.max_wait.min(account.ask.max_wait);
            }
            None => self.distinct.push(account),
        }
        self.named.push(at);
    }

    fn decision(&self, tats: &[u64], now: u64, allowed: bool) -> Decision {
        let decision = if allowed {
            let all = self.distinct.iter().zip(tats);
            let wait = all.map(|(account, tat)| account.gcra.wait(*tat, now, account.ask)).max();
            Decision::allow().waiting(wait.unwrap_or(0))
        } else {
            Decision::deny()
        };
        let decision = decision.at(now);
        let outcome = |at: &usize| self.distinct[*at].outcome(tats[*at], now, allowed);
        self.named.iter().map(outcome).fold(decision, Decision::outcome)
    }
}

impl Store for LocalStore {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    #[inline]
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.take(charges)))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.settle(charge, units)))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.reset(charge)))
    }

    fn give_back(&self, charges: &[Charge<'_>], taken: &Decision) {
        if taken.is_allowed() {
            self.0.give_back(charges, taken);
        }
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStore").field("slots", &self.0.slots.len()).finish_non_exhaustive()
    }
}
