//! The methods of every store, stores behind pointers, and stores whose type is chosen at run time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    Answer, BoxFuture, Breaker, Charge, Context, DenyCache, FailClosed, FailOpen, Fallback,
    Instances, Leased, LocalShare, Never, Op, Store, Timeout, wrappers::forward,
};
use crate::decision::Decision;

/// Operations and wrappers of every [`Store`].
///
/// Every [`Store`] implements this trait. A store that does not support an operation answers with an
/// error, as `GovernorStore` does for [`adjust`](StoreExt::adjust) and blocks.
///
/// ```
/// use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::{Charge, Timeout}};
///
/// let store = LocalStore::new().timeout(Timeout::DEFAULT).breaker().fail_open();
/// let alice = Key::from("alice");
/// let quotas = [Quota::per_minute(5)];
/// let charge = Charge::new(RuleName::default(), &alice, &quotas);
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// assert!(store.take(&[charge]).await?.is_allowed());
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
/// ```
pub trait StoreExt: Store + Sized {
    /// Charges all quotas of all charges, or none.
    ///
    /// The decision has one outcome per quota.
    ///
    /// If the future is dropped before it completes, the charge may or may not have been made.
    #[must_use = "nothing may be charged until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    #[inline(always)]
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.call(Op::Take(charges), &Context::default())
    }

    /// Returns the decision that [`take`](StoreExt::take) would make now, and changes nothing.
    ///
    /// No unit is charged, no slot is held, and no queue is joined. The outcomes of an allowed
    /// decision are those after the charge. With a cost of 0, they are the units left.
    ///
    /// [`Leased`] and [`DenyCache`] pass the call to their inner store, which counts borrowed units
    /// as charged. [`GovernorStore`](super::GovernorStore) cannot peek: the source of
    /// its answer is [`Source::Unsupported`](crate::decision::Source::Unsupported).
    ///
    /// ```
    /// use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};
    ///
    /// let store = LocalStore::new();
    /// let key = Key::from("alice");
    /// let quotas = [Quota::per_hour(5)];
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(3);
    /// assert_eq!(store.peek(&[charge]).now().remaining(), Some(2));
    /// assert_eq!(store.take(&[charge]).now().remaining(), Some(2));
    /// assert!(!store.peek(&[charge]).now().is_allowed());
    /// ```
    #[must_use = "nothing may be read until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    fn peek(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.call(Op::Peek(charges), &Context::default())
    }

    /// Charges `units` more to every quota of `charge`, or refunds units if the number is negative.
    ///
    /// The additional charge is never denied. Units beyond the limit plus
    /// [`max_debt`](crate::Quota::with_max_debt) are dropped. A refund stops when the account is
    /// full. On a new account with [`initial`](crate::Quota::with_initial) units, it adds to these.
    ///
    /// A refund returns units even if time has already refilled them. To reverse the charge of a
    /// request, use [`undo`](Store::undo).
    #[must_use = "nothing may be adjusted until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    #[inline]
    fn adjust(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.call(Op::Adjust(charge, units), &Context::default())
    }

    /// Removes the accounts of a charge, as if the key were new.
    #[must_use = "nothing may be reset until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    #[inline]
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Reset(charge), &Context::default())
    }

    /// Denies a key under a rule for `time`, regardless of the units left.
    ///
    /// A new block replaces an earlier block of the key. A block charges no units. In Redis, a
    /// block ends after ten years at the latest.
    ///
    /// If the store has no room for the block, the key is not blocked. The decision is then a
    /// denial with the source [`Source::Overflow`](crate::decision::Source::Overflow).
    #[must_use = "nothing may be blocked until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    #[inline]
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.call(Op::Block(charge, time), &Context::default())
    }

    /// Ends a [`block`](StoreExt::block).
    #[must_use = "nothing may be unblocked until the answer is awaited: add `.await`, or `.now()` for a \
                  `LocalStore`"]
    #[inline]
    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Unblock(charge), &Context::default())
    }

    /// Wraps this store to allow requests without a charge while the store fails.
    ///
    /// No limit applies during the failure.
    fn fail_open(self) -> Fallback<Self, FailOpen> {
        Fallback::new(self, FailOpen(()))
    }

    /// Wraps this store to reject requests with 503 while the store fails.
    fn fail_closed(self) -> Fallback<Self, FailClosed> {
        Fallback::new(self, FailClosed::POLICY)
    }

    /// Wraps this store to fail if an answer takes longer than `limit`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[track_caller]
    fn timeout(self, limit: Duration) -> Timeout<Self> {
        Timeout::new(self, limit)
    }

    /// Wraps this store in a circuit breaker, which stops calls for some time after failures.
    fn breaker(self) -> Breaker<Self> {
        Breaker::new(self)
    }

    /// Wraps this store in a cache, which repeats denials for at most one second.
    fn deny_cache(self) -> DenyCache<Self> {
        DenyCache::new(self)
    }

    /// Wraps this store to borrow units of frequently used keys in advance.
    ///
    /// Requests that use borrowed units are allowed without a call to this store. One process holds
    /// at most `percent` percent of each limit as borrowed, unused units. All processes together
    /// should hold at most 25 percent.
    ///
    /// The store must report the units left and implement [`undo`](Store::undo). A
    /// [`GovernorStore`](super::GovernorStore) does neither, so borrowed units are lost.
    ///
    /// Apply [`deny_cache`](StoreExt::deny_cache) first. Otherwise each denial calls the store.
    ///
    /// # Panics
    ///
    /// Panics if `percent` is not 1 to 25.
    #[track_caller]
    fn leases(self, percent: u32) -> Leased<Self>
    where
        Self: 'static,
    {
        Leased::new(self, percent)
    }

    /// Wraps this store to decide with the store `local` while this store fails.
    ///
    /// `instances` is the number of processes that share this store: give a number, or
    /// `RedisStore::live_instances`. While this store fails, each process allows its part of every quota.
    /// A process that runs alone gives 1.
    ///
    /// # Panics
    ///
    /// Panics if `instances` is 0.
    #[track_caller]
    fn fallback<L>(self, local: L, instances: impl Into<Instances>) -> Fallback<Self, LocalShare<L>>
    where
        L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
    {
        Fallback::new(self, LocalShare::new(Arc::new(local), instances.into()))
    }

    /// Erases the type of this store, so that it can be chosen at run time.
    fn boxed(self) -> Arc<DynStore<Self::Error>>
    where
        Self: Send + Sync + 'static,
    {
        Arc::new(Boxed(self))
    }
}

impl<S: Store> StoreExt for S {}

/// Store of any type, with the error `E`.
///
/// Created by [`StoreExt::boxed`](super::StoreExt::boxed).
///
/// ```
/// use std::{convert::Infallible, sync::Arc};
/// use tower_sluice::{LocalStore, StoreExt, store::DynStore};
///
/// let store: Arc<DynStore<Infallible>> = LocalStore::new().boxed();
/// ```
pub type DynStore<E> = dyn Store<Error = E, Future = BoxFuture<Result<Decision, E>>> + Send + Sync;

/// A store with boxed futures.
pub(super) struct Boxed<S>(pub(super) S);

impl<S: Store + 'static> Store for Boxed<S> {
    type Error = S::Error;
    type Future = BoxFuture<Result<Decision, S::Error>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        match self.0.call(op, context) {
            Answer::Now(output) => Answer::Now(output),
            Answer::Later(future) => Answer::Later(Box::pin(future)),
        }
    }

    forward!(self => self.0; undo, supports, register, known_rules, failure_domains, health);
}

macro_rules! for_pointers {
    ($($pointer:ty),*) => {$(
        impl<S: Store + ?Sized> Store for $pointer {
            type Error = S::Error;
            type Future = S::Future;

            #[inline]
            fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
                (**self).call(op, context)
            }

            forward!(self => (**self); undo, supports, register, known_rules, failure_domains, health);
        }
    )*};
}

for_pointers!(&S, Arc<S>, Box<S>);
