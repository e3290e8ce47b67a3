//! The methods of every store: operations and wrappers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    Answer, Boxed, Breaker, Charge, DenyCache, DynStore, FailClosed, FailOpen, Fallback, Leased,
    Never, Op, Store, Timeout,
};
use crate::decision::Decision;

/// Operations and wrappers of every [`Store`].
///
/// Every [`Store`] implements this trait.
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
pub trait StoreExt: Store + Sized {
    /// Charges all quotas of all charges, or none.
    ///
    /// The decision has one outcome per quota.
    ///
    /// If a future is dropped before it completes, the charge may or may not have been made.
    #[inline]
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.call(Op::Take(charges))
    }

    /// Adds a late charge of `units` to every quota of a charge, or refunds a negative number.
    ///
    /// A late charge never fails. Units beyond the limit plus [`max_debt`](crate::Quota::max_debt)
    /// are dropped. A refund stops when the account is full.
    ///
    /// A refund includes units that were already refilled over time. To reverse the charge of a
    /// request, use [`undo`](Store::undo).
    #[inline]
    fn adjust(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.call(Op::Adjust(charge, units))
    }

    /// Removes the accounts of a charge, as if the key were new.
    #[inline]
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Reset(charge))
    }

    /// Denies a key under a rule for `time`, regardless of the units left.
    ///
    /// A new time replaces an earlier one. A block is not debt, so it ends on time.
    ///
    /// If the store has no room for the block, it returns a denial with the source
    /// [`Source::Overflow`](crate::decision::Source::Overflow), and the key is not blocked.
    #[inline]
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.call(Op::Block(charge, time))
    }

    /// Ends a [`block`](StoreExt::block).
    #[inline]
    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Unblock(charge))
    }

    /// Wraps this store to allow requests without a charge while it fails.
    ///
    /// No limit applies in that time.
    fn fail_open(self) -> FailOpen<Self> {
        FailOpen::new(self)
    }

    /// Wraps this store to reject requests with 503 while it fails.
    fn fail_closed(self) -> FailClosed<Self> {
        FailClosed::new(self)
    }

    /// Wraps this store to fail if an answer takes longer than `limit`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero. For a value from configuration, use [`Timeout::try_new`].
    #[track_caller]
    fn timeout(self, limit: Duration) -> Timeout<Self> {
        Timeout::new(self, limit)
    }

    /// Wraps this store to stop calling it for some time after failures.
    fn breaker(self) -> Breaker<Self> {
        Breaker::new(self)
    }

    /// Wraps this store to repeat denials for at most one second without calling it.
    fn deny_cache(self) -> DenyCache<Self> {
        DenyCache::new(self)
    }

    /// Wraps this store to lease units of hot keys from it.
    ///
    /// Requests that use leased units are allowed without a call. This process holds at most
    /// `percent` percent of each limit as unused units. The sum over all processes should be 25 or
    /// less.
    ///
    /// Apply [`deny_cache`](StoreExt::deny_cache) before. Without it, each denial calls the store,
    /// and leases save few calls at the limit.
    ///
    /// # Panics
    ///
    /// Panics if `percent` is not 1 to 25. For a value from configuration, use [`Leased::try_new`].
    #[track_caller]
    fn leases(self, percent: u32) -> Leased<Self> {
        Leased::new(self, percent)
    }

    /// Wraps this store to decide with the store `local` while it fails.
    fn fallback<L>(self, local: L) -> Fallback<Self, L>
    where
        L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
    {
        Fallback::new(self, local)
    }

    /// Erases the type of this store, so that it can be chosen at run time.
    fn boxed(self) -> Arc<DynStore<Self::Error>>
    where
        Self: Send + Sync + 'static,
        Self::Future: 'static,
    {
        Arc::new(Boxed::new(self))
    }
}

impl<S: Store> StoreExt for S {}
