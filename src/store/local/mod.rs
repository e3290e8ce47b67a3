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
/// Its memory is fixed at construction, at 35 bytes for each key of the capacity. A flood of fresh
/// keys cannot grow it, except by at most 270 kB for each rule and quota that shares accounts.
///
/// An account in debt is never forgotten. When there is no room for a new key, new keys share an
/// account per rule and quota until there is: they may be denied early, and no exhausted key is freed.
/// A key whose quota is full has no account, so it counts as new. [`Stats::overflowed`] counts
/// decisions over shared accounts, and the first of them is logged.
///
/// # Capacity
///
/// A full account takes no slot, and an account in debt takes one per quota of its rule. So the
/// capacity is
///
/// *new keys per second · seconds until a key's quota is full again · quotas of the rule*.
///
/// | algorithm | seconds until a key is full again after *n* units |
/// |---|---|
/// | GCRA | *n · period / units* |
/// | token bucket | *period* for each refill that brings *n* units back |
/// | fixed window | *period* at most; twice that with `carry_over` |
/// | anchored window, sliding log | *period* |
/// | sliding window | *period + period / buckets* at most |
///
/// 25 000 new keys per second with one request each, at 5 per minute, are in debt for 12 seconds
/// each, which makes 300 000 keys. Honest new keys that are denied during such a flood
/// (`tests/flood_capacity.rs`):
///
/// | capacity | memory | when 12 s are over | 36 to 48 s after its start |
/// |---|---|---|---|
/// | 65 536 | 2.3 MB | 100 % | 98 % |
/// | 131 072 (the default) | 4.6 MB | 70 % | 88 % |
/// | 200 000 | 7.0 MB | 4 % | 38 % |
/// | 262 144 | 9.2 MB | 0.1 % | 5 % |
/// | 300 000 (the formula) | 10.5 MB | 0 | 0.7 % |
/// | 400 000 | 14 MB | 0 | 0 |
///
/// # Algorithms other than GCRA
///
/// An account of GCRA, the default algorithm, is one instant. Accounts of the
/// [others](crate::Algorithm) hold more (a sliding log 16 bytes a charge). They have a table of
/// their own with the same number of entries and the same rules, made with the first of them. It
/// takes memory as accounts come, up to that bound.
///
/// # Blocks
///
/// Keys that are [blocked](Store::block) have a table of their own, made with the first block: a slot
/// for every four keys of the capacity, at 17 bytes each (4.3 bytes for each key of the capacity).
/// There is room for a blocked key for every eight keys of the capacity: 16 384 by default. Beyond
/// that some blocks are denied, and from twice as many on all. A denied block is an error
/// ([`BlockError::Full`](super::BlockError::Full)), logged once and counted; the key is not blocked.
///
/// # Sharing
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
