//! The methods of every store: its operations and its wrappers.

use std::{convert::Infallible, sync::Arc, time::Duration};

use super::{
    Answer, Boxed, Breaker, Charge, DenyCache, DynStore, FailClosed, FailOpen, Fallback, Leased,
    Never, Op, Store, Timeout,
};
use crate::decision::Decision;

/// The operations and the wrappers of every [`Store`].
///
/// A store need not implement this trait: it is implemented for every [`Store`].
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
    /// Charges everything or nothing, and returns the outcome of every quota.
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
    /// A late charge never fails, but stops when the limit plus
    /// [`max_debt`](crate::Quota::max_debt) is charged; the units beyond are dropped. A refund
    /// stops when the account is full.
    ///
    /// This refund is for operators: it gives back any number of units, including units that have
    /// already come back over time. To give back the charge of a request, use
    /// [`undo`](Store::undo).
    #[inline]
    fn adjust(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.call(Op::Adjust(charge, units))
    }

    /// Removes the accounts of the charge, as if its key had never been seen.
    #[inline]
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.call(Op::Reset(charge))
    }

    /// Denies charges of this key under this rule for `time`, regardless of the units left.
    ///
    /// Blocking a blocked key replaces the time. A block is a record of its own and not debt, so it
    /// ends on time.
    ///
    /// A store without room for the record returns a denial with the source
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

    /// Allows requests without a charge while this store fails. No limit applies in that time.
    fn fail_open(self) -> FailOpen<Self>
    where
        Self: Sized,
    {
        FailOpen::new(self)
    }

    /// Rejects requests with 503 while this store fails.
    fn fail_closed(self) -> FailClosed<Self>
    where
        Self: Sized,
    {
        FailClosed::new(self)
    }

    /// Fails with an error if an answer takes longer than `budget`.
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

    /// Stops calling this store for a while after it fails.
    fn breaker(self) -> Breaker<Self>
    where
        Self: Sized,
    {
        Breaker::new(self)
    }

    /// Repeats denials of this store in this process, for at most one second, without calling it.
    fn deny_cache(self) -> DenyCache<Self>
    where
        Self: Sized,
    {
        DenyCache::new(self)
    }

    /// Leases units of hot keys from this store, and allows requests with them without calling it.
    /// At most `percent` of each limit is unused in this process. The sum over all processes should
    /// be 25 or less.
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

    /// Decides with the store `local` while this store fails.
    fn fallback<L>(self, local: L) -> Fallback<Self, L>
    where
        Self: Sized,
        L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
    {
        Fallback::new(self, local)
    }

    /// Erases the type, for a store that is chosen at run time.
    fn boxed(self) -> Arc<DynStore<Self::Error>>
    where
        Self: Sized + Send + Sync + 'static,
        Self::Future: 'static,
    {
        Arc::new(Boxed::new(self))
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
