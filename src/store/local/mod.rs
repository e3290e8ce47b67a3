//! The embedded store: exact, bounded at construction, and the same cost at any load.

mod accounts;
mod blocking;
mod blocks;
mod clock;
mod crowd;
mod instants;
mod ledger;
mod life;
mod overflow;
mod slots;
mod sync;
mod windows;

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

pub(crate) use self::clock::Clock;
use self::{ledger::Ledger, life::Life};
use super::{
    Answer, BoxFuture, Charge, Condition, Never, Store, Unsupported, can_queue, rules::KnownRules,
};
use crate::{decision::Decision, observe::set_keys};

/// The embedded store: accounts in this process's memory.
///
/// Its memory is fixed at construction (35 bytes for each key of the capacity) and a flood of
/// fresh keys cannot grow it, but for at most 270 kB for each rule and quota that shares accounts.
/// An account in debt is never forgotten; when there is no room for a
/// newcomer, newcomers share an account per rule and quota until there is, so they may be refused
/// early, and no exhausted key is freed. Whoever owes nothing is a newcomer, however often it came
/// before. [`Stats::overflowed`] counts that, and a warning in the log tells when it begins.
///
/// An account takes one slot per quota of its rule, and a full account takes none. So the capacity
/// has to hold the keys that are *in debt* at a time, times the quotas of a rule.
///
/// That is said of GCRA, the default algorithm, whose account is one instant. Accounts of the
/// [others](crate::Algorithm) hold more (a sliding log 16 bytes a charge). They have a table of
/// their own with the same number of entries and the same rules, made with the first of them; it
/// takes memory as accounts come, up to that bound.
///
/// Keys that are [blocked](Store::block) have a table of their own, made with the first block: a slot
/// for every four keys of the capacity, at 17 bytes each (4.3 bytes for each key of the capacity).
/// There is room for a blocked key for every eight keys of the capacity: 16 384 by default. Beyond
/// that some blocks are denied, and from twice as many on all. A denied block is an error
/// ([`BlockError::Full`](super::BlockError::Full)), logged once and counted; the key is not blocked.
///
/// A clone is the same store. What a process admits is exact whatever the number of threads; other
/// processes do not share it.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota};
///
/// let store = LocalStore::with_capacity(1_000_000); // 35 MB
/// let limiter = Limiter::new(store.clone());
/// limiter.take("alice", &Quota::per_minute(5), 1).now();
/// assert_eq!(store.stats().in_debt, 1);
/// ```
#[derive(Clone)]
pub struct LocalStore {
    ledger: Arc<Ledger>,
    layers: Arc<Layers>,
}

/// What is known of the layers over a store.
struct Layers {
    rules: KnownRules,
    life: Life,
}

/// How full a [`LocalStore`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Slots of the table, about two per key of the capacity. Accounts of algorithms other than GCRA
    /// have a second table with as many.
    pub slots: usize,
    /// Slots of both tables whose account is not full: it cannot be forgotten now.
    pub in_debt: usize,
    /// Decisions so far over an account that newcomers share for want of a slot. Above 0 the
    /// capacity was too small for what came.
    pub overflowed: u64,
    /// Keys that are [blocked](Store::block). Their table has a slot for every four keys of the
    /// capacity.
    pub blocked: usize,
}

impl LocalStore {
    /// Keys in debt at a time that there is room for, unless told otherwise.
    pub(crate) const DEFAULT_KEYS: usize = 131_072;

    /// A store for 131 072 keys in debt at a time (4.6 MB).
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        Self::with_capacity(Self::DEFAULT_KEYS)
    }

    /// A store for `keys` keys in debt at a time, at 35 bytes each, rounded up to a whole set.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(keys: usize) -> Self {
        Self::on(Clock::shared(), keys)
    }

    #[track_caller]
    pub(crate) fn on(clock: Clock, keys: usize) -> Self {
        let layers = Layers { rules: KnownRules::default(), life: Life::new(clock.clone()) };
        Self { ledger: Arc::new(Ledger::new(clock, keys)), layers: Arc::new(layers) }
    }

    /// How full the store is. Looks at every slot: call it now and then, not per request. The
    /// gauges `ratelimit.keys` and `ratelimit.slots` (feature `metrics`) are set by it.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.untold_stats();
        set_keys(stats.in_debt, stats.slots);
        stats
    }

    /// The same of a store that is none of the server's.
    pub(crate) fn untold_stats(&self) -> Stats {
        self.ledger.stats()
    }
}

impl Store for LocalStore {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    #[inline]
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.layers.life.decides();
        Answer::Now(Ok(self.ledger.take(charges)))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        Answer::Now(Ok(self.ledger.settle(charge, units)))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.ledger.reset(charge)))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        Answer::Now(Ok(self.ledger.block(charge, time)))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.ledger.unblock(charge)))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
            self.ledger.undo(charges, taken, units);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        can_queue(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.layers.rules.agree(charges)?;
        self.layers.life.layered();
        Ok(())
    }

    fn health(&self) -> BoxFuture<Condition> {
        let store = self.clone();
        Box::pin(async move {
            let Stats { slots, in_debt, overflowed, .. } = store.stats();
            let over = match overflowed {
                0 => String::new(),
                n => format!("; {n} decisions over a shared account: the capacity was too small"),
            };
            Condition::well("local", format!("{in_debt} of {slots} slots in debt{over}"))
        })
    }
}

impl Default for LocalStore {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStore").finish_non_exhaustive()
    }
}
