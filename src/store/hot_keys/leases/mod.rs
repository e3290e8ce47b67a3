//! Leases: units of hot keys that are used without calling the store.

mod balance;
mod borrow;
mod future;
mod lease;
mod sizing;
mod table;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

pub use self::future::LeasedFuture;
use self::{
    borrow::Borrow,
    future::EndOnDrop,
    table::{EndedLeases, LeaseTable, Lookup},
};
use crate::{
    decision::Decision,
    store::{
        Answer, BoxFuture, Charge, Health, Op, OwnedCharges, Store,
        setting::{self, SettingError, literal},
        wrappers::{forward, request_start, take_since},
    },
};

/// The default capacity, in keys. The table takes less than 0.5 MB, plus 1.2 kB per hot key.
const CAPACITY: usize = 4_096;
const MAX_CAPACITY: usize = 65_536;
/// The interval at which unused leases are returned.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of times that a call waits for another call's lease.
const MAX_WAITS: u8 = 2;

/// Store that leases units of hot keys from its inner store.
///
/// One call to the inner store borrows units for many requests. A key with a thousand requests per
/// second causes about twenty calls per second.
///
/// The inner store charges units when they are borrowed, so the limit is never exceeded. Other
/// processes cannot use borrowed units.
///
/// The argument of [`leases`](crate::StoreExt::leases) is the maximum share of each limit that one
/// process may hold, in percent. With 5 %, one process holds at most 50 of 1000 units. All
/// processes together should hold at most a quarter, for example five processes with 5 % each.
///
/// - **Hot keys only.** A lease has units for the calls of the last 200 ms, up to the share of this
///   process. Requests call the inner store if their key had fewer than four calls in that time, or
///   if the share is less than two calls. While one call borrows units, later calls with the same
///   keys wait, for at most two round trips.
/// - **One budget.** If the inner store has a [`Timeout`](crate::store::Timeout), all waits and
///   calls of a request share its budget. Set the budget to at least three round trips. Without a
///   timeout, a request may wait for three calls.
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
///   [`block`](crate::StoreExt::block) or new quotas end the leases of the key.
/// - **Changes by other processes** take effect when the lease is used up, and after
///   [`max_age`](Leased::max_age) at the latest.
/// - **Several charges** of one call are borrowed together, or not at all. A lease serves only
///   calls with the same keys. All leases with a common key together hold at most the share of that
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
/// - a [report-only](Charge::with_report_only) charge.
///
/// Apply the leases **outside** a [deny cache](crate::StoreExt::deny_cache), and inside the wrapper
/// that handles failures: `store.timeout(d).breaker().deny_cache().leases(5).fallback(local)`.
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
/// let (limiter, quota) = (Limiter::new(store.clone()), Quota::per_hour(10_000));
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for _ in 0..1_000 {
///     assert!(limiter.take("hot", &quota, 1).await?.is_allowed());
/// }
/// assert_eq!(limiter.take("hot", &quota, 1).await?.source(), Source::Leased);
/// assert!(store.admitted() > 980);
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
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
///     .fallback(LocalStore::with_capacity(100_000))
///     .instances(20);
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
/// | two processes, together at 1.5 times the limit | 73 | 3.2 |
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
/// - While a process holds units of a limit, other processes may refund more than a quarter of that
///   limit. The process may then admit up to the refunded number of units too early.
pub struct Leased<S: Store>(Arc<Leases<S>>);

/// The state that all clones share.
struct Leases<S: Store> {
    inner: Arc<S>,
    settings: LeaseConfig,
    table: LeaseTable,
    /// `true` if the inner store does not report the data that leases need.
    disabled: AtomicBool,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, Debug)]
struct LeaseConfig {
    percent: u32,
    capacity: usize,
    /// The longest time for which units are held, in nanoseconds.
    max_age: u64,
}

impl LeaseConfig {
    /// Returns the maximum number of calls of a lease, or 0 if no units can be borrowed.
    fn max_lease(&self, charges: &[Charge<'_>]) -> u32 {
        let plain = |charge: &Charge<'_>| {
            charge.headroom() == 0
                && charge.max_wait().is_zero()
                && charge.quota_index().is_none()
                && !charge.is_report_only()
        };
        let of_charge = |charge: &Charge<'_>| {
            let quotas = charge.quotas().iter().filter(|_| plain(charge));
            let share = |quota: &crate::quota::Quota| {
                let units = u64::from(quota.burst()) * u64::from(self.percent) / 100;
                let calls = units.checked_div(charge.cost().into()).unwrap_or(0);
                if balance::is_borrowable(quota) {
                    u32::try_from(calls).unwrap_or(u32::MAX)
                } else {
                    0
                }
            };
            quotas.map(share).min().unwrap_or(0)
        };
        charges.iter().map(of_charge).min().unwrap_or(0)
    }
}

impl<S: Store> Leased<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, percent: u32) -> Self {
        literal(Self::try_new(inner, percent))
    }

    /// Fallible form of [`StoreExt::leases`](crate::StoreExt::leases), for a number that is read
    /// from configuration.
    ///
    /// # Errors
    ///
    /// Fails if `percent` is not 1 to 25. The error contains the field, its value and the fix.
    pub fn try_new(inner: S, percent: u32) -> Result<Self, SettingError> {
        if !(1..=25).contains(&percent) {
            const FIX: &str =
                "give 1 to 25 percent, such as 5; one process may hold that share of a limit";
            return Err(SettingError::new("leases: percent", percent, FIX));
        }
        let settings = LeaseConfig { percent, capacity: CAPACITY, max_age: setting::MAX_AGE };
        Ok(Self::with(Arc::new(inner), settings))
    }

    /// Sets the longest time for which borrowed units are held. Defaults to 1 s.
    ///
    /// Changes by other processes take effect after at most this time.
    ///
    /// # Panics
    ///
    /// Panics if the time is zero or more than a minute.
    #[track_caller]
    #[must_use]
    pub fn max_age(self, time: Duration) -> Self {
        literal(self.try_max_age(time))
    }

    /// Fallible form of [`max_age`](Leased::max_age), for a time that is read from configuration.
    ///
    /// # Errors
    ///
    /// Fails if [`max_age`](Leased::max_age) would panic.
    pub fn try_max_age(self, time: Duration) -> Result<Self, SettingError> {
        let max_age = setting::max_age("leases: max_age", time)?;
        Ok(Self::with(self.0.inner.clone(), LeaseConfig { max_age, ..self.0.settings }))
    }

    /// Sets the maximum number of tracked keys, rounded up to a multiple of eight. Defaults to
    /// 4 096.
    ///
    /// The keys of recent requests are tracked. Requests with other keys call the inner store.
    ///
    /// A tracked key takes 70 bytes, and about 1.2 kB more while the key has a lease. A
    /// [`reset`](crate::StoreExt::reset), a [`block`](crate::StoreExt::block) or a refund by
    /// [`adjust`](crate::StoreExt::adjust) scans all tracked keys.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0 or more than 65 536.
    #[track_caller]
    #[must_use]
    pub fn capacity(self, keys: usize) -> Self {
        literal(self.try_capacity(keys))
    }

    /// Fallible form of [`capacity`](Leased::capacity), for a number that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if [`capacity`](Leased::capacity) would panic.
    pub fn try_capacity(self, keys: usize) -> Result<Self, SettingError> {
        const FIXES: [&str; 2] = [
            "give room for at least 1, or remove the leases",
            "give at most 65536, the number of keys that are hot at the same time",
        ];
        let capacity = setting::capacity("leases: capacity", keys, MAX_CAPACITY, FIXES)?;
        Ok(Self::with(self.0.inner.clone(), LeaseConfig { capacity, ..self.0.settings }))
    }

    /// Returns the number of calls that were admitted without calling the store.
    ///
    /// With the feature `metrics`, the histogram `ratelimit.decision.duration` counts these calls
    /// with the label `store` = `leased`.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.0.table.admitted()
    }

    fn with(inner: Arc<S>, settings: LeaseConfig) -> Self {
        let table = LeaseTable::new(settings.capacity, settings.percent);
        let (disabled, sweeper) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Leases { inner, settings, table, disabled, sweeper }))
    }
}

impl<S: Store> Leases<S> {
    /// Returns the units of ended leases to the store.
    fn return_all(&self, ended: &EndedLeases) {
        self.return_except(ended, None);
    }

    /// Returns the units of ended leases to the store, except units of the account `removed`.
    fn return_except(&self, ended: &EndedLeases, removed: Option<u64>) {
        let now = if ended.is_empty() { 0 } else { self.table.now() };
        ended.iter().for_each(|lease| lease.return_units(&*self.inner, now, removed));
    }

    fn disable(&self) {
        self.disabled.store(true, Relaxed);
    }
}

impl<S> Leases<S>
where
    S: Store + Send + Sync + 'static,
{
    /// Decides with a lease, or calls the store.
    ///
    /// `start` is the start of the request, by default now. `waits` is the number of earlier waits.
    fn take(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        start: Option<Instant>,
        waits: u8,
    ) -> Answer<LeasedFuture<S>> {
        let now = Instant::now();
        let start = start.unwrap_or(now);
        let bypass = || LeasedFuture::inner(take_since(&*self.inner, start, charges));
        let max_lease =
            if self.disabled.load(Relaxed) { 0 } else { self.settings.max_lease(charges) };
        let Some(call) = (max_lease > 1).then(|| self.table.call_key(charges)).flatten() else {
            return bypass();
        };
        let limits = (max_lease, self.settings.max_age);
        let (lookup, ended) = self.table.lookup(&call, charges, [start, now], limits);
        self.return_all(&ended);
        match lookup {
            Lookup::Admitted(decision) => Answer::Now(Ok(decision)),
            Lookup::Wait(mut end) if waits < MAX_WAITS => {
                let (leases, charges) = (self.clone(), OwnedCharges::from(charges));
                LeasedFuture::boxed(Answer::Later(async move {
                    // Only the end of the operation changes the channel.
                    let _ = end.changed().await;
                    let again = |it: &[Charge<'_>]| leases.take(it, Some(start), waits + 1);
                    let later = match charges.with(again) {
                        Answer::Now(decision) => return decision,
                        Answer::Later(later) => later,
                    };
                    later.await
                }))
            }
            Lookup::Wait(_) | Lookup::Bypass => bypass(),
            Lookup::Borrow(request) => {
                LeasedFuture::boxed(Borrow::new(self, call, request, start).borrow(charges))
            }
        }
    }

    /// Starts the task that returns unused units while leases exist.
    fn start_sweeper(self: &Arc<Self>) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = sweeper.as_ref().is_some_and(|sweeper| !sweeper.is_finished());
        if let (false, Ok(runtime)) = (runs, Handle::try_current()) {
            let leases = Arc::downgrade(self);
            *sweeper = Some(runtime.spawn(async move {
                let mut ticks = interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    if leases.upgrade().is_none_or(|leases| leases.sweep()) {
                        return;
                    }
                }
            }));
        }
    }

    /// Returns unused units to the store. Returns `true` if no lease is left.
    fn sweep(&self) -> bool {
        self.return_all(&self.table.sweep(self.settings.max_age));
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        let done = !self.table.holds_any();
        if done {
            *sweeper = None;
        }
        done
    }
}

impl<S: Store> Drop for Leases<S> {
    fn drop(&mut self) {
        self.return_all(&self.table.end_all());
    }
}

impl<S> Store for Leased<S>
where
    S: Store + Send + Sync + 'static,
{
    type Error = S::Error;
    type Future = LeasedFuture<S>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let Leases { inner, table, .. } = &*self.0;
        let account = match op {
            Op::Take(charges) => return self.0.take(charges, request_start(op), 0),
            Op::Peek(_) | Op::Adjust(_, 0..) | Op::Unblock(_) => {
                return LeasedFuture::inner(inner.call(op));
            }
            Op::Reset(charge) => {
                let account = table.tag(charge);
                // The account is removed, so its units are not returned.
                self.0.return_except(&table.end_account(account), Some(account));
                account
            }
            // Units that are leased during a refund could be used twice.
            Op::Adjust(charge, _) | Op::Block(charge, _) => {
                let account = table.tag(charge);
                self.0.return_all(&table.end_account(account));
                account
            }
        };
        let end_on_drop = EndOnDrop { leases: self.0.clone(), account };
        match inner.call(op) {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(later) => LeasedFuture::boxed(Answer::Later(async move {
                let decision = later.await;
                drop(end_on_drop);
                decision
            })),
        }
    }

    /// Undoes a charge in the store, even if a lease admitted the call.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.inner.undo(charges, taken, units);
    }

    forward!(self => self.0.inner; supports, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        Health::wrapping("leased", self.0.inner.health(), Health::status_of)
    }
}

impl<S: Store> Clone for Leased<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store + fmt::Debug> fmt::Debug for Leased<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("inner", &self.0.inner)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
