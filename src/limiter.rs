//! Rate limits outside HTTP.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::{
    decision::{Decision, NEVER},
    explain::Explanation,
    key::Key,
    quota::Quota,
    rule::RuleName,
    store::{
        self, Answer, BlockFuture, CannotFail, Certain, Charge, LocalStore, Op, Reservation,
        ReserveFuture, Store, StoreExt, Unsupported, Waiter, certain, literal,
    },
};

/// Limiter for anything that is not an HTTP request, such as jobs, sockets and logins.
///
/// A limiter uses the accounts of a rule. A layer on the same store shares the limit if it has a
/// rule of the same name.
///
/// Most methods return an [`Answer`]. **Await it**: a store such as Redis does nothing before. With the
/// embedded store, [`now`](Answer::now) returns the decision immediately:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Limiter, Quota};
///
/// const MAILS: Quota = Quota::per_minute(2);
/// let limiter = Limiter::local();
///
/// assert!(limiter.take("alice", &MAILS, 1).now().is_allowed());
/// assert!(limiter.take("alice", &MAILS, 1).now().is_allowed());
/// let decision = limiter.take("alice", &MAILS, 1).now();
/// assert!(!decision.is_allowed());
/// assert!(decision.retry_after() <= Some(Duration::from_secs(30)));
/// ```
///
/// # Stores that can fail
///
/// Each method has two forms. Those without a prefix need a store that cannot fail, such as a
/// [`LocalStore`] or a store with [`fail_open`](StoreExt::fail_open). Methods that begin with `try_`
/// need any store, and return its error. See [`try_take`](Limiter::try_take).
///
/// # Several quotas
///
/// A call can charge several quotas: `limiter.take(key, &[second, day], 1)`. The call charges all
/// of them or none.
///
/// A handler can limit itself, for example by a field of the body. [`Decision::rejection`] then
/// creates the response.
#[derive(Clone, Debug)]
pub struct Limiter<S = LocalStore> {
    store: S,
    name: RuleName,
}

impl Limiter<LocalStore> {
    /// Creates a limiter with its own embedded store.
    #[must_use]
    pub fn local() -> Self {
        Self::named("default", LocalStore::new())
    }
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter on `store`, for the accounts of the rule `name`.
    ///
    /// Limiters, and rules of layers, with one name and one store share their accounts.
    ///
    /// ```
    /// use tower_sluice::{Limiter, LocalStore, Quota};
    ///
    /// let store = LocalStore::new();
    /// let mails = Limiter::named("mails", store.clone());
    /// let jobs = Limiter::named("jobs", store);
    /// assert!(mails.take("alice", &Quota::per_hour(1), 1).now().is_allowed());
    /// assert!(jobs.take("alice", &Quota::per_hour(1), 1).now().is_allowed());
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a valid [`RuleName`]. For a name known only at run time, create the
    /// [`RuleName`] first, and pass its text.
    #[track_caller]
    pub fn named(name: &str, store: S) -> Self {
        Self {
            store,
            name: literal(RuleName::new(name)),
        }
    }

    /// Takes `cost` units from every quota, or from none.
    ///
    /// Keep the decision while the work runs if a quota is [concurrent](Quota::concurrent), because the
    /// decision holds the slots.
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// const EXPORTS: Quota = Quota::concurrent(2);
    /// let limiter = Limiter::local();
    ///
    /// let export = limiter.take("alice", &EXPORTS, 1).now();
    /// if export.is_allowed() {
    ///     // … the export
    /// }
    /// assert_eq!(limiter.peek("alice", &EXPORTS).now().outcomes()[0].held(), Some(1));
    /// drop(export);
    /// assert_eq!(limiter.peek("alice", &EXPORTS).now().outcomes()[0].held(), Some(0));
    /// ```
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn take(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_take(key, quotas, cost).certain()
    }

    /// Takes units as [`take`](Limiter::take) does, from a store that can fail.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{Limiter, LocalStore, Quota, StoreExt, store::Timeout};
    ///
    /// let quota = Quota::per_minute(5);
    /// let store = LocalStore::new().timeout(Timeout::DEFAULT); // such as a `RedisStore`
    ///
    /// let limiter = Limiter::named("default", store.clone());
    /// let taken: Result<_, _> = limiter.try_take("alice", &quota, 1).await;
    /// assert!(taken?.is_allowed());
    ///
    /// let limiter = Limiter::named("default", store.fail_open());
    /// assert!(limiter.take("alice", &quota, 1).await.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_take(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Answer<S::Future> {
        self.with_charge(&key.into(), quotas.as_ref(), |charge| {
            self.store.take(&[charge.with_cost(cost)])
        })
    }

    /// Returns the units left, without taking any. If the store answers, the decision allows the
    /// request. See [`StoreExt::peek`].
    #[must_use = "nothing may be read until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn peek(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_peek(key, quotas).certain()
    }

    /// Reads the units left as [`peek`](Limiter::peek) does, from a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    #[must_use = "nothing may be read until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_peek(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<S::Future> {
        self.with_charge(&key.into(), quotas.as_ref(), |charge| {
            self.store.peek(&[charge.with_cost(0)])
        })
    }

    /// Explains the decision that [`take`](Limiter::take) would make, without taking units.
    ///
    /// See [`Explanation::look`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let quota = Quota::per_hour(2);
    /// let would = limiter.explain("alice", &quota, 1).await;
    /// assert!(would.is_allowed());
    /// print!("{would}");
    /// # });
    /// ```
    pub async fn explain(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Explanation
    where
        S: Sync,
        S::Error: CannotFail,
    {
        certain(self.try_explain(key, quotas, cost).await)
    }

    /// Explains a decision as [`explain`](Limiter::explain) does, of a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    pub fn try_explain(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> impl Future<Output = Result<Explanation, S::Error>> + Send
    where
        S: Sync,
    {
        self.with_charge(&key.into(), quotas.as_ref(), |charge| {
            Explanation::look(&self.store, &[charge.with_cost(cost)])
        })
    }

    /// Takes units as [`take`](Limiter::take) does, for work whose cost is known later. Returns a reservation,
    /// which owns the key and the quotas.
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let tokens = Quota::per_minute(10_000);
    /// let taken = limiter.reserve("alice", &tokens, 500).now();
    /// if taken.is_allowed() {
    ///     limiter.adjust_to(taken, 30); // the work cost 30
    /// }
    /// assert_eq!(limiter.peek("alice", &tokens).now().remaining(), Some(9_970));
    /// ```
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn reserve(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Answer<Certain<ReserveFuture<S::Future>>>
    where
        S::Error: CannotFail,
    {
        self.try_reserve(key, quotas, cost).certain()
    }

    /// Takes units as [`reserve`](Limiter::reserve) does, from a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_reserve(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Answer<ReserveFuture<S::Future>> {
        self.with_charge(&key.into(), quotas.as_ref(), |charge| {
            store::reserve(&self.store, charge.with_cost(cost))
        })
    }

    /// Adjusts the charge of a [`reserve`](Limiter::reserve) of this limiter to the actual cost.
    ///
    /// - A lower cost refunds the difference, but not units that were already refilled over time.
    /// - A higher cost charges the difference, even beyond the limit.
    /// - A denied reservation changes nothing.
    ///
    /// The call does not wait for a remote store such as Redis. It needs a Tokio runtime there, and a
    /// charge that the store lost is logged.
    pub fn adjust_to(&self, taken: Reservation, units: u32)
    where
        S::Future: 'static,
    {
        taken.adjust(&self.store, units);
    }

    /// Charges `units` units to every quota, even beyond the limit, and is never denied. See
    /// [`StoreExt::adjust`].
    ///
    /// For a cost that is known later, use [`reserve`](Limiter::reserve).
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let tokens = Quota::per_minute(1_000);
    /// assert_eq!(limiter.charge("alice", &tokens, 300).now().remaining(), Some(700));
    /// assert_eq!(limiter.refund("alice", &tokens, 100).now().remaining(), Some(800));
    /// ```
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn charge(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        units: u32,
    ) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_charge(key, quotas, units).certain()
    }

    /// Charges units as [`charge`](Limiter::charge) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot charge them.
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_charge(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        units: u32,
    ) -> Answer<S::Future> {
        self.adjust(&key.into(), quotas.as_ref(), i64::from(units))
    }

    /// Returns `units` units to every quota, even if time has already refilled them.
    ///
    /// An account has at most its limit. To return the units of a request, use
    /// [`reserve`](Limiter::reserve) and [`adjust_to`](Limiter::adjust_to).
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let quota = Quota::per_hour(5);
    /// assert_eq!(limiter.take("alice", &quota, 4).now().remaining(), Some(1));
    /// assert_eq!(limiter.refund("alice", &quota, 9).now().remaining(), Some(5));
    /// ```
    #[must_use = "nothing may be refunded until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn refund(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        units: u32,
    ) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_refund(key, quotas, units).certain()
    }

    /// Returns units as [`refund`](Limiter::refund) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot refund them.
    #[must_use = "nothing may be refunded until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_refund(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        units: u32,
    ) -> Answer<S::Future> {
        self.adjust(&key.into(), quotas.as_ref(), -i64::from(units))
    }

    fn adjust(&self, key: &Key, quotas: &[Quota], units: i64) -> Answer<S::Future> {
        self.with_charge(key, quotas, |charge| self.store.adjust(&charge, units))
    }

    /// Resets the account of the key, as if the key were new.
    #[must_use = "nothing may be reset until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn reset(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_reset(key, quotas).certain()
    }

    /// Resets the account as [`reset`](Limiter::reset) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot reset it.
    #[must_use = "nothing may be reset until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_reset(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<S::Future> {
        self.with_charge(&key.into(), quotas.as_ref(), |charge| {
            self.store.reset(&charge)
        })
    }

    /// Denies the key for `time`, even if units are left. See [`StoreExt::block`].
    ///
    /// While a [`Fallback`](crate::store::Fallback) replaces a failed store, the block applies to
    /// this process only. The decision then has the source
    /// [`Source::Fallback`](crate::decision::Source::Fallback).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// limiter.block("mallory", Duration::from_secs(60)).now()?;
    /// assert!(!limiter.take("mallory", &Quota::per_minute(5), 1).now().is_allowed());
    /// # Ok::<(), tower_sluice::store::BlockError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with a [`BlockError`](crate::store::BlockError) if the store is full, supports no blocks,
    /// or failed and a policy for outages answered.
    #[must_use = "nothing may be blocked until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn block(&self, key: impl Into<Key>, time: Duration) -> Answer<BlockFuture<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_block(key, time)
    }

    /// Denies the key as [`block`](Limiter::block) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails as [`block`](Limiter::block) does, and with [`BlockError::Store`](store::BlockError::Store)
    /// if the store failed.
    #[must_use = "nothing may be blocked until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_block(&self, key: impl Into<Key>, time: Duration) -> Answer<BlockFuture<S::Future>> {
        self.with_charge(&key.into(), &[], |charge| {
            store::block(&self.store, &charge, time)
        })
    }

    /// Ends a [`block`](Limiter::block).
    #[must_use = "nothing may be unblocked until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn unblock(&self, key: impl Into<Key>) -> Answer<Certain<S::Future>>
    where
        S::Error: CannotFail,
    {
        self.try_unblock(key).certain()
    }

    /// Ends a block as [`unblock`](Limiter::unblock) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot end it.
    #[must_use = "nothing may be unblocked until the answer is awaited: add `.await`, or `.now()` for \
                  a `LocalStore`"]
    pub fn try_unblock(&self, key: impl Into<Key>) -> Answer<S::Future> {
        self.with_charge(&key.into(), &[], |charge| self.store.unblock(&charge))
    }

    /// Takes `max` units, or all units left if there are fewer. Returns the number of taken units.
    ///
    /// Also takes [soft](Quota::with_soft) units. The store does not report how many of these are left, so
    /// several calls may find it out.
    ///
    /// Always returns 0 for a [concurrent](Quota::concurrent) quota, whose slots are held by the
    /// decision. Use [`take`](Limiter::take) instead.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let quota = Quota::per_hour(10);
    /// assert_eq!(limiter.take_up_to("alice", &quota, 7).await, 7);
    /// assert_eq!(limiter.take_up_to("alice", &quota, 7).await, 3);
    /// # });
    /// ```
    #[must_use = "only the returned number of units was taken, which may be 0: use no more than that"]
    pub async fn take_up_to(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        max: u32,
    ) -> u32
    where
        S: Sync,
        S::Error: CannotFail,
    {
        certain(self.try_take_up_to(key, quotas, max).await)
    }

    /// Takes units as [`take_up_to`](Limiter::take_up_to) does, from a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot decide.
    pub fn try_take_up_to(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        max: u32,
    ) -> impl Future<Output = Result<u32, S::Error>> + Send
    where
        S: Sync,
    {
        let key = key.into();
        let quotas = quotas.as_ref();
        async move {
            let most = most_at_once(quotas).min(max);
            let soft = quotas.iter().map(Quota::soft).max().unwrap_or(0);
            let mut taken = 0;
            let mut wanted = most;
            while wanted > 0 {
                let decision = self.try_take(key.clone(), quotas, wanted).await?;
                if !decision.is_allowed() {
                    wanted = fewer_units(&decision, wanted, soft);
                    continue;
                }
                taken += wanted;
                // The units left are known, except for soft ones.
                if soft == 0 {
                    break;
                }
                wanted = wanted.min(most - taken);
            }
            Ok(taken)
        }
    }

    /// Waits until `cost` units have been taken.
    ///
    /// If the algorithm can queue, calls return at even intervals, in the order of arrival. Calls for
    /// a slot of a [concurrent](Quota::concurrent) quota get it in the order of arrival, too. A call
    /// for more than one slot does not wait: it returns the slots or an error at once.
    ///
    /// A dropped future refunds its units, unless another call waits behind it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let limiter = Limiter::local();
    /// let quota = Quota::per_second(100).with_burst(1);
    /// for _ in 0..3 {
    ///     limiter.until_ready("upstream", &quota, 1).await?; // 10 ms apart
    /// }
    /// # Ok::<(), tower_sluice::limiter::NotReady>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Fails in these cases:
    ///
    /// - The cost is above the limit of a quota, or a quota is blocked.
    /// - The wait is unknown, or the call is denied and needs more than one slot
    ///   ([`NotReady::UnknownWait`]).
    /// - The store does not support the quotas ([`NotReady::Unsupported`]).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime with a timer.
    pub async fn until_ready(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Result<Decision, NotReady<S::Error>>
    where
        S: Sync,
        S::Error: CannotFail,
    {
        self.try_until_ready(key, quotas, cost).await
    }

    /// Waits as [`until_ready`](Limiter::until_ready) does, for a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails as [`until_ready`](Limiter::until_ready) does, and with [`NotReady::Store`] if the store
    /// cannot decide.
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime with a timer.
    pub fn try_until_ready(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> impl Future<Output = Result<Decision, NotReady<S::Error>>> + Send
    where
        S: Sync,
    {
        let key = key.into();
        let quotas = quotas.as_ref();
        async move {
            let charge = Charge::new(self.name, &key, quotas).with_cost(cost);
            let mut call =
                WaitingCharge::new(&self.store, charge).map_err(NotReady::Unsupported)?;
            loop {
                let decision = call.take().await?;
                if decision.is_allowed() {
                    return call.wait_for_turn(decision).await;
                }
                if let Some(max_wait) = call.time_in_queue() {
                    call.waiter().wait_for(max_wait).await;
                    continue;
                }
                let wait = call.retry_after(&decision)?;
                // A block or a rate denies this call, and others may take the slots while it sleeps.
                call.leave_queue().wait_for(wait).await;
            }
        }
    }

    /// [Waits](Limiter::until_ready) for one unit, then runs `work`.
    ///
    /// # Errors
    ///
    /// Fails as [`until_ready`](Limiter::until_ready) does. In that case, `work` is not polled.
    pub async fn throttle<F: Future>(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        work: F,
    ) -> Result<F::Output, NotReady<S::Error>>
    where
        S: Sync,
        S::Error: CannotFail,
    {
        self.try_throttle(key, quotas, work).await
    }

    /// Waits for one unit as [`throttle`](Limiter::throttle) does, in a store that can fail.
    ///
    /// # Errors
    ///
    /// Fails as [`try_until_ready`](Limiter::try_until_ready) does. In that case, `work` is not polled.
    pub fn try_throttle<F: Future>(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        work: F,
    ) -> impl Future<Output = Result<F::Output, NotReady<S::Error>>>
    where
        S: Sync,
    {
        Throttled {
            ready: self.try_until_ready(key, quotas, 1),
            work,
            running: None,
        }
    }

    fn with_charge<T>(&self, key: &Key, quotas: &[Quota], then: impl FnOnce(Charge<'_>) -> T) -> T {
        then(Charge::new(self.name, key, quotas))
    }
}

/// Returns the most units that a call can take, and 0 for slots. A store may not report the units left to a
/// call for more.
fn most_at_once(quotas: &[Quota]) -> u32 {
    if quotas.iter().any(Quota::is_concurrent) {
        return 0;
    }
    let most = quotas.iter().map(Quota::most_at_once).min();
    most.unwrap_or(u32::MAX)
}

/// Returns the units to try after a denial, which are fewer: all that may be left, or half of them.
fn fewer_units(denial: &Decision, denied: u32, soft: u32) -> u32 {
    let left = denial.min_remaining().saturating_add(soft);
    if left < denied { left } else { denied / 2 }
}

/// Error of [`Limiter::until_ready`] and [`Limiter::throttle`], and of their forms for stores that can
/// fail.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReady<E = Infallible> {
    /// The cost is above the limit of a quota, or the quota is blocked.
    Never,
    /// The store does not know when the cost would be allowed, or the cost is more than one slot of a
    /// [concurrent](Quota::concurrent) quota, for which no call waits.
    UnknownWait,
    /// The store does not support the quotas. A policy for outages would deny or allow each call.
    Unsupported(Unsupported),
    /// The store cannot decide.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for NotReady<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str(
                "the cost is above the limit of a quota, or a quota is blocked; lower the cost or \
                 raise the limit",
            ),
            Self::UnknownWait => f.write_str(
                "the wait is unknown, or the cost is more than one slot, for which no call waits; call \
                 `take` until it succeeds",
            ),
            Self::Unsupported(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for NotReady<E> {}

pin_project_lite::pin_project! {
    /// Future of [`Limiter::try_throttle`].
    ///
    /// An `async` block could not be spawned for a `DynStore` whose error is a boxed `dyn Error`.
    struct Throttled<T, W> {
        #[pin]
        ready: T,
        #[pin]
        work: W,
        // The decision holds the slots of a concurrent quota.
        running: Option<Decision>,
    }
}

impl<T, W, E> Future for Throttled<T, W>
where
    T: Future<Output = Result<Decision, E>>,
    W: Future,
{
    type Output = Result<W::Output, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.running.is_none() {
            *this.running = Some(ready!(this.ready.poll(cx))?);
        }
        let output = ready!(this.work.poll(cx));
        *this.running = None;
        Poll::Ready(Ok(output))
    }
}

/// A call that may wait. Dropping this value leaves the queue, and undoes a charge.
struct WaitingCharge<'a, S: Store> {
    store: &'a S,
    charge: Charge<'a>,
    waiter: Option<Waiter>,
    taken: Option<Decision>,
}

impl<'a, S: Store> WaitingCharge<'a, S> {
    /// Creates a call that queues, if the store supports it.
    fn new(store: &'a S, mut charge: Charge<'a>) -> Result<Self, Unsupported> {
        let queueing = charge.with_max_wait(Duration::MAX);
        if store.supports(&[queueing]).is_ok() {
            charge = queueing;
        } else {
            store.supports(&[charge])?;
        }
        let has_slots = charge.quotas.iter().any(Quota::is_concurrent);
        Ok(Self {
            store,
            charge,
            waiter: (has_slots && charge.queues()).then(Waiter::new),
            taken: None,
        })
    }

    async fn take(&mut self) -> Result<Decision, NotReady<S::Error>> {
        let context = store::Context::default().with_waiter(self.waiter.as_ref());
        let answer = self.store.call(Op::Take(&[self.charge]), &context);
        answer.await.map_err(NotReady::Store)
    }

    /// Waits until the turn of an allowed call.
    async fn wait_for_turn(&mut self, taken: Decision) -> Result<Decision, NotReady<S::Error>> {
        let wait = taken.wait();
        self.taken = Some(taken);
        if !wait.is_zero() {
            self.leave_queue().wait_for(wait).await;
        }
        self.taken.take().ok_or(NotReady::Never)
    }

    /// Returns the longest time to wait in a queue that a denied call has just joined.
    fn time_in_queue(&self) -> Option<Duration> {
        self.waiter.as_ref()?.take_max_wait()
    }

    /// Returns the time after which to try a denied call again.
    fn retry_after(&self, denial: &Decision) -> Result<Duration, NotReady<S::Error>> {
        if let Some(wait) = denial.exact_retry_after()
            && !self.charge.takes_several_slots()
        {
            return Ok(wait);
        }
        let binding = denial.binding();
        let is_never = binding.is_some_and(|outcome| outcome.retry_ns() == NEVER);
        Err(if is_never {
            NotReady::Never
        } else {
            NotReady::UnknownWait
        })
    }

    fn waiter(&mut self) -> &Waiter {
        self.waiter.get_or_insert_with(Waiter::new)
    }

    /// Returns the waiter, which is in no queue of the store.
    fn leave_queue(&mut self) -> &Waiter {
        let waiter = self.waiter();
        waiter.leave();
        waiter
    }
}

impl<S: Store> Drop for WaitingCharge<'_, S> {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            waiter.leave();
        }
        if let Some(taken) = &self.taken {
            self.store.undo(&[self.charge], taken, None);
        }
    }
}
