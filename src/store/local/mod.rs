//! The embedded store: exact, with fixed memory, at any load.

mod accounts;
mod blocks;
mod changes;
mod decide;
mod held;
mod ledger;
mod slots;
mod table;
mod warnings;

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

use self::{accounts::Effect, ledger::Ledger};
use super::{
    Answer, BoxFuture, Charge, Context, Health, KnownRules, Never, Op, Store, Unsupported,
    can_queue,
};
use crate::{decision::Decision, observe::set_keys};

/// The number of entries per key of the capacity. With two entries per key, about 1 % of new keys find
/// no free entry in a store at capacity.
const ENTRIES_PER_KEY: usize = 2;

/// Embedded store that keeps accounts in the memory of the process.
///
/// The memory is fixed: 32 bytes for each key of the capacity. A flood of new keys adds at most
/// 0.3 MB for each rule and quota with shared accounts.
///
/// An account is full when all used units are refilled. A key is *in debt* while its account is not
/// full. Accounts in debt are never dropped. A full account is dropped, so its key counts as new.
///
/// If there is no room for a new key, new keys share accounts. The store is divided into at most 2,048
/// groups of entries, and a key without room shares one account per rule and quota with the others of its
/// group. Quotas that differ only in their limit have the same account. New keys may then be denied
/// early, but no exhausted key gets a fresh quota. While 32 quotas of a rule have such accounts in a
/// group, its new keys under other quotas of the rule are denied.
/// [`Stats::overflowed`] counts decisions about shared accounts, and the first such decision is logged.
/// While 32 quotas have them, a late charge of a new key under another quota has no effect.
///
/// # Capacity
///
/// A key in debt needs one entry per quota of its rule. The capacity that a service needs is
///
/// *new keys per second · seconds until a key's quota is full again · quotas of the rule*.
///
/// | algorithm | seconds until a key is full again after *n* units |
/// |---|---|
/// | GCRA | *n · period / units* |
/// | token bucket | *period* for each refill that *n* units need |
/// | fixed window | *period* at most; twice that with `carry_over` |
/// | calendar period | *period* + 1 day, because its anchor may change |
/// | anchored window, sliding log | *period* |
/// | sliding window | *period + period / buckets* at most |
///
/// For example, 25 000 new keys per second send one request each, and the quota is 5 per minute.
/// Each key is in debt for 12 seconds, so 300 000 keys are in debt at once. The table shows the
/// share of these requests that are denied. It is the risk of every new key during such a flood.
/// (`tests/it/local/flood_capacity.rs` checks three of the rows.)
///
/// | capacity | memory | after 12 s | 36 to 48 s after the start |
/// |---|---|---|---|
/// | 65 536 | 2.1 MB | 100 % | 84 % |
/// | 131 072 (the default) | 4.2 MB | 74 % | 58 % |
/// | 200 000 | 6.4 MB | 6 % | 27 % |
/// | 262 144 | 8.4 MB | 0.1 % | 6 % |
/// | 300 000 (the formula) | 9.6 MB | 0 | 0.9 % |
/// | 400 000 | 13 MB | 0 | 0 |
///
/// The table of accounts is divided into sets of 16 entries. A new key needs a free entry in its own
/// set, so a few new keys share an account before the store is full. The next table shows the
/// effect on 20 000 new keys with one unit each, in a store for 500 000 keys
/// (the same file):
///
/// | keys in debt, as a share of the capacity | new keys without an entry | new keys denied early |
/// |---|---|---|
/// | 50 % | 0.01 % | 0 |
/// | 80 % | 0.09 % | 0.04 % |
/// | 100 % | 1.0 % | 0.6 % |
/// | 120 % | 3.9 % | 3.5 % |
/// | 150 % | 16 % | 16 % |
///
/// A capacity of 1.25 times the formula keeps the load at 80 %. Fewer than one in a thousand new
/// keys are then denied early.
///
/// # Memory of other algorithms
///
/// An account of GCRA without [`initial`](crate::Quota::with_initial) units is one instant in its entry.
/// Other accounts also need a state, in these sizes:
///
/// - 96 bytes for each key of the capacity, if all accounts have a state. The first state in a
///   set allocates 768 bytes.
/// - For a sliding window, 16 bytes for each bucket in use, at most one more than the quota has
///   buckets.
/// - For a sliding log, 16 bytes for each charge of the period, at most the limit plus the units of
///   [`max_debt`](crate::Quota::with_max_debt).
///
/// # Blocks
///
/// [Blocked](crate::StoreExt::block) keys are in a separate table, which the first block creates.
/// The table takes 4 bytes for each key of the capacity, and has room for one blocked key for
/// every eight keys of the capacity: 16 384 by default. Beyond that number, some blocks fail.
/// Beyond twice that number, all blocks fail.
///
/// A failed block returns [`BlockError::Full`](super::BlockError::Full), and the key is not
/// blocked. Failed blocks are counted, and the first failure is logged.
///
/// # Slots of concurrent requests
///
/// The slots of [`Quota::concurrent`](crate::Quota::concurrent) are in a separate table, with about
/// 100 bytes for each key whose requests run. At most 64 keys without held slots have an entry. If
/// requests of about as many keys as the capacity run at once, requests of further keys are denied,
/// with [`Source::Overflow`](crate::decision::Source::Overflow). [`Stats::overflowed`] counts them, and the
/// first is logged. No request runs uncounted.
///
/// [`reset`](crate::StoreExt::reset) sets the held slots of a key to 0, without an effect on the
/// requests that hold them. Until they end, more requests run than the limit allows.
///
/// # Sharing
///
/// Clones share the accounts. Decisions are exact with any number of threads, and have a serial
/// order. Other processes do not share the accounts.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota};
///
/// let store = LocalStore::with_capacity(1_000_000); // 32 MB
/// let limiter = Limiter::named("default", store.clone());
/// assert!(limiter.take("alice", &Quota::per_minute(5), 1).now().is_allowed());
/// assert_eq!(store.stats().active, 1);
/// ```
#[derive(Clone)]
#[must_use]
pub struct LocalStore {
    ledger: Arc<Ledger>,
}

/// Statistics of a [`LocalStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries in the table, about two per key of the capacity.
    pub entries: usize,
    /// Accounts that are not full. Such accounts cannot be dropped.
    pub active: usize,
    /// Decisions about keys without room: on accounts that new keys share if no entry is free, and denials
    /// because the table of [slots](crate::Quota::concurrent) was full.
    ///
    /// If the number is above 0, the capacity was too small.
    pub overflowed: u64,
    /// [Blocked](crate::StoreExt::block) keys.
    pub blocked: usize,
    /// Keys of requests that hold [slots](crate::Quota::concurrent). A key counts once for each
    /// concurrent quota.
    pub holding: usize,
    /// [Slots](crate::Quota::concurrent) that requests hold.
    pub held: u64,
}

impl LocalStore {
    /// The default capacity, in keys.
    pub(crate) const DEFAULT_KEYS: usize = 131_072;

    /// Creates a store with the default capacity of 131 072 keys, which takes 4.2 MB.
    #[track_caller]
    pub fn new() -> Self {
        Self::with_capacity(Self::DEFAULT_KEYS)
    }

    /// Creates a store with a capacity of `keys` keys, at 32 bytes each.
    ///
    /// Only keys with used units take capacity. The number is rounded up to a multiple of 8.
    #[track_caller]
    pub fn with_capacity(keys: usize) -> Self {
        Self::on(Clock::shared(), keys)
    }

    #[track_caller]
    pub(crate) fn on(clock: Clock, keys: usize) -> Self {
        Self {
            ledger: Arc::new(Ledger::new(clock, keys)),
        }
    }

    /// Returns statistics, and sets the gauges `ratelimit.keys` and `ratelimit.capacity`.
    ///
    /// The gauges need feature `metrics`. `ratelimit.capacity` is the number of entries, which is twice the
    /// capacity in keys. A warning is logged if at least 80 % of the capacity in keys is in use. Each call
    /// reads every entry, so call this method at intervals, not per request.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = self.ledger.stats();
        set_keys(stats.active, stats.entries);
        stats
    }
}

impl Store for LocalStore {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    #[inline(always)]
    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let decision = match op {
            Op::Take(charges) => {
                let clock = &self.ledger.clock;
                // Answered in place, because moving a decision is slow.
                return self.ledger.take(
                    charges,
                    context,
                    || clock.now(),
                    |decision| Answer::Now(Ok(decision)),
                );
            }
            Op::Peek(charges) => {
                let now = self.ledger.clock.now();
                self.ledger.decide(Effect::Nothing, charges, None, now)
            }
            Op::Adjust(charge, units) => self.ledger.adjust(charge, units, context.followed),
            Op::Reset(charge) => self.ledger.reset(charge),
            Op::Block(charge, time) => self.ledger.block(charge, time),
            Op::Unblock(charge) => self.ledger.unblock(charge),
        };
        Answer::Now(Ok(decision))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() {
            self.ledger.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        can_queue(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.ledger.rules.register(charges)?;
        self.ledger.rebuilds.layer_built();
        Ok(())
    }

    fn known_rules(&self) -> Option<&KnownRules> {
        Some(&self.ledger.rules)
    }

    fn health(&self) -> BoxFuture<Health> {
        let store = self.clone();
        Box::pin(async move {
            let stats = store.stats();
            let mut detail = format!("{} of {} accounts in use", stats.active, stats.entries);
            if stats.overflowed > 0 {
                let over = stats.overflowed;
                detail +=
                    &format!("; {over} decisions on keys without room: increase the capacity");
            }
            Health::healthy("local", detail)
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

/// The shared clock, created once because creating a clock can take microseconds.
static SHARED: LazyLock<Clock> = LazyLock::new(|| {
    let ticks = quanta::Clock::new();
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(0);
    let epoch = unix.saturating_sub(ticks.delta_as_nanos(0, ticks.raw()));
    Clock { ticks, epoch }
});

/// The monotonic clock of all stores in the process. It never goes back.
///
/// The clock starts with the Unix time. Later changes of the wall clock have no effect.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ticks: quanta::Clock,
    epoch: u64,
}

impl Clock {
    pub(crate) fn shared() -> Self {
        SHARED.clone()
    }

    /// Creates a clock at the Unix epoch that advances only with the returned mock.
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "used in tests"))]
    pub(crate) fn driven() -> (Self, Arc<quanta::Mock>) {
        let (ticks, mock) = quanta::Clock::mock();
        (Self { ticks, epoch: 0 }, mock)
    }

    /// Returns the Unix time in nanoseconds.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.epoch + self.ticks.delta_as_nanos(0, self.ticks.raw())
    }
}
