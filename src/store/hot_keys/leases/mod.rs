//! Leases: units of hot keys that are used without calling the store.
//!
//! The store charges units when they are borrowed, and this process uses the units later. A balance
//! must not admit a call that an account would deny if units were charged only when used. A balance
//! therefore shrinks at the rate at which the account refills.
//!
//! **GCRA.** The used part of an account is a span of time, from now to the theoretical arrival
//! time. Each charge extends the span by a piece. A balance is such a piece, `[from, until)`. A
//! used unit moves `from` forward by the interval `T`, and `from` is never before the current time.
//!
//! A balance admits no unit too early. For the proof, compare the shared account in the store with
//! an exact account, which is charged only when a unit is used:
//!
//! - The span of the exact account is at most as long as all used pieces together. A used unit adds
//!   `T` to both, and time shortens the span at least as much as the pieces.
//! - The span of the shared account is as long as all used and unused pieces together, which is at
//!   most the burst.
//! - The exact account therefore has room for every unused piece.
//!
//! A refund moves later pieces to an earlier time. A balance therefore starts
//! earlier, by a quarter of the time in which the full limit refills (`SAFETY_MARGIN`). The
//! balance is correct if at most a quarter of the limit is refunded while a lease exists.
//!
//! **Fixed windows.** A balance belongs to one window, and ends with that window.

mod allowances;
mod borrow;
mod hot_call;
mod lease;

use std::{convert::identity, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use self::{
    allowances::{Allowances, Percent, Reserved},
    borrow::Borrow,
    hot_call::{BorrowOperation, HotCall},
    lease::Lease,
};
use super::{HotEntries, HotKey, HotKeys, for_cost_of, have_distinct_rules};
use crate::{
    algorithm::Demand,
    decision::Decision,
    quota::Quota,
    store::{
        Answer, BoxFuture, Charge, Context, Health, Instances, Op, OwnedCharges, Store,
        context::OwnedContext, wrappers::forward,
    },
};

/// The default capacity, in keys. The table takes less than 0.5 MB, plus 1.5 kB per hot key.
const CAPACITY: usize = 4_096;
/// The time that a lease should last, in nanoseconds. An unused lease is returned after this time.
const SPAN: u64 = 200_000_000;
/// The maximum number of times that a call waits for another call's lease.
const MAX_WAITS: u8 = 2;
/// The age of a borrow operation from which on no call waits for it, because its runtime may be blocked.
const MAX_WAIT: Duration = Duration::from_nanos(SPAN / 2);
type LockedSet<'a> = MutexGuard<'a, HotEntries<HotCall>>;
type Later<S> = BoxFuture<Result<Decision, <S as Store>::Error>>;

/// Store that leases units of hot keys from its inner store.
///
/// One call to the inner store borrows units for many requests. A key with a thousand requests per
/// second causes about twenty calls per second.
///
/// The inner store charges units when they are borrowed, so the limit is never exceeded. Other
/// processes cannot use borrowed units.
///
/// The argument of [`leases`](crate::StoreExt::leases) is the maximum percentage of each limit that one
/// process may hold, in percent. With 5 %, one process holds at most 50 of 1000 units. All
/// processes together should hold at most a quarter, for example five processes with 5 % each. With
/// [`instances`](Leased::instances), the percentage is that of all processes.
///
/// - **Hot keys only.** A lease has units for the calls of the last 200 ms, up to the percentage of this
///   process. Requests call the inner store if their key had fewer than four calls in that time, or
///   if that is less than two calls. While one call borrows units, later calls with the same
///   keys wait, for at most two round trips. They do not wait for a call that started more than
///   100 ms ago, because its runtime may be blocked.
/// - **Several calls.** A request that borrows units makes at most three calls, one after another. If
///   the inner store has a [`Timeout`](crate::store::Timeout), each call has the whole time.
/// - **Never more than the store** admits, in any period of time. Under GCRA, a lease shrinks at
///   the rate of the refill, with a margin for clock errors and network latency. In windows, a
///   lease ends with the window.
/// - **The last units.** If the store has too few units for a lease, the lease gets the rest. Under
///   GCRA, calls may then be denied for up to 200 ms, until the units of 100 ms are available. The
///   denials report that wait.
/// - **Returned units.** Units are returned if they are unused for 200 ms, or held longer than
///   [`max_age`](Leased::max_age) (1 s by default). Dropping the last clone returns all units, if
///   the inner store can do so without waiting. The units of a killed process are lost until they
///   refill with time.
/// - **Changes by this process** take effect immediately. A [`reset`](crate::StoreExt::reset), a
///   [`block`](crate::StoreExt::block) or a new limit ends the leases of the key. Units under the old
///   limit are not returned. Quotas with another period or algorithm leave the leases alone. While a
///   reset, a block or a refund is being made, no units of the key are borrowed.
/// - **Changes by other processes** take effect when the lease is used up, and after
///   [`max_age`](Leased::max_age) at the latest.
/// - **Several charges** of one call are borrowed together, or not at all. A lease serves only
///   calls with the same keys. All leases with a common key together hold at most the percentage of that
///   key.
///
/// A decision with borrowed units has the [source](Decision::source)
/// [`Source::Leased`](crate::decision::Source::Leased). The reported units left do not include
/// later charges by other processes. A charge of cost 0 calls the store, where all borrowed units
/// count as charged.
///
/// Units can be borrowed under [`Gcra`](crate::Algorithm::Gcra),
/// [`FixedWindow`](crate::Algorithm::FixedWindow) and
/// [`AnchoredWindow`](crate::Algorithm::AnchoredWindow). The following charges always call the
/// inner store:
///
/// - any other algorithm, and a `FixedWindow` that paces or carries over;
/// - a quota with [`soft`](crate::Quota::with_soft) or [`initial`](crate::Quota::with_initial) units;
/// - a charge with [`headroom`](Charge::headroom) or [`max_wait`](Charge::max_wait);
/// - a charge of [one quota](Charge::with_quota_index) only;
/// - a [report-only](Charge::with_report_only) charge;
/// - a call with two charges of one rule.
///
/// Apply the leases **outside** a [deny cache](crate::StoreExt::deny_cache), and inside the wrapper
/// that handles failures: `store.timeout(d).breaker().deny_cache().leases(5).fallback(local, n)`.
/// Without a deny cache, each denial is a round trip, and leases save few round trips at the limit.
/// Leases admit calls even while the server is down, so such decisions do not show that the server
/// works.
///
/// Clones share the leases. Call the setters before you clone, because each creates a store without
/// leases. Decisions that are not immediate need a tokio runtime whose timer is enabled.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota, StoreExt, decision::Source};
///
/// let shared = LocalStore::new(); // in production a remote store
/// let store = shared.leases(5);
/// let limiter = Limiter::named("default", store.clone());
/// let quota = Quota::per_hour(10_000);
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for _ in 0..1_000 {
///     assert!(limiter.take("hot", &quota, 1).await.is_allowed());
/// }
/// assert_eq!(limiter.take("hot", &quota, 1).await.source(), Source::Leased);
/// # });
/// ```
///
/// The next example is for twenty processes that share a server:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // in production a remote store
/// let store = shared
///     .timeout(Timeout::DEFAULT)
///     .breaker()
///     .deny_cache()
///     .leases(1)
///     .max_age(Duration::from_millis(500))
///     .capacity(1_000)
///     .fallback(LocalStore::with_capacity(100_000), 20);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_minute(60_000), store);
/// ```
///
/// # Round trips
///
/// The test `resilience::leased_trips` counts the requests to the shared store, including returned
/// units. In all its cases, at least 98.8 % of the limit was used.
///
/// | load of one key | calls per round trip | calls per round trip without the deny cache |
/// |---|---|---|
/// | 10 per second, at random | 1.6 | 1.6 |
/// | 30 per second, at random | 6 | 6 |
/// | 100 per second, at random | 19 | 19 |
/// | 800 per second | 148 | 148 |
/// | two processes, together at half of the limit of 1 000 per second | 47 | 47 |
/// | two processes, together at the limit | 92 | 92 |
/// | two processes, together at 1.5 times the limit | 64 | 3.1 |
/// | two processes, together at ten times the limit | 311 | 1.1 |
///
/// # Limitations
///
/// - Leases do **not** help against a flood of new keys, because the store is called for each new
///   key.
/// - The suspension of a machine is not detected. Units that were borrowed before the suspension
///   are still used afterwards.
/// - Each refund by [`undo`](Store::undo) or [`adjust`](crate::StoreExt::adjust) is a round trip to
///   the store. A refund by `adjust` also ends the leases of the account.
/// - Borrowed units that expire stay charged until time refills them. If the full limit is refilled
///   within seconds, about a quarter of one burst may be lost, or somewhat more.
/// - While a process holds units of a limit, any process may undo or refund more than a quarter of
///   that limit. The process may then admit up to the refunded number of units too early.
#[derive(Debug)]
#[must_use]
pub struct Leased<S: Store + 'static>(Arc<Leases<S>>);

/// The state that all clones share.
#[derive(Debug)]
struct Leases<S: Store + 'static> {
    inner: Arc<S>,
    table: HotKeys<HotCall>,
    allowances: Arc<Allowances>,
}

impl<S: Store> Leased<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, percent: u32) -> Self {
        assert!(
            (1..=25).contains(&percent),
            "percent is {percent}; give 1 to 25, the share of a limit that one process may hold"
        );
        let percent = Percent {
            percent,
            instances: Instances::from(1),
        };
        Self::with(
            Arc::new(inner),
            percent,
            HotKeys::new(CAPACITY, super::MAX_AGE),
        )
    }

    /// Sets the number of processes that share the percentage of [`leases`](crate::StoreExt::leases).
    /// Defaults to 1.
    ///
    /// Give a number, or `RedisStore::live_instances`. With `leases(25)` and five processes, one process
    /// holds at most 50 of 1000 units.
    ///
    /// # Panics
    ///
    /// Panics if `instances` is 0.
    #[track_caller]
    pub fn instances(self, instances: impl Into<Instances>) -> Self {
        let table = HotKeys::new(
            self.0.table.capacity(),
            Duration::from_nanos(self.0.table.max_age),
        );
        let percent = Percent {
            instances: instances.into(),
            ..self.0.allowances.percent.clone()
        };
        Self::with(self.0.inner.clone(), percent, table)
    }

    /// Sets the longest time for which borrowed units are held. Defaults to 1 s.
    ///
    /// Changes by other processes take effect after at most this time.
    ///
    /// # Panics
    ///
    /// Panics if the time is zero or more than a minute.
    #[track_caller]
    pub fn max_age(self, time: Duration) -> Self {
        let table = HotKeys::new(self.0.table.capacity(), time);
        Self::with(
            self.0.inner.clone(),
            self.0.allowances.percent.clone(),
            table,
        )
    }

    /// Sets the maximum number of tracked keys, rounded up to a multiple of eight. Defaults to
    /// 4 096.
    ///
    /// The keys of recent requests are tracked. Requests with other keys call the inner store.
    ///
    /// A tracked key takes 96 bytes, and about 1.5 kB more while the key has a lease. A
    /// [`reset`](crate::StoreExt::reset), a [`block`](crate::StoreExt::block) or a refund by
    /// [`adjust`](crate::StoreExt::adjust) scans all tracked keys.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0 or more than 16 777 216.
    #[track_caller]
    pub fn capacity(self, keys: usize) -> Self {
        let table = HotKeys::new(keys, Duration::from_nanos(self.0.table.max_age));
        Self::with(
            self.0.inner.clone(),
            self.0.allowances.percent.clone(),
            table,
        )
    }

    fn with(inner: Arc<S>, percent: Percent, table: HotKeys<HotCall>) -> Self {
        let allowances = Arc::new(Allowances {
            percent,
            reserved: Mutex::default(),
        });
        Self(Arc::new(Leases {
            inner,
            table,
            allowances,
        }))
    }
}

/// The next step of a call.
#[expect(
    clippy::large_enum_variant,
    reason = "a decision is moved to the caller at once"
)]
enum NextStep<S: Store + 'static> {
    /// A lease admits the call.
    Admit(Decision),
    /// This lease has ended, so its units are returned. Then the call starts again.
    Return(Box<Lease>),
    Borrow(Borrow<S>),
    /// Another call borrows units.
    Wait(BorrowOperation),
    Bypass,
}

impl<S: Store + Send + Sync + 'static> Leases<S> {
    /// Decides with a lease, or calls the store.
    ///
    /// `waits` is the number of earlier waits.
    fn take(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        context: &Context<'_>,
        waits: u8,
    ) -> Answer<Later<S>> {
        match self.next_step(charges) {
            NextStep::Admit(decision) => Answer::Now(Ok(decision)),
            NextStep::Return(lease) => {
                lease.return_units(&*self.inner, self.table.now());
                drop(lease);
                self.take(charges, context, waits)
            }
            NextStep::Borrow(borrow) => borrow.run(charges, context),
            NextStep::Wait(operation)
                if waits < MAX_WAITS && operation.start.elapsed() < MAX_WAIT =>
            {
                self.wait(operation, charges, context, waits)
            }
            NextStep::Wait(_) | NextStep::Bypass => {
                self.inner.call(Op::Take(charges), context).then(identity)
            }
        }
    }

    /// Chooses the next step of a call, and counts the call.
    fn next_step(self: &Arc<Self>, charges: &[Charge<'_>]) -> NextStep<S> {
        if !are_borrowable(charges, &self.allowances.percent) {
            return NextStep::Bypass;
        }
        let key = self.table.key(charges);
        let now = self.table.now();
        let mut entries = self.table.lock(key);
        if entries.of(key).next().is_none() {
            entries.add(key, HotCall::default(), HotCall::rank);
        }
        let Some(call) = entries.of(key).next() else {
            return NextStep::Bypass;
        };
        if let Some(decision) = call.admit(charges, now, self.table.max_age) {
            return NextStep::Admit(decision);
        }
        if let Some(lease) = call.end_lease(now) {
            return NextStep::Return(lease);
        }
        call.count(1.0, now);
        if let Some(operation) = call.borrow_operation() {
            return NextStep::Wait(operation);
        }
        self.borrow(key, call, charges)
            .map_or(NextStep::Bypass, NextStep::Borrow)
    }

    /// Asks again after another call has borrowed units.
    fn wait(
        self: &Arc<Self>,
        mut operation: BorrowOperation,
        charges: &[Charge<'_>],
        context: &Context<'_>,
        waits: u8,
    ) -> Answer<Later<S>> {
        let leases = self.clone();
        let charges = OwnedCharges::from(charges);
        let context = OwnedContext::from(context);
        Answer::Later(Box::pin(async move {
            // Only the end of the operation changes the channel.
            let _ = timeout_at(operation.start + MAX_WAIT, operation.end.changed()).await;
            charges
                .with(|charges| leases.take(charges, &context.get(), waits + 1))
                .await
        }))
    }

    /// Starts to borrow units, if the call is hot and the store is not short of units.
    fn borrow(
        self: &Arc<Self>,
        key: HotKey,
        call: &mut HotCall,
        charges: &[Charge<'_>],
    ) -> Option<Borrow<S>> {
        let now = self.table.now();
        let size = call.lease_size(now)?;
        let all = charges.iter();
        let tags: SmallVec<[u64; 2]> = all.map(|charge| self.table.tag(charge)).collect();
        let changes = self.table.changes(&tags);
        let Reserved { calls, allowance } = self.allowances.reserve(charges, &tags, size)?;
        let (sender, end) = watch::channel(());
        let start = Instant::now();
        call.borrow = Some(BorrowOperation { start, end });
        Some(Borrow {
            leases: self.clone(),
            key,
            calls,
            allowance: Some(allowance),
            requested_at: now,
            changes,
            tags,
            scarce: now < call.limited_until,
            partial: false,
            _end: sender,
        })
    }

    /// Returns the units of the lease that was borrowed at `requested_at` when it is unused or old.
    fn return_unused(self: &Arc<Self>, key: HotKey, requested_at: u64) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let leases = Arc::downgrade(self);
        drop(runtime.spawn(async move {
            loop {
                sleep(Duration::from_nanos(SPAN / 2)).await;
                let Some(leases) = leases.upgrade() else {
                    return;
                };
                if !leases.end_unused(key, requested_at) {
                    return;
                }
            }
        }));
    }
}

impl<S: Store + 'static> Leases<S> {
    /// Ends the unused and old leases of a set. Returns `true` if that which was borrowed at
    /// `requested_at` existed until now.
    fn end_unused(&self, key: HotKey, requested_at: u64) -> bool {
        let now = self.table.now();
        let mut existed = false;
        self.end(self.table.set(key.tag).entries.lock(), now, |lease| {
            existed |= lease.requested_at == requested_at;
            lease.age(now) >= self.table.max_age || now.saturating_sub(lease.last) >= SPAN
        });
        existed
    }

    fn end_all(&self, mut which: impl FnMut(&Lease) -> bool) {
        let now = self.table.now();
        self.table
            .sets
            .iter()
            .for_each(|set| self.end(set.entries.lock(), now, &mut which));
    }

    /// Ends some leases of a set, and returns their unused units to the store.
    fn end(&self, mut set: LockedSet<'_>, now: u64, mut which: impl FnMut(&Lease) -> bool) {
        let calls = set.list.iter_mut().map(|(_, call)| call);
        let ended = calls.filter(|call| call.lease.as_deref().is_some_and(&mut which));
        let ended: SmallVec<[_; 1]> = ended.filter_map(|call| call.end_lease(now)).collect();
        drop(set);
        ended
            .iter()
            .for_each(|lease| lease.return_units(&*self.inner, now));
    }
}

impl<S: Store + 'static> Drop for Leases<S> {
    fn drop(&mut self) {
        self.end_all(|_| true);
    }
}

impl<S: Store + Send + Sync + 'static> Store for Leased<S> {
    type Error = S::Error;
    type Future = Later<S>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let Leases { inner, table, .. } = &*self.0;
        let tag = match op {
            Op::Take(charges) => return self.0.take(charges, context, 0),
            Op::Peek(_) | Op::Adjust(_, 0..) | Op::Unblock(_) => {
                return inner.call(op, context).then(identity);
            }
            Op::Adjust(charge, _) | Op::Reset(charge) | Op::Block(charge, _) => table.tag(charge),
        };
        // Units that are borrowed before the change could be used again after it.
        let whole_allowance = self.0.allowances.close(tag);
        table.count_change(tag);
        self.0.end_all(|lease| lease.tags.contains(&tag));
        inner.call(op, context).then(move |answer| {
            drop(whole_allowance);
            answer
        })
    }

    // A charge is undone in the store, even if a lease admitted the call.
    forward!(self => self.0.inner; undo, supports, register, known_rules, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        Health::wrapping("leased", self.0.inner.health(), None, "")
    }
}

impl<S: Store> Clone for Leased<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Returns `true` if units for at least two calls can be borrowed.
fn are_borrowable(charges: &[Charge<'_>], percent: &Percent) -> bool {
    let mut all = charges.iter();
    all.all(|charge| can_borrow_for(charge, percent)) && have_distinct_rules(charges)
}

fn can_borrow_for(charge: &Charge<'_>, percent: &Percent) -> bool {
    let two_calls = u64::from(charge.cost) * 2;
    let mut quotas = charge.quotas.iter();
    charge.is_ordinary()
        && charge.demand() == Demand::units(charge.cost)
        && quotas.all(|quota| is_borrowable(quota) && two_calls <= percent.of(quota.limit()))
}

fn is_borrowable(quota: &Quota) -> bool {
    quota.algorithm().can_lease()
        && quota.soft() == 0
        && quota.initial().is_none()
        && !quota.is_blocked()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::hot_keys::HotSet;

    #[test]
    fn entries_take_no_more_memory_than_documented() {
        assert!(
            size_of::<HotSet<HotCall>>() <= 48,
            "{}",
            size_of::<HotSet<HotCall>>()
        );
        assert!(
            size_of::<(HotKey, HotCall)>() <= 96,
            "{}",
            size_of::<(HotKey, HotCall)>()
        );
        assert!(size_of::<Lease>() <= 1_400, "{}", size_of::<Lease>());
    }
}
