//! The same decisions outside HTTP.

use crate::{
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{Answer, Charge, LocalStore, Store},
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

    /// Gives `units` back to every quota, or, below 0, charges them late
    /// (see [`Store::settle`]).
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

    fn charge<T>(&self, key: &Key, quotas: &[Quota], then: impl FnOnce(Charge<'_>) -> T) -> T {
        then(Charge::new(self.name, key, quotas))
    }
}
