//! The same decisions outside HTTP.

use std::{error::Error, fmt, time::Duration};

use crate::{
    decision::Decision,
    explain::Explanation,
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{Answer, BlockFuture, Charge, LocalStore, Store},
};

/// Asks a store directly: for jobs, sockets, logins, anything that is not an HTTP request.
///
/// Its accounts are those of a layer's rule of the same name on the same store, so both can share
/// a limit.
///
/// An answer is awaited, or, with the embedded store, read at once with
/// [`now`](Answer::now):
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
/// Several quotas are charged all or none: `limiter.take(key, &[second, day], 1)`.
#[derive(Clone, Debug)]
pub struct Limiter<S> {
    store: S,
    name: RuleName,
}

impl Limiter<LocalStore> {
    /// A limiter with an embedded store of its own.
    #[must_use]
    pub fn local() -> Self {
        Self::new(LocalStore::new())
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter over the accounts of the rule `default` in `store`.
    pub fn new(store: S) -> Self {
        Self::named(RuleName::default(), store)
    }

    /// A limiter over the accounts of the rule `name` in `store`.
    pub fn named(name: RuleName, store: S) -> Self {
        Self { store, name }
    }

    /// Takes `cost` units of every quota, or none.
    pub fn take(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Answer<S::Future> {
        self.charge(&key.into(), quotas.as_ref(), |charge| self.store.take(&[charge.cost(cost)]))
    }

    /// Looks without taking. The decision is always allowed; its outcomes say what is left.
    pub fn peek(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<S::Future> {
        self.take(key, quotas, 0)
    }

    /// Explains what [`take`](Limiter::take) would say, with nothing taken: see
    /// [`Explanation::look`].
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let (limiter, quota) = (Limiter::local(), Quota::per_hour(2));
    /// let would = limiter.explain("alice", &quota, 1).await?;
    /// assert!(would.is_allowed());
    /// print!("{would}");
    /// # Ok::<(), std::convert::Infallible>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// When the store could not decide.
    pub async fn explain(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Result<Explanation, S::Error> {
        let key = key.into();
        let charge = Charge::new(self.name, &key, quotas.as_ref()).cost(cost);
        Explanation::look(&self.store, &[charge]).await
    }

    /// Undoes what [`take`](Limiter::take) charged for `cost`, by the decision that allowed it: all
    /// of it, or up to `units`. What has flowed back since is not given back again; see
    /// [`Store::undo`].
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let (limiter, tokens) = (Limiter::local(), Quota::per_minute(10_000));
    /// let taken = limiter.take("alice", &tokens, 500).now();
    /// limiter.undo("alice", &tokens, 500, &taken, Some(470)); // it cost 30
    /// assert_eq!(limiter.peek("alice", &tokens).now().remaining(), Some(9_970));
    /// ```
    pub fn undo(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
        taken: &Decision,
        units: Option<u32>,
    ) {
        let undo = |charge: Charge<'_>| self.store.undo(&[charge.cost(cost)], taken, units);
        self.charge(&key.into(), quotas.as_ref(), undo);
    }

    /// Gives `units` back to every quota, also where they have flowed back since, or, below 0,
    /// charges them late (see [`Store::settle`]). What a `take` charged is given back by
    /// [`undo`](Limiter::undo).
    pub fn settle(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        units: i64,
    ) -> Answer<S::Future> {
        self.charge(&key.into(), quotas.as_ref(), |charge| self.store.settle(&charge, units))
    }

    /// Ends the key's account, as if it had never been seen.
    pub fn reset(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
    ) -> Answer<S::Future> {
        self.charge(&key.into(), quotas.as_ref(), |charge| self.store.reset(&charge))
    }

    /// Denies the key for `time`, whatever its account holds (see [`Store::block`]).
    ///
    /// The answer is a [`BlockError`](crate::store::BlockError) if the key is not blocked: the store
    /// failed, or its table of blocks is full. While a [`Fallback`](crate::store::Fallback) decides,
    /// the key is blocked in this process only, and the decision's source is
    /// [`Source::Fallback`](crate::Source::Fallback).
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
    pub fn block(&self, key: impl Into<Key>, time: Duration) -> Answer<BlockFuture<S::Future>> {
        self.charge(&key.into(), &[], |charge| self.store.block(&charge, time).blocked())
    }

    /// Ends a [`block`](Limiter::block).
    pub fn unblock(&self, key: impl Into<Key>) -> Answer<S::Future> {
        self.charge(&key.into(), &[], |charge| self.store.unblock(&charge))
    }

    /// Takes `cost` units if they are there, without waiting: whether it did.
    ///
    /// # Errors
    ///
    /// When the store could not decide.
    pub async fn try_take(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Result<bool, S::Error> {
        Ok(self.take(key, quotas, cost).await?.is_allowed())
    }

    /// Takes `most` units, or what there is: how many it took.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let (limiter, quota) = (Limiter::local(), Quota::per_hour(10));
    /// assert_eq!(limiter.take_up_to("alice", &quota, 7).await, Ok(7));
    /// assert_eq!(limiter.take_up_to("alice", &quota, 7).await, Ok(3));
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// When the store could not decide.
    pub async fn take_up_to(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        most: u32,
    ) -> Result<u32, S::Error> {
        let key = key.into();
        let mut wanted = most;
        while wanted > 0 {
            let decision = self.take(key.clone(), quotas, wanted).await?;
            if decision.is_allowed() {
                break;
            }
            // less than was wanted, unless somebody gave back in between
            wanted = decision.least().min(wanted - 1);
        }
        Ok(wanted)
    }

    /// Waits until `cost` units have been taken, evenly spaced and first come first served where
    /// the algorithm can queue. Dropped while it waits, it gives its
    /// units back if nobody has queued behind it; otherwise they are lost to the account, and those
    /// behind keep their places.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// let (limiter, quota) = (Limiter::local(), Quota::per_second(100).burst(1));
    /// for _ in 0..3 {
    ///     limiter.until_ready("upstream", &quota, 1).await?; // 10 ms apart
    /// }
    /// # Ok::<(), tower_sluice::NotReady<std::convert::Infallible>>(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// When waiting cannot help, because the cost is above a quota's limit, or the store could not
    /// decide.
    pub async fn until_ready(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        cost: u32,
    ) -> Result<Decision, NotReady<S::Error>> {
        let (key, quotas) = (key.into(), quotas.as_ref());
        let charge = Charge::new(self.name, &key, quotas).cost(cost);
        let queueing = charge.max_wait(Duration::MAX);
        let charge = if self.store.check(&[queueing]).is_ok() { queueing } else { charge };
        loop {
            let decision = self.store.take(&[charge]).await.map_err(NotReady::Store)?;
            if decision.is_allowed() {
                let mut place = Place { store: &self.store, charge, taken: Some(decision) };
                let wait = place.taken.as_ref().map_or(Duration::ZERO, Decision::wait);
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                return place.taken.take().ok_or(NotReady::Never);
            }
            let Some(wait) = decision.retry_after() else { return Err(NotReady::Never) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs `work` once a unit has been [taken](Limiter::until_ready) for it.
    ///
    /// # Errors
    ///
    /// As [`until_ready`](Limiter::until_ready); `work` has not been polled then.
    pub async fn throttle<F: Future>(
        &self,
        key: impl Into<Key>,
        quotas: &(impl AsRef<[Quota]> + ?Sized),
        work: F,
    ) -> Result<F::Output, NotReady<S::Error>> {
        self.until_ready(key, quotas, 1).await?;
        Ok(work.await)
    }

    fn charge<T>(&self, key: &Key, quotas: &[Quota], then: impl FnOnce(Charge<'_>) -> T) -> T {
        then(Charge::new(self.name, key, quotas))
    }
}

/// Why [`Limiter::until_ready`] did not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReady<E> {
    /// The cost is above a quota's limit, or the quota is blocked.
    Never,
    /// The store could not decide.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for NotReady<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("the cost is above what the quota ever has"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for NotReady<E> {}

/// A place in the queue. Dropped, its charge is undone where nobody has queued behind it.
struct Place<'a, S: Store> {
    store: &'a S,
    charge: Charge<'a>,
    taken: Option<Decision>,
}

impl<S: Store> Drop for Place<'_, S> {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            self.store.undo(&[self.charge], taken, None);
        }
    }
}
