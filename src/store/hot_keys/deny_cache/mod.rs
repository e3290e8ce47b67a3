//! A cache of denials.

mod account;
mod denials;

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use smallvec::SmallVec;

use self::{account::PendingTake, denials::Denials};
use crate::{
    decision::{Decision, Source},
    store::{
        Answer, BoxFuture, Charge, Health, Op, Store,
        setting::{self, SettingError, literal},
        wrappers::forward,
    },
};

/// The default capacity. A full cache takes 9 MB.
const CAPACITY: usize = 65_536;
/// The maximum capacity. A full cache takes 2 GB.
const LARGEST: usize = 1 << 24;

/// Store that repeats denials of its inner store without calling it.
///
/// A denial reports how long the key must wait. During the wait, the cache repeats the denial with
/// the remaining times and the [source](Decision::source) [`Source::DenyCache`]. After the wait, or
/// after 1 s, the cache calls the store again.
///
/// - **Never stricter than the store.** The cache denies only calls that the store would deny: the
///   same rule, key, quotas, cost and headroom. Under GCRA, the cache also denies a higher cost,
///   with the wait for that cost. A charge that may queue is denied only while the wait is longer
///   than its `max_wait`.
/// - **Slots.** A denial by [slots](crate::Quota::concurrent) is repeated for at most 10 ms, because
///   another process may free one.
/// - **Changes through this store** take effect as soon as the inner store has made them. The
///   denials of an account are removed by an allowed charge, by a freed slot, by new quotas, and by [`adjust`](crate::StoreExt::adjust),
///   [`undo`](Store::undo), [`reset`](crate::StoreExt::reset), [`block`](crate::StoreExt::block)
///   and [`unblock`](crate::StoreExt::unblock).
/// - **Other changes**, such as changes by another process, take effect within
///   [`max_age`](DenyCache::max_age), by default 1 s.
/// - **Several charges** of one call are allowed only together, so one cached denial denies the
///   call. The outcomes of the other charges are [unknown](crate::decision::Outcome::unknown), and
///   do not appear in header fields and counters. Another rule may deny the call for longer than
///   the reported wait.
/// - **Bounded.** In a full cache, a new denial replaces the denial that ends first.
///
/// The cache never answers:
///
/// - a cost of 0;
/// - a [report-only](Charge::with_report_only) charge;
/// - a charge of [one quota](Charge::with_quota_index) only;
/// - a call that names an account twice;
/// - a fixed window that paces or carries over;
/// - several quotas if one of them has [`initial`](crate::Quota::with_initial) units.
///
/// Apply the cache **outside** the breaker:
/// `store.timeout(d).breaker().deny_cache().fallback(local)`. While the server is down, cached
/// denials remain in effect. A cached denial does not close a breaker or end a fallback. Denials by
/// a [`Fallback`](crate::store::Fallback) or a [`FailClosed`](crate::store::FailClosed) inside the
/// cache are not cached.
///
/// Clones share the cache. Call the setters before you clone, because each creates a new cache.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota, StoreExt, decision::Source};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let store = shared.deny_cache();
/// let (limiter, quota) = (Limiter::new(store.clone()), Quota::per_hour(1));
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// assert!(limiter.take("alice", &quota, 1).await?.is_allowed());
/// assert_eq!(limiter.take("alice", &quota, 1).await?.source(), Source::Local);
/// let again = limiter.take("alice", &quota, 1).await?;
/// assert_eq!((again.is_allowed(), again.source()), (false, Source::DenyCache));
/// assert_eq!(store.denials(), 1);
///
/// limiter.reset("alice", &quota).await?;
/// assert!(limiter.take("alice", &quota, 1).await?.is_allowed());
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
/// ```
///
/// The next example wraps a remote store. Changes by other processes take effect after at most
/// 250 ms:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let store = shared
///     .timeout(Timeout::DEFAULT)
///     .breaker()
///     .deny_cache()
///     .max_age(Duration::from_millis(250))
///     .capacity(10_000)
///     .fallback(LocalStore::with_capacity(100_000));
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
///
/// # Limitations
///
/// - The cache does **not** reduce the calls for *allowed* requests or the first call of each new
///   key. The cache does not help against a flood of new keys, and has no benefit around an embedded
///   store.
/// - An [`undo`](Store::undo) in a remote store is not awaited. A call that reaches the server before
///   the undo may be denied, and that denial is cached: the returned units may be denied for up to
///   [`max_age`](DenyCache::max_age).
#[derive(Clone, Debug)]
pub struct DenyCache<S> {
    inner: S,
    denials: Arc<Denials>,
}

#[derive(Clone, Copy, Debug)]
struct DenyCacheConfig {
    capacity: usize,
    /// The maximum age of a denial, in nanoseconds.
    max_age: u64,
}

impl<S> DenyCache<S> {
    pub(crate) fn new(inner: S) -> Self {
        let config = DenyCacheConfig { capacity: CAPACITY, max_age: setting::MAX_AGE };
        Self { inner, denials: Arc::new(Denials::new(config)) }
    }

    /// Sets the longest time for which a denial is repeated. Defaults to 1 s.
    ///
    /// Changes by another process take effect after at most this time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is zero or more than one minute.
    #[track_caller]
    #[must_use]
    pub fn max_age(self, time: Duration) -> Self {
        literal(self.try_max_age(time))
    }

    /// Fallible form of [`max_age`](DenyCache::max_age), for a time that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if [`max_age`](DenyCache::max_age) would panic.
    pub fn try_max_age(self, time: Duration) -> Result<Self, SettingError> {
        let max_age = setting::max_age("deny cache: max_age", time)?;
        Ok(self.with(|config| config.max_age = max_age))
    }

    /// Sets the maximum number of cached denials. Defaults to 65 536.
    ///
    /// The number is rounded up to a multiple of eight. A new cache takes 48 bytes per eight
    /// denials. Each cached denial takes 128 bytes. With several quotas, a denial takes another 64
    /// bytes per quota.
    ///
    /// # Panics
    ///
    /// Panics if `denials` is 0 or more than 16 777 216.
    #[track_caller]
    #[must_use]
    pub fn capacity(self, denials: usize) -> Self {
        literal(self.try_capacity(denials))
    }

    /// Fallible form of [`capacity`](DenyCache::capacity), for a number that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if [`capacity`](DenyCache::capacity) would panic.
    pub fn try_capacity(self, denials: usize) -> Result<Self, SettingError> {
        const FIXES: [&str; 2] = [
            "give at least 1, or remove the cache",
            "give at most 16777216; the cache needs room for the keys denied within 1 s",
        ];
        let capacity = setting::capacity("deny cache: capacity", denials, LARGEST, FIXES)?;
        Ok(self.with(|config| config.capacity = capacity))
    }

    /// Returns the number of denials that the cache has repeated so far.
    ///
    /// With the feature `metrics`, the histogram `ratelimit.decision.duration` counts these denials
    /// with the label `store` = `deny_cache`.
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.denials.hits()
    }

    fn with(self, set: impl FnOnce(&mut DenyCacheConfig)) -> Self {
        let mut config = self.denials.config();
        set(&mut config);
        Self { denials: Arc::new(Denials::new(config)), ..self }
    }
}

impl<S: Store + 'static> DenyCache<S> {
    /// Returns a cached denial, or calls the store.
    fn take(&self, charges: &[Charge<'_>]) -> Answer<BoxFuture<Result<Decision, S::Error>>> {
        match self.denials.look_up(charges) {
            ControlFlow::Break(denial) => Answer::Now(Ok(denial)),
            ControlFlow::Continue(pending) => {
                self.call_inner(Op::Take(charges), Pending::Take(pending))
            }
        }
    }

    fn call_inner(
        &self,
        op: Op<'_>,
        pending: Pending,
    ) -> Answer<BoxFuture<Result<Decision, S::Error>>> {
        let call = DenyCacheCall { denials: self.denials.clone(), pending };
        self.inner.call(op).then(move |answer| call.finish(answer))
    }
}

impl<S: Store + 'static> Store for DenyCache<S> {
    type Error = S::Error;
    type Future = BoxFuture<Result<Decision, S::Error>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        match op {
            Op::Take(charges) => self.take(charges),
            Op::Peek(_) => self.call_inner(op, Pending::Peek),
            Op::Adjust(charge, _)
            | Op::Reset(charge)
            | Op::Block(charge, _)
            | Op::Unblock(charge) => self.call_inner(op, Pending::Change(self.denials.tag(charge))),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != Source::DenyCache {
            self.inner.undo(charges, taken, units);
            for charge in charges {
                self.denials.invalidate(self.denials.tag(charge));
            }
        }
    }

    forward!(self => self.inner; supports, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        Health::wrapping("deny_cache", self.inner.health(), Health::status_of)
    }
}

/// State of a call through a [`DenyCache`].
#[derive(Debug)]
struct DenyCacheCall {
    denials: Arc<Denials>,
    pending: Pending,
}

#[derive(Debug)]
enum Pending {
    Take(PendingTake),
    Peek,
    /// A change of the account with this hash.
    Change(u64),
}

impl DenyCacheCall {
    fn finish<E>(self, answer: Result<Decision, E>) -> Result<Decision, E> {
        let mut decision = answer?;
        if let Pending::Take(pending) = &self.pending {
            self.denials.update(pending, &decision);
            if decision.is_allowed() && decision.holds_slots() {
                let tags: SmallVec<[u64; 2]> = pending.accounts.iter().map(|it| it.tag).collect();
                let denials = self.denials.clone();
                // Dropped after the slots of the store.
                decision = decision.with_slot(move || {
                    tags.into_iter().for_each(|tag| denials.invalidate(tag));
                });
            }
        }
        Ok(decision)
    }
}

/// Removes the denials of a changed account, even if the call is dropped before its answer.
impl Drop for DenyCacheCall {
    fn drop(&mut self) {
        if let Pending::Change(tag) = self.pending {
            self.denials.invalidate(tag);
        }
    }
}
