//! The methods of every store: operations and wrappers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    Answer, Boxed, Breaker, Charge, DenyCache, DynStore, FailClosed, FailOpen, Fallback, Leased,
    Never, Op, Store, Timeout,
};
use crate::decision::Decision;

/// The operations and the wrappers of every [`Store`].
///
/// A store does not need to implement this trait, because every [`Store`] has it.
///
/// ```
/// use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::{Charge, Timeout}};
///
/// let store = LocalStore::new().timeout(Timeout::DEFAULT).breaker().fail_open();
/// let (alice, quotas) = (Key::from("alice"), [Quota::per_minute(5)]);
/// let charge = Charge::new(RuleName::default(), &alice, &quotas);
/// # tokio_test::block_on(async {
/// assert!(store.take(&[charge]).await?.is_allowed());
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
/// ```
pub trait StoreExt: Store {
    /// Charges all quotas of all charges or none of them, and returns the outcome of every quota.
    ///
    /// If the future of a [`Later`](Answer::Later) answer is dropped before it completes, the
    /// charge may or may not have been made.
    #[inline]
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.call(Op::Take(charges))
    }

    /// Adjusts every quota of the charge. A positive number of `units` is charged late; a negative
    /// number is refunded.
    ///
    /// A late charge never fails. If the charged units would exceed the limit plus
    /// [`max_debt`](crate::Quota::max_debt), the excess is dropped. A refund stops when the account
    /// is full.
    ///
    /// This refund is for operators. It gives back the full number of units, even if some of them
    /// have already come back over time. To give back the charge of a request, use
    /// [`undo`](Store::undo).
    #[inline]
    fn adjust(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.call(Op::Adjust(charge, units))
    }

    /// Removes the accounts of the charge. The key is then treated as a new key.
    #[inline]
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Reset(charge))
    }

    /// Denies charges of this key under this rule for `time`, regardless of the units left.
    ///
    /// If the key is already blocked, the new time replaces the old one. A block is a separate
    /// record and not debt, so it ends on time.
    ///
    /// If the store has no room for the record, it returns a denial with the source
    /// [`Source::Overflow`](crate::decision::Source::Overflow). The key is then not blocked.
    #[inline]
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.call(Op::Block(charge, time))
    }

    /// Ends a [`block`](StoreExt::block).
    #[inline]
    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Unblock(charge))
    }

    /// Wraps this store so that requests are allowed without a charge while this store fails. No
    /// limit applies in that time.
    fn fail_open(self) -> FailOpen<Self>
    where
        Self: Sized,
    {
        FailOpen::new(self)
    }

    /// Wraps this store so that requests are rejected with 503 while this store fails.
    fn fail_closed(self) -> FailClosed<Self>
    where
        Self: Sized,
    {
        FailClosed::new(self)
    }

    /// Wraps this store so that an answer that takes longer than `budget` becomes an error.
    ///
    /// # Panics
    ///
    /// Panics if `budget` is zero. For a value from configuration, use [`Timeout::try_new`].
    #[track_caller]
    fn timeout(self, limit: Duration) -> Timeout<Self>
    where
        Self: Sized,
    {
        Timeout::new(self, limit)
    }

    /// Wraps this store so that it is not called for some time after it fails.
    fn breaker(self) -> Breaker<Self>
    where
        Self: Sized,
    {
        Breaker::new(self)
    }

    /// Wraps this store so that denials are repeated for at most one second without calling this
    /// store.
    fn deny_cache(self) -> DenyCache<Self>
    where
        Self: Sized,
    {
        DenyCache::new(self)
    }

    /// Wraps this store so that units of hot keys are leased from it. Requests that use leased
    /// units are allowed without calling this store. This process holds at most `percent` percent
    /// of each limit as unused units. The sum of `percent` over all processes should be 25 or less.
    ///
    /// # Panics
    ///
    /// Panics if `percent` is not 1 to 25. For a value from configuration, use [`Leased::try_new`].
    #[track_caller]
    fn leases(self, percent: u32) -> Leased<Self>
    where
        Self: Sized,
    {
        Leased::new(self, percent)
    }

    /// Wraps this store so that the store `local` decides while this store fails.
    fn fallback<L>(self, local: L) -> Fallback<Self, L>
    where
        Self: Sized,
        L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
    {
        Fallback::new(self, local)
    }

    /// Erases the type of this store, so that a store can be chosen at run time.
    fn boxed(self) -> Arc<DynStore<Self::Error>>
    where
        Self: Sized + Send + Sync + 'static,
        Self::Future: 'static,
    {
        Arc::new(Boxed::new(self))
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
