//! A cache of denials.

use std::{slice, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{HotKey, HotKeys, for_cost_of, have_distinct_rules};
use crate::{
    decision::{Cause, Decision, NEVER, Outcome, Source},
    name::RuleName,
    quota::Quota,
    store::{Answer, BoxFuture, Charge, Context, Health, Op, Store, wrappers::forward},
};

/// The default capacity. A full cache takes 9 MB.
const CAPACITY: usize = 65_536;
/// The longest time for which a denial by slots is repeated: 10 ms.
const SLOTS_MAX_AGE: u64 = 10_000_000;

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
///   denials of an account are removed by an allowed charge, by a freed slot, by a new limit, and by
///   [`adjust`](crate::StoreExt::adjust), [`undo`](Store::undo), [`reset`](crate::StoreExt::reset),
///   [`block`](crate::StoreExt::block) and [`unblock`](crate::StoreExt::unblock).
/// - **Other changes**, such as changes by another process, take effect within
///   [`max_age`](DenyCache::max_age), by default 1 s.
/// - **Several charges** of one call are allowed only together, so one cached denial denies the
///   call. Of several cached denials, the longest is reported, but a block before all others. The
///   outcomes of the other charges are [unknown](crate::decision::Outcome::unknown), and do not
///   appear in header fields and counters. Another rule may deny the call for longer than the
///   reported wait.
/// - **Bounded.** In a full cache, a new denial replaces the denial that ends first.
///
/// The cache never answers:
///
/// - a cost of 0;
/// - a [report-only](Charge::with_report_only) charge;
/// - a charge of [one quota](Charge::with_quota_index) only;
/// - a call with two charges of one rule;
/// - a fixed window that paces or carries over;
/// - several quotas if one of them has [`initial`](crate::Quota::with_initial) units.
///
/// Apply the cache **outside** the breaker:
/// `store.timeout(d).breaker().deny_cache().fallback(local, n)`. While the server is down, cached
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
/// let limiter = Limiter::named("default", store.clone());
/// let quota = Quota::per_hour(1);
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// assert!(limiter.take("alice", &quota, 1).await.is_allowed());
/// assert_eq!(limiter.take("alice", &quota, 1).await.source(), Source::Local);
/// let again = limiter.take("alice", &quota, 1).await;
/// assert_eq!((again.is_allowed(), again.source()), (false, Source::DenyCache));
///
/// drop(limiter.reset("alice", &quota).await);
/// assert!(limiter.take("alice", &quota, 1).await.is_allowed());
/// # });
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
///     .fallback(LocalStore::with_capacity(100_000), 1);
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
#[must_use]
pub struct DenyCache<S> {
    inner: S,
    table: Arc<HotKeys<CachedDenial>>,
}

impl<S> DenyCache<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            table: Arc::new(HotKeys::new(CAPACITY, super::MAX_AGE)),
        }
    }

    /// Sets the longest time for which a denial is repeated. Defaults to 1 s.
    ///
    /// Changes by another process take effect after at most this time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is zero or more than one minute.
    #[track_caller]
    pub fn max_age(self, time: Duration) -> Self {
        Self {
            table: Arc::new(HotKeys::new(self.table.capacity(), time)),
            ..self
        }
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
    pub fn capacity(self, denials: usize) -> Self {
        let max_age = Duration::from_nanos(self.table.max_age);
        Self {
            table: Arc::new(HotKeys::new(denials, max_age)),
            ..self
        }
    }
}

impl<S: Store + 'static> Store for DenyCache<S> {
    type Error = S::Error;
    type Future = BoxFuture<Result<Decision, S::Error>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let mut call = DenyCacheCall::new(self.table.clone(), op.charges());
        let is_take = matches!(op, Op::Take(_));
        if is_take && let Some(denial) = call.known_denial(op.charges()) {
            return Answer::Now(Ok(denial));
        }
        call.is_change = !matches!(op, Op::Take(_) | Op::Peek(_));
        let answer = self.inner.call(op, context);
        answer.then(move |answer| if is_take { call.finish(answer) } else { answer })
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.is_allowed() || taken.cause() != Cause::Known {
            self.inner.undo(charges, taken, units);
            charges
                .iter()
                .for_each(|charge| self.table.forget(self.table.tag(charge)));
        }
    }

    forward!(self => self.inner; supports, register, known_rules, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        Health::wrapping("deny_cache", self.inner.health(), None, "")
    }
}

/// State of a call through a [`DenyCache`].
struct DenyCacheCall {
    table: Arc<HotKeys<CachedDenial>>,
    /// The start of the call.
    at: u64,
    /// `true` if the accounts change when the call is dropped, even before its answer.
    is_change: bool,
    /// `true` if a quota has `initial` units.
    has_initial: bool,
    accounts: SmallVec<[CalledAccount; 2]>,
}

/// The account of one charge of a call.
#[derive(Clone, Copy)]
struct CalledAccount {
    key: HotKey,
    rule: RuleName,
    /// The units that must be available: cost plus headroom.
    need: u64,
    /// `true` if a denial can be cached.
    cacheable: bool,
    /// The changes that were counted at the start of the call.
    changes: u64,
}

impl DenyCacheCall {
    fn new(table: Arc<HotKeys<CachedDenial>>, charges: &[Charge<'_>]) -> Self {
        let mut quotas = charges.iter().flat_map(|charge| charge.quotas);
        let has_initial = quotas.clone().any(|quota| quota.initial().is_some());
        // With `initial`, a denied call may create the accounts of other quotas.
        let cacheable = have_distinct_rules(charges) && !(has_initial && quotas.nth(1).is_some());
        let accounts = charges.iter().map(|charge| CalledAccount {
            key: table.key(slice::from_ref(charge)),
            rule: charge.rule,
            need: charge.demand().need(),
            cacheable: cacheable && is_cacheable(charge),
            changes: 0,
        });
        let accounts = accounts.collect();
        Self {
            at: table.now(),
            table,
            is_change: false,
            has_initial,
            accounts,
        }
    }

    /// Returns the cached denial of a call, if any.
    ///
    /// Returns the longest of several denials, but a block before all others.
    fn known_denial(&mut self, charges: &[Charge<'_>]) -> Option<Decision> {
        let all = charges.iter().enumerate();
        let known = all.filter_map(|(index, charge)| self.known_denial_of(index, charge));
        let longest = known.max_by_key(|known| (known.blocked, known.wait))?;
        Some(longest.decision(charges))
    }

    /// Returns the cached denial of the charge at `index`, and remembers the changes of its account.
    fn known_denial_of(&mut self, index: usize, charge: &Charge<'_>) -> Option<KnownDenial> {
        let account = &mut self.accounts[index];
        let mut entries = self.table.lock(account.key);
        account.changes = self.table.changes(&[account.key.tag]);
        if !account.cacheable {
            return None;
        }
        let mut own = entries.of(account.key);
        let denial = own.find(|denial| denial.covers(charge, self.at))?;
        let outcomes: SmallVec<_> = denial.outcomes_for(charge, self.at).collect();
        Some(KnownDenial {
            index,
            blocked: denial.blocked,
            wait: outcomes.iter().map(Outcome::retry_ns).max(),
            outcomes,
        })
    }

    fn finish<E>(mut self, answer: Result<Decision, E>) -> Result<Decision, E> {
        let decision = answer?;
        self.update(&decision);
        if decision.is_allowed() && decision.slot.is_some() {
            self.is_change = true;
            // Dropped after the slots of the store.
            return Ok(decision.with_slot(move || drop(self)));
        }
        Ok(decision)
    }

    /// Updates the cache after an answer of the store.
    fn update(&self, decision: &Decision) {
        let is_denial = !decision.is_allowed() && decision.cause().is_cacheable();
        for account in self.accounts.iter().filter(|account| account.need > 0) {
            let denial = is_denial.then(|| CachedDenial::new(self, account, decision));
            if let Some(denial) = denial.flatten() {
                self.keep(account, denial);
            } else if decision.is_allowed() || self.accounts.len() > 1 {
                // A store with several servers may have charged the account for a short time.
                self.table.forget(account.key.tag);
            }
        }
    }

    /// Caches a denial, unless the account has changed since the call began.
    fn keep(&self, account: &CalledAccount, denial: CachedDenial) {
        let mut entries = self.table.lock(account.key);
        if self.table.changes(&[account.key.tag]) == account.changes {
            entries
                .list
                .retain(|(key, old)| *key != account.key || old.need != denial.need);
            entries.add(account.key, denial, |old| Some(old.until));
        }
    }
}

/// Returns `true` if a denial of the charge can be cached.
fn is_cacheable(charge: &Charge<'_>) -> bool {
    charge.is_ordinary() && !charge.quotas.iter().any(may_lose_units)
}

/// Returns `true` if units may expire, or the units left may exceed the limit.
fn may_lose_units(quota: &Quota) -> bool {
    quota.algorithm().max_carry_over() > 0 || quota.algorithm().is_paced()
}

/// A cached denial of one of several charges.
struct KnownDenial {
    /// The index of the charge.
    index: usize,
    blocked: bool,
    wait: Option<u64>,
    outcomes: SmallVec<[Outcome; 4]>,
}

impl KnownDenial {
    /// Returns a denial with the known outcomes. Those of the other charges are unknown.
    fn decision(&self, charges: &[Charge<'_>]) -> Decision {
        let mut decision = Decision::new(false, 0).with_source(Source::DenyCache);
        for (index, charge) in charges.iter().enumerate() {
            if index == self.index {
                decision.outcomes.extend_from_slice(&self.outcomes);
            } else if !self.blocked {
                charge.add_unknown(&mut decision);
            }
        }
        if self.blocked {
            decision.with_blocked()
        } else {
            decision
        }
    }
}

impl Drop for DenyCacheCall {
    fn drop(&mut self) {
        if self.is_change {
            self.accounts
                .iter()
                .for_each(|account| self.table.forget(account.key.tag));
        }
    }
}

impl HotKeys<CachedDenial> {
    /// Removes the denials of an account. Answers to calls in flight are not cached.
    fn forget(&self, tag: u64) {
        self.count_change(tag);
        self.set(tag)
            .entries
            .lock()
            .list
            .retain(|(key, _)| key.tag != tag);
    }
}

/// A cached denial. Instants are nanoseconds since the cache was created.
#[derive(Clone)]
struct CachedDenial {
    need: u64,
    /// The end of the denial, computed from the start of the call.
    until: u64,
    /// The instant of the answer, from which waits are computed.
    answered_at: u64,
    blocked: bool,
    outcomes: SmallVec<[Outcome; 1]>,
}

impl CachedDenial {
    /// Creates an entry, or returns `None` if the account did not deny the call, or its denial cannot be cached.
    fn new(call: &DenyCacheCall, account: &CalledAccount, denial: &Decision) -> Option<Self> {
        if !account.cacheable {
            return None;
        }
        let own = denial
            .outcomes()
            .iter()
            .filter(|outcome| outcome.rule() == account.rule);
        let retry = own
            .clone()
            .filter(|outcome| outcome.is_denied())
            .map(Outcome::retry_ns)
            .max()?;
        // With `initial`, the store may create the account again during a denial without end.
        if retry == NEVER && call.has_initial {
            return None;
        }
        // Another process may free a slot at any time.
        let unknown = own.clone().any(Outcome::is_estimated);
        let max_age = if unknown { SLOTS_MAX_AGE } else { u64::MAX }.min(call.table.max_age);
        Some(Self {
            need: if denial.is_blocked() { 1 } else { account.need },
            until: call.at.saturating_add(retry.min(max_age)),
            answered_at: call.table.now(),
            blocked: denial.is_blocked(),
            outcomes: own.copied().collect(),
        })
    }

    fn is_refilling(&self) -> bool {
        self.outcomes
            .iter()
            .all(|outcome| outcome.interval().is_some())
    }

    /// Returns `true` if the charge is denied for longer than the caller may queue.
    fn covers(&self, charge: &Charge<'_>, now: u64) -> bool {
        let need = charge.demand().need();
        let max_wait = charge.demand().max_wait;
        let is_covered =
            need == self.need || need > self.need && (self.blocked || self.is_refilling());
        // A caller may queue for a slot.
        let queues = max_wait > 0 && self.outcomes.iter().any(Outcome::is_estimated);
        is_covered && now.saturating_add(max_wait) < self.until && !queues
    }

    /// Returns the outcomes at `now`, for the cost of `charge`.
    fn outcomes_for(&self, charge: &Charge<'_>, now: u64) -> impl Iterator<Item = Outcome> {
        let same = self.blocked || charge.demand().need() == self.need;
        self.outcomes.iter().map(move |outcome| {
            let outcome = outcome.aged(now.saturating_sub(self.answered_at));
            if same {
                outcome
            } else {
                for_cost_of(charge, &outcome)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::hot_keys::HotSet;

    #[test]
    fn sets_and_entries_are_no_larger_than_documented() {
        assert!(
            size_of::<HotSet<CachedDenial>>() <= 48,
            "{}",
            size_of::<HotSet<CachedDenial>>()
        );
        assert!(
            size_of::<(HotKey, CachedDenial)>() <= 128,
            "{}",
            size_of::<(HotKey, CachedDenial)>()
        );
        assert!(size_of::<Outcome>() <= 64, "{}", size_of::<Outcome>());
    }
}
