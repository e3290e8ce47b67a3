//! Stores, which keep accounts and charge them.
//!
//! A [`Store`] is called once per request, with all charges of the request. The store makes all
//! charges or none, and returns a [`Decision`].
//!
//! Each charge contains its quotas. Different rules can therefore share one store, and a quota can
//! change at run time.
//!
//! The return type is an [`Answer`]: a decision or a future. A local store decides immediately,
//! without a future.
//!
//! ```
//! use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};
//!
//! let store = LocalStore::with_capacity(10_000);
//! let second = Quota::per_second(5);
//! let day = Quota::per_day(10_000);
//! let alice = Key::from("alice");
//! let quotas = [second, day];
//!
//! let charge = Charge::new(RuleName::default(), &alice, &quotas).with_cost(2);
//! let decision = store.take(&[charge]).now();
//! assert_eq!(decision.outcomes()[1].remaining(), 9_998);
//! ```
//!
//! To write a store of your own, start at [`Store`].
//!
//! # Wrappers
//!
//! Each method in this table wraps a store in another store. The layer accepts only a store that
//! cannot fail. The first three methods return such a store.
//!
//! | method | effect |
//! |---|---|
//! | [`fail_open`](StoreExt::fail_open) | allows requests without a limit while the store fails |
//! | [`fail_closed`](StoreExt::fail_closed) | rejects requests with 503 while the store fails |
//! | [`fallback`](StoreExt::fallback) | decides with a local store while the store fails |
//! | [`timeout`](StoreExt::timeout) | bounds the time that a request waits for its decision |
//! | [`breaker`](StoreExt::breaker) | stops calling a store that fails |
//! | [`deny_cache`](StoreExt::deny_cache) | repeats a recent denial without calling the store |
//! | [`leases`](StoreExt::leases) | borrows units of a hot key for many requests at once |
//!
//! Apply them in this order: `store.timeout(d).breaker().deny_cache().leases(5).fallback(local, n)`.

mod answer;
mod block;
mod context;
mod ext;
#[cfg(feature = "governor")]
mod governor;
mod health;
mod hot_keys;
pub(crate) mod instances;
mod local;
mod op;
#[cfg(feature = "redis")]
mod redis;
mod reservation;
mod sync;
mod waiter;
mod wrappers;

use std::{
    borrow::Cow,
    collections::HashMap,
    convert::Infallible,
    error::Error,
    fmt,
    future::ready,
    panic::Location,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;
use tower::BoxError;

#[doc(hidden)]
pub use self::answer::Awaited;
#[cfg(feature = "governor")]
pub use self::governor::GovernorStore;
pub use self::instances::Instances;
pub(crate) use self::local::Clock;
#[cfg(feature = "redis")]
pub use self::redis::{
    ClusterLink, Link, RedisBuilder, RedisError, RedisErrorKind, RedisStore, RedisStream,
};
pub(crate) use self::{answer::certain, block::block, hot_keys::for_cost_of, reservation::reserve};
pub use self::{
    answer::{Answer, BoxFuture, Certain, Never, Resolve},
    block::{BlockError, BlockFuture},
    context::Context,
    ext::{DynStore, StoreExt},
    health::{Health, Status},
    hot_keys::{DenyCache, Leased},
    local::{LocalStore, Stats},
    op::{Op, OwnedOp},
    reservation::{Reservation, ReserveFuture},
    waiter::{Waiter, Wake},
    wrappers::{
        breaker::{Breaker, BreakerError, circuit::FailureDomain},
        fallback::{FailClosed, FailOpen, Fallback, LocalShare},
        timeout::{Timeout, TimeoutError},
    },
};
use crate::{
    advice::warn_of_shared_default,
    algorithm::Demand,
    decision::{Decision, Outcome},
    key::Key,
    name::RuleName,
    quota::Quota,
};

/// Charge of one rule to one key: `cost` units under each of `quotas`.
///
/// The rule's name, the key, and the algorithm, period and unit of the quota identify an account. The
/// order and the number of the quotas, and their limits, do not. A changed limit therefore keeps the
/// account, and refills nobody. A changed period is another account. Quotas of one charge that have the
/// same algorithm, period and unit have an account each, in their order.
///
/// A store reads the fields. A caller starts with [`Charge::new`].
#[derive(Clone, Copy, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The rule.
    pub rule: RuleName,
    /// The key of the accounts.
    pub key: &'a Key,
    /// All quotas of the rule. [`charged_quotas`](Charge::charged_quotas) are those to charge.
    pub quotas: &'a [Quota],
    /// The units to charge. A cost of 0 reads the accounts.
    pub cost: u32,
    /// The units that must remain after the charge.
    pub headroom: u32,
    /// The longest time that the caller will queue. Each store limits it to ten years.
    ///
    /// A charge of more than one slot of a [concurrent](crate::Quota::concurrent) quota never queues,
    /// whatever this time is.
    pub max_wait: Duration,
    /// `true` if the charge is report-only: it is made if it fits, and never denies a request.
    pub report_only: bool,
    /// The index of the only quota to charge, from 0. `None` charges all quotas. An index that no quota
    /// has charges nothing, and the request is allowed.
    pub quota_index: Option<usize>,
}

impl<'a> Charge<'a> {
    /// Creates a charge of one unit, which does not queue, to all of these quotas.
    pub fn new(rule: RuleName, key: &'a Key, quotas: &'a [Quota]) -> Self {
        Self {
            rule,
            key,
            quotas,
            cost: 1,
            headroom: 0,
            max_wait: Duration::ZERO,
            report_only: false,
            quota_index: None,
        }
    }

    /// Sets the [`cost`](Charge::cost). Defaults to 1.
    pub fn with_cost(mut self, cost: u32) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the [`headroom`](Charge::headroom). Defaults to 0.
    pub fn with_headroom(mut self, headroom: u32) -> Self {
        self.headroom = headroom;
        self
    }

    /// Sets the [longest time in the queue](Charge::max_wait). Defaults to zero.
    pub fn with_max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets if the charge is [report-only](Charge::report_only). A `RedisStore` does not support such a
    /// charge beside one of the same rule and key that is not report-only.
    pub fn with_report_only(mut self, report_only: bool) -> Self {
        self.report_only = report_only;
        self
    }

    /// Restricts the charge to the quota at this index, from 0.
    ///
    /// Use several such charges to charge different units to the quotas of one rule.
    ///
    /// ```
    /// use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};
    ///
    /// let store = LocalStore::new();
    /// let key = Key::from("alice");
    /// let quotas = [Quota::per_second(5), Quota::per_day(100)];
    /// let charge = Charge::new(RuleName::default(), &key, &quotas);
    /// let _late = store.adjust(&charge.with_quota_index(1), 3).now();
    ///
    /// let left = store.take(&[charge.with_cost(0)]).now();
    /// assert_eq!(left.outcomes()[0].remaining(), 5);
    /// assert_eq!(left.outcomes()[1].remaining(), 97);
    /// ```
    pub fn with_quota_index(mut self, index: usize) -> Self {
        self.quota_index = Some(index);
        self
    }

    /// Returns the rule and the index of each charged quota.
    pub(crate) fn quota_ids(charges: &[Self]) -> impl Iterator<Item = (RuleName, usize)> + Clone {
        charges.iter().flat_map(|charge| {
            let quotas = charge.charged_quotas();
            quotas.map(|(index, _)| (charge.rule, index))
        })
    }

    /// Returns the quotas to charge, each with its index.
    ///
    /// Includes all quotas, unless [`with_quota_index`](Charge::with_quota_index) selects one.
    pub fn charged_quotas(&self) -> impl Iterator<Item = (usize, &'a Quota)> + Clone + use<'a> {
        let only = self.quota_index;
        let all = self.quotas.iter().enumerate();
        all.filter(move |(index, _)| only.is_none_or(|only| only == *index))
    }

    /// Returns the charged quotas of all charges.
    pub(crate) fn all_quotas<'c>(
        charges: &'c [Charge<'c>],
    ) -> impl Iterator<Item = ChargedQuota<'c>> + Clone {
        charges.iter().flat_map(|charge| {
            let quotas = charge.charged_quotas();
            quotas.map(move |(index, quota)| ChargedQuota {
                charge,
                index,
                quota,
            })
        })
    }

    /// Returns `true` if the charge may queue.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.demand().max_wait > 0
    }

    /// Returns `true` if the charge needs more than one slot. It then does not queue: at the head of a
    /// queue, it would keep others from free slots.
    #[inline]
    pub(crate) fn takes_several_slots(&self) -> bool {
        self.cost > 1
            && self
                .charged_quotas()
                .any(|(_, quota)| quota.is_concurrent())
    }

    /// Returns `true` if the charge denies a request that it does not fit.
    pub(crate) fn may_deny(&self) -> bool {
        self.cost > 0 && !self.report_only
    }

    /// Returns `true` for a charge that may deny, to all quotas of its rule.
    #[inline]
    pub(crate) fn is_ordinary(&self) -> bool {
        self.may_deny() && self.quota_index.is_none()
    }

    /// Returns `true` for the share of a client.
    pub(crate) fn is_client_share(&self) -> bool {
        self.quotas.iter().any(Quota::is_client_share)
    }

    /// Returns the name of the rule that users know: the pool of a share, or else the rule.
    pub(crate) fn known_name(&self) -> &'static str {
        let pool = self.rule.pool_name().filter(|_| self.is_client_share());
        pool.unwrap_or(self.rule.as_str())
    }

    /// Adds outcomes for the quotas, whose accounts the store was not asked for.
    pub(crate) fn add_unknown(&self, decision: &mut Decision) {
        for (quota_index, _) in self.charged_quotas() {
            let outcome = Outcome::unknown(self.rule, quota_index, Some(Duration::ZERO));
            decision
                .outcomes
                .push(outcome.with_report_only(self.report_only));
        }
    }

    /// Returns the first charge of a rule, if any.
    pub(crate) fn find(charges: &[Self], rule: RuleName) -> Option<&Self> {
        charges.iter().find(|charge| charge.rule == rule)
    }

    /// Returns what the charge asks of an account.
    #[inline]
    pub(crate) fn demand(&self) -> Demand {
        let max_wait = if self.max_wait.is_zero() {
            0
        } else {
            self.max_wait_nanos()
        };
        Demand {
            cost: self.cost,
            headroom: self.headroom,
            max_wait,
        }
    }

    /// Returns the longest time that the charge queues, in nanoseconds.
    #[inline(never)]
    fn max_wait_nanos(&self) -> u64 {
        const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000_000;
        if self.takes_several_slots() {
            0
        } else {
            nanos(self.max_wait).min(LONGEST)
        }
    }

    /// Replaces the quotas.
    pub(crate) fn with_quotas(self, quotas: &'a [Quota]) -> Self {
        Self { quotas, ..self }
    }
}

/// A quota that a charge is made to.
#[derive(Clone, Copy)]
pub(crate) struct ChargedQuota<'c> {
    pub(crate) charge: &'c Charge<'c>,
    pub(crate) index: usize,
    pub(crate) quota: &'c Quota,
}

/// Owned copies of charges, for futures and wrappers.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharges(SmallVec<[OwnedCharge; 2]>);

#[derive(Clone, Debug)]
struct OwnedCharge {
    rule: RuleName,
    key: Key,
    quotas: SmallVec<[Quota; 2]>,
    cost: u32,
    headroom: u32,
    max_wait: Duration,
    report_only: bool,
    quota_index: Option<usize>,
}

impl OwnedCharge {
    fn new(charge: &Charge<'_>) -> Self {
        Self {
            rule: charge.rule,
            key: charge.key.clone(),
            quotas: charge.quotas.into(),
            cost: charge.cost,
            headroom: charge.headroom,
            max_wait: charge.max_wait,
            report_only: charge.report_only,
            quota_index: charge.quota_index,
        }
    }

    fn as_charge(&self) -> Charge<'_> {
        Charge {
            rule: self.rule,
            key: &self.key,
            quotas: &self.quotas,
            cost: self.cost,
            headroom: self.headroom,
            max_wait: self.max_wait,
            report_only: self.report_only,
            quota_index: self.quota_index,
        }
    }
}

impl OwnedCharges {
    /// Calls `read` with the charges.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let charges: SmallVec<[_; 4]> = self.0.iter().map(OwnedCharge::as_charge).collect();
        read(&charges)
    }
}

impl From<&[Charge<'_>]> for OwnedCharges {
    fn from(charges: &[Charge<'_>]) -> Self {
        Self(charges.iter().map(OwnedCharge::new).collect())
    }
}

/// Keeps accounts and decides if charges fit.
///
/// [`LocalStore`] keeps accounts in this process, and `RedisStore` in Redis. Implement this trait
/// for another backend.
///
/// # Promises
///
/// The layer and the wrappers rely on these promises of every store:
///
/// - **All or nothing.** Either every quota of every charge is charged, or none. If a call names an
///   account twice, the costs are added.
/// - **A denial charges nothing.** A cost that can never fit is denied without a `retry_after`.
/// - **A cost of 0 is a read.** It charges nothing and is allowed.
/// - **A full account equals no account.** Only a full account may be dropped.
/// - **A charge of [one quota](Charge::with_quota_index)** does not change any other quota.
///
/// # Implementing a store
///
/// Write the methods in this order. [`StoreExt`] adds the operations and the wrappers.
///
/// | step | methods | without an implementation |
/// |---|---|---|
/// | 1 | [`call`](Store::call), with `Error` and `Future` | required |
/// | 2 | [`undo`](Store::undo) | charges are not undone |
/// | 3 | [`supports`](Store::supports) | every charge of rates is accepted when a layer is built |
/// | 4 | [`register`](Store::register) | layers may give one rule different quotas |
/// | 5 | [`health`](Store::health) | the health is unknown |
/// | 6 | [`failure_domains`](Store::failure_domains) | a breaker stops calls to all servers |
///
/// The decision of a store:
///
/// - has one [`Outcome`] per charged quota, in the order of the charges
///   and of their quotas;
/// - marks the outcomes of [report-only](Charge::report_only) charges;
/// - has the source [`Source::Other`](crate::decision::Source::Other);
/// - has a [wait](Decision::with_wait) if a charge queues;
/// - is an [overage](Decision::with_overage) if a charge uses soft units;
/// - is [blocked](Decision::with_blocked) if a key is blocked;
/// - may have an [estimated wait](crate::decision::Outcome::with_estimated_retry_after) if it is a denial;
/// - has a [slot](Decision::with_slot) for each charged [concurrent](crate::Quota::concurrent)
///   quota.
///
/// Further advice:
///
/// - **A store that decides immediately** has the error [`Infallible`] and the future [`Never`],
///   and returns [`Answer::Now`]. The layer accepts such a store without a wrapper.
/// - **A store that calls a server** returns [`Answer::Later`]. The future cannot borrow the
///   charges, so copy the needed values, or copy all into an [`OwnedOp`].
/// - **Unsupported operations** fail with an error such as [`Unsupported`]. A store that cannot
///   fail denies with the source [`Source::Unsupported`](crate::decision::Source::Unsupported).
/// - **Unsupported charges** are also errors of [`supports`](Store::supports), so that the layer is
///   not built. For example, a store that cannot queue does not support a
///   [`max_wait`](Charge::max_wait).
/// - **Sharing.** A store does not need to be `Clone`, because `&S` and `Arc<S>` are stores, too.
/// - **Tests.** Run the conformance kit of the feature `testing`; see the
///   [guide](crate::guide::testing).
///
/// The example `own_store` contains a small store.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    note = "use `LocalStore`, or implement `Store` for a store of your own",
    note = "stores are cheap to clone, and need no lock: pass a clone instead of a `Mutex`"
)]
pub trait Store {
    /// The error of a store that cannot decide. A denial is a decision, not an error.
    type Error: Into<BoxError> + Send;
    /// The future of a decision, or [`Never`] if every decision is immediate.
    type Future: Future<Output = Result<Decision, Self::Error>> + Send;

    /// Runs one operation. [`StoreExt`] has a method for each operation.
    ///
    /// A store that wraps another store passes the `context` on. Every other store may ignore it.
    ///
    /// If a future is dropped before it completes, the operation may or may not take effect.
    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future>;

    /// Undoes a charge that the decision `taken` allowed.
    ///
    /// If `units` is `None`, the whole charge is undone. Otherwise, at most this number of units is
    /// returned to each account. `charges` are all or some of the charges of the decision.
    ///
    /// The call does not wait and cannot fail, so it can be made while a value is dropped. By
    /// default, the call does nothing.
    ///
    /// An undo may return fewer units than were charged, or none:
    ///
    /// - **Refilled units** are not returned, because they could then be used twice. The units were
    ///   charged at [`Decision::charged_at`].
    /// - **A queued charge** ([`max_wait`](Charge::max_wait)) is undone only while it is the last
    ///   in the queue. Otherwise its units stay charged until they are refilled, so that later
    ///   requests keep their intervals.
    /// - **After a [`reset`](StoreExt::reset)**, nothing is returned for earlier charges. The reset
    ///   may also prevent the undo of a few charges of other accounts.
    ///
    /// # Limitations
    ///
    /// - Undo a charge only once. A second call may return the same units again.
    ///   [`ChargeHandle`](crate::middleware::ChargeHandle) prevents a second call.
    /// - With GCRA, a charge can be undone until the account would have been full again. Earlier
    ///   undone charges do not shorten this time. A client that can cause the undo of its charges
    ///   can gain up to `limit - 1` extra units at one instant. The client's rate over time does
    ///   not change.
    /// - The undo of a charge that did not queue does not shorten the wait of queued charges. If
    ///   other charges of the key are queued, the next caller runs at the same instant as the last
    ///   caller in the queue.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{
    ///     Key, Quota, Store, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
    /// };
    ///
    /// let clock = FakeClock::new();
    /// let store = clock.store(100);
    /// let key = Key::from("alice");
    /// let quotas = [Quota::per_minute(60)];
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(10);
    /// let left = || store.take(&[charge.with_cost(0)]).now().remaining();
    ///
    /// let taken = store.take(&[charge]).now();
    /// store.undo(&[charge], &taken, Some(7)); // Three units were used.
    /// assert_eq!(left(), Some(57));
    ///
    /// let taken = store.take(&[charge]).now();
    /// clock.advance(Duration::from_secs(60));
    /// store.undo(&[charge], &taken, None); // All units have come back already.
    /// assert_eq!(left(), Some(60));
    /// ```
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let _ = (charges, taken, units);
    }

    /// Checks that the store supports these charges.
    ///
    /// The result must not depend on the state of accounts. A layer calls this method when the
    /// layer is built, to find an unsupported charge before the first request. Of
    /// [alternatives](crate::Rule::or), each is part of a call of its own. By default, every charge is
    /// supported, except for [concurrent](crate::Quota::concurrent) quotas and calendar periods
    /// (`Quota::per_month`). A store that overrides this method and has none of them returns an error for
    /// them, too.
    ///
    /// # Errors
    ///
    /// Fails if a charge is not supported. The error contains the limitation.
    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        check_rates_only(charges)
    }

    /// Registers the rules of a layer that have the same quotas for every request, with a charge of
    /// each.
    ///
    /// A layer calls this method when the layer is built, after [`supports`](Store::supports). A store
    /// that wraps another store passes the call on. By default, every rule is accepted.
    ///
    /// Layers that share a store must give a rule the same quotas, because they charge the same
    /// accounts. [`LocalStore`] and `RedisStore` return an error if another layer gave the rule other
    /// quotas.
    ///
    /// # Errors
    ///
    /// Fails if the layer must not be built. The error contains the reason.
    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let _ = charges;
        Ok(())
    }

    /// Returns the servers that an operation needs, if the store has several.
    ///
    /// The operation must fail only if one of these servers fails. A [`Breaker`] then stops the calls
    /// to a failed server, and not those to others. Return clones of one value for each server, and
    /// record each answer with [`FailureDomain::answered`]. By default, returns none: the store fails
    /// as a whole.
    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        let _ = op;
        Vec::new()
    }

    /// Returns the rules of the layers on these accounts, which only this store and its clones have.
    /// Defaults to `None`, for a store that does not know. Warnings about layers use them.
    #[doc(hidden)]
    fn known_rules(&self) -> Option<&KnownRules> {
        None
    }

    /// Returns the health of the store and of the stores that it wraps.
    ///
    /// This method may call a server, so do not call it for every request. Defaults to an unknown
    /// health.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{LocalStore, Store, StoreExt};
    ///
    /// let store = LocalStore::new().breaker();
    /// let condition = store.health().await;
    /// assert!(condition.is_healthy());
    /// assert_eq!((condition.store, condition.inner[0].store), ("breaker", "local"));
    /// # });
    /// ```
    fn health(&self) -> BoxFuture<Health> {
        Box::pin(ready(Health::new("other", Status::Unknown, "")))
    }
}

/// Copies the charges, with a `max_wait` of zero.
pub(crate) fn without_queueing<'a>(charges: &[Charge<'a>]) -> SmallVec<[Charge<'a>; 4]> {
    charges
        .iter()
        .map(|charge| charge.with_max_wait(Duration::ZERO))
        .collect()
}

/// Returns an error if a charge needs slots or a calendar, for a store that has neither.
fn check_rates_only(charges: &[Charge<'_>]) -> Result<(), Unsupported> {
    let mut quotas = charges.iter().flat_map(|charge| charge.quotas);
    if quotas.clone().any(Quota::is_concurrent) {
        return Err(Unsupported::new(
            "this store cannot hold slots of a concurrent quota; use LocalStore or RedisStore",
        ));
    }
    if quotas.any(Quota::is_calendar) {
        return Err(Unsupported::new(
            "this store cannot count calendar periods; use LocalStore or RedisStore",
        ));
    }
    Ok(())
}

/// Checks the charges with a `max_wait`, for a store that has queues for slots.
fn can_queue(charges: &[Charge<'_>]) -> Result<(), Unsupported> {
    let queueing = charges.iter().filter(|charge| charge.queues());
    for quota in queueing.flat_map(|charge| charge.quotas) {
        if quota.is_concurrent() {
            continue;
        }
        if quota.soft() > 0 {
            return Err(Unsupported::new(
                "max_wait with a soft quota; choose one of them",
            ));
        }
        if !quota.algorithm().can_queue() {
            return Err(Unsupported::new(
                "max_wait with an algorithm that cannot queue; use Gcra",
            ));
        }
    }
    Ok(())
}

/// Marks an error that never occurs. A layer requires a store with such an error.
///
/// This trait is sealed: only [`Infallible`] implements it. If a store can fail, wrap the store,
/// for example with [`StoreExt::fail_open`].
#[diagnostic::on_unimplemented(
    message = "this store can fail with `{Self}`, and no wrapper handles requests while it fails",
    label = "choose what happens while the store fails",
    note = "`.fail_open()` allows requests without a limit, `.fail_closed()` rejects them with 503, \
            `.fallback(local, n)` decides with a store in this process",
    note = "a method of a `Limiter` has a form for a store that can fail, which returns a `Result`: \
            use `try_take` instead of `take`, or add `.fail_open()` to the store"
)]
#[expect(private_bounds, reason = "seals the trait")]
pub trait CannotFail: Sized + Sealed {
    /// Converts the error to any type. This is never called, because the error has no values.
    fn never<T>(&self) -> T;
}

/// Returns the nanoseconds of a time, at most the largest number.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the milliseconds of a time, rounded up so that no client retries too early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Subtracts units from the count of a key. The key is removed at 0.
pub(crate) fn subtract(counts: &mut HashMap<u64, u64>, key: u64, units: u64) {
    let Some(count) = counts.get_mut(&key) else {
        return;
    };
    *count = count.saturating_sub(units);
    if *count == 0 {
        counts.remove(&key);
    }
}

pub(crate) trait Sealed {}

impl Sealed for Infallible {}

impl CannotFail for Infallible {
    fn never<T>(&self) -> T {
        match *self {}
    }
}

/// Error for an operation that a store does not support.
///
/// The text contains the limitation and an alternative.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(Cow<'static, str>);

impl Unsupported {
    /// Creates an error. `what` is the limitation and, after a semicolon, an alternative.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self(Cow::Borrowed(what))
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unsupported {}

/// The rules of the layers on a store, to find layers that share accounts by mistake.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct KnownRules {
    quotas: Mutex<HashMap<RuleName, Vec<Quota>>>,
    /// The line that built the first layer whose rule has no name of its own.
    first_unnamed: OnceLock<&'static Location<'static>>,
}

impl KnownRules {
    /// Registers the quotas of charges. Fails if a rule is registered with other quotas.
    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let mut known = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        for charge in charges {
            let quotas = known.get(&charge.rule);
            if quotas.is_some_and(|quotas| quotas != charge.quotas) {
                return Err(has_other_quotas(charge.rule));
            }
        }
        for charge in charges {
            known.insert(charge.rule, charge.quotas.to_vec());
        }
        Ok(())
    }

    /// Warns if another line of code has built a layer whose rule has no name of its own.
    pub(crate) fn check_unnamed(&self, built_at: &'static Location<'static>) {
        let first = *self.first_unnamed.get_or_init(|| built_at);
        if first != built_at {
            warn_of_shared_default(first, built_at);
        }
    }
}

fn has_other_quotas(rule: RuleName) -> Unsupported {
    let what = format!(
        "rule {rule} has different quotas in another layer on this store, and both would charge the \
         same accounts; rename one, or give each layer its own store"
    );
    Unsupported(what.into())
}

/// Returns a valid setting, and panics with the error of an invalid one.
#[track_caller]
pub(crate) fn literal<T>(setting: Result<T, impl fmt::Display>) -> T {
    match setting {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
