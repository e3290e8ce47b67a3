//! Borrows units for hot keys, and admits by them without asking.

mod borrow;
mod future;
mod hand;
mod lease;
mod pace;
mod share;
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
    borrow::Ticket,
    future::Ending,
    table::{Met, Over, Table},
};
use super::setting::{self, SettingError, literal};
use crate::{
    decision::Decision,
    store::{Answer, BoxFuture, Charge, Condition, OwnedCharges, Store, Unsupported},
};

/// Keys watched unless set: under half a megabyte, and a kilobyte for each that is hot.
const CAPACITY: usize = 4_096;
const LARGEST: usize = 65_536;
/// How often it is looked for what lies unused, while there is anything.
const SWEEP: Duration = Duration::from_millis(100);
/// A call waits for what others borrow so many times, and then asks for itself.
const WAITS: u8 = 2;

/// A store that borrows units for a hot key from the inner one, a few dozen in one question, and admits
/// by them in this process: a key that is asked for a thousand times a second costs the server some
/// twenty questions.
///
/// What is borrowed is charged at once. So the limit is never exceeded; the price is on the other side:
/// what one process holds and does not use is missing in the others meanwhile. How much that may be of
/// each limit is the argument, in percent: with 5 %, a process holds at most 50 units of 1000. All
/// processes together should hold a quarter or less, as five of them do with 5 %.
///
/// - **Only where it pays.** A key is hot after four asks at most 50 ms apart; until then, and wherever
///   the share is less than two calls, the inner store is asked as ever. The first lease is of four
///   calls. One that is used up within 200 ms is followed by one of twice the size, and one of which
///   half was not wanted by one of half the size. While one is on its way, others who ask for the same
///   wait for it, for two trips at most.
/// - **Never more than the store**, in any stretch of time. A unit that flows back to the account must
///   not be used as well, so what is in hand fades as it would have flowed back, on the safe side of what
///   the clocks and the way to the server leave open. In windows it ends with the window.
/// - **The last units** are had too: where the store has less than a lease takes, it is asked for what
///   is left. Only under GCRA, for a second after that, and once nothing is left, who would have to
///   wait no longer than 100 ms for a lease is refused until then, and told so: at the limit a trip is
///   for many units and not for each that comes back.
/// - **Given back.** What lies unused for 200 ms, or is held for longer than
///   [`at_most`](Leased::at_most) 1 s, is given back, and so is everything when the last clone is
///   dropped, as far as the inner store does that without waiting. A process that is killed loses what
///   it held until it flows back by itself.
/// - **What is changed here** is known at once: a [`reset`](Store::reset), a [`block`](Store::block) and
///   other quotas end what is held of the key. **What is changed elsewhere** is seen once what is in
///   hand is used up, and after [`at_most`](Leased::at_most) at the latest.
/// - **Several charges** in one call are borrowed together, all or nothing, for calls that name the same
///   keys. Of a key that many of them have in common no more is held than the share.
///
/// A decision by borrowed units has [`Source::Leased`](crate::Source::Leased) as its
/// [source](Decision::source). Its numbers are those of when the units were borrowed, and what is left
/// of these: others may have charged the account since. A look (cost 0) asks the store, for which all that is borrowed is charged.
///
/// | | in hand |
/// |---|---|
/// | [`Gcra`](crate::Algorithm::Gcra) | fades as units flow back |
/// | [`FixedWindow`](crate::Algorithm::FixedWindow), [`AnchoredWindow`](crate::Algorithm::AnchoredWindow) | until the window ends |
/// | `FixedWindow` that paces or carries over, [`TokenBucket`](crate::Algorithm::TokenBucket), [`SlidingWindow`](crate::Algorithm::SlidingWindow), [`SlidingLog`](crate::Algorithm::SlidingLog) | never: asked as ever |
/// | a quota with [`soft`](crate::Quota::soft) or [`initial`](crate::Quota::initial); a charge with [`headroom`](Charge::headroom) or [`max_wait`](Charge::max_wait), of [`only`](Charge::only) one quota, or that [only reports](Charge::report_only) | never: asked as ever |
///
/// Put it **outside** the deny cache, which answers those who are refused, and inside what decides
/// while the store fails: `store.deadline(d).breaker().deny_cache().leased(5).fallback(local)`. What is in
/// hand serves on while the server is down, and is no sign of life.
///
/// It does **not** help against a flood of fresh keys, each of which is asked for. It does not notice
/// that a machine slept: what was in hand then is in hand still. Refunds go to the store, a trip
/// each, by [`undo`](Store::undo) as by [`settle`](Store::settle). Where a whole limit comes back within seconds, what faded unused in hand
/// stays charged for so long: of one burst, a quarter or somewhat more may be missed. And if processes
/// give back more than a quarter of a limit while others hold units of it, those may let so many pass too
/// early.
///
/// A clone shares what is in hand; a setting begins anew, so set first. Later answers need a tokio
/// runtime with its timer enabled.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota, Source, Store};
///
/// let shared = LocalStore::new(); // in real life a remote one
/// let store = shared.leased(5);
/// let (limiter, quota) = (Limiter::new(store.clone()), Quota::per_hour(10_000));
///
/// # tokio_test::block_on(async {
/// for _ in 0..1_000 {
///     assert!(limiter.take("hot", &quota, 1).await?.is_allowed());
/// }
/// assert_eq!(limiter.take("hot", &quota, 1).await?.source(), Source::Leased);
/// assert!(store.admitted() > 980);
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
/// ```
///
/// Before a server that twenty processes share:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Store, store::Deadline};
///
/// let shared = LocalStore::new(); // in real life a remote one
/// let store = shared
///     .deadline(Deadline::DEFAULT)
///     .breaker()
///     .deny_cache()
///     .leased(1)
///     .at_most(Duration::from_millis(500))
///     .capacity(1_000)
///     .fallback(LocalStore::with_capacity(100_000))
///     .one_of(20);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_minute(60_000), store);
/// ```
pub struct Leased<S: Store>(Arc<Leases<S>>);

/// What all clones share.
struct Leases<S: Store> {
    inner: Arc<S>,
    settings: Settings,
    table: Table,
    /// Whether the inner store tells too little for anything to be held.
    passes: AtomicBool,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    percent: u32,
    capacity: usize,
    at_most: Duration,
}

impl Settings {
    /// In nanoseconds.
    fn at_most(&self) -> u64 {
        u64::try_from(self.at_most.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many such calls may be borrowed; 0 where they cannot be.
    fn most(&self, charges: &[Charge<'_>]) -> u32 {
        let plain = |charge: &Charge<'_>| {
            charge.reserve() == 0
                && charge.patience().is_zero()
                && charge.place().is_none()
                && !charge.is_report_only()
        };
        let most = |charge: &Charge<'_>| {
            let quotas = charge.quotas().iter().filter(|_| plain(charge));
            let share = |quota: &crate::quota::Quota| {
                let units = u64::from(quota.limit()) * u64::from(self.percent) / 100;
                let calls = units.checked_div(charge.units().into()).unwrap_or(0);
                if hand::lends(quota) { u32::try_from(calls).unwrap_or(u32::MAX) } else { 0 }
            };
            quotas.map(share).min().unwrap_or(0)
        };
        charges.iter().map(most).min().unwrap_or(0)
    }
}

impl<S: Store> Leased<S> {
    #[track_caller]
    pub(crate) fn new(inner: S, percent: u32) -> Self {
        literal(Self::try_new(inner, percent))
    }

    /// [`Store::leased`] for a share from outside.
    ///
    /// # Errors
    ///
    /// When `percent` is not 1 to 25; the error names the field, its value and the fix.
    pub fn try_new(inner: S, percent: u32) -> Result<Self, SettingError> {
        if !(1..=25).contains(&percent) {
            const FIX: &str = "give 1 to 25 percent, as 5: so much of a limit may lie unused here";
            return Err(SettingError::new("leased: percent", percent, FIX));
        }
        let at_most = Duration::from_secs(1);
        Ok(Self::with(Arc::new(inner), Settings { percent, capacity: CAPACITY, at_most }))
    }

    /// How long units are held at most before the store is asked again: the delay with which this
    /// process sees what another one changed. 1 s unless set.
    ///
    /// # Panics
    ///
    /// When it is zero or more than a minute.
    #[track_caller]
    #[must_use]
    pub fn at_most(self, time: Duration) -> Self {
        literal(self.try_at_most(time))
    }

    /// [`at_most`](Leased::at_most) for a time from outside.
    ///
    /// # Errors
    ///
    /// Where [`at_most`](Leased::at_most) panics.
    pub fn try_at_most(self, time: Duration) -> Result<Self, SettingError> {
        let at_most = setting::at_most("leased: at most", time)?;
        Ok(Self::with(self.0.inner.clone(), Settings { at_most, ..self.0.settings }))
    }

    /// How many keys are watched at most, hot ones and those asked for lately, rounded up to whole
    /// sets of eight; 4 096 unless set. The keys beyond it are asked for as ever. A set takes 48 bytes
    /// from the start, a key 104 once it was asked for, and a kilobyte more while something is held
    /// for it. A [`reset`](Store::reset) or [`block`](Store::block) looks through all of them.
    ///
    /// # Panics
    ///
    /// When it is 0 or more than 65 536.
    #[track_caller]
    #[must_use]
    pub fn capacity(self, keys: usize) -> Self {
        literal(self.try_capacity(keys))
    }

    /// [`capacity`](Leased::capacity) for a number from outside.
    ///
    /// # Errors
    ///
    /// Where [`capacity`](Leased::capacity) panics.
    pub fn try_capacity(self, keys: usize) -> Result<Self, SettingError> {
        const FIELD: &str = "leased: capacity";
        if keys == 0 {
            const FIX: &str = "give room for at least 1, or leave the leases out";
            return Err(SettingError::new(FIELD, keys, FIX));
        }
        if keys > LARGEST {
            const FIX: &str = "give at most 65536, as many as are hot at a time";
            return Err(SettingError::new(FIELD, keys, FIX));
        }
        Ok(Self::with(self.0.inner.clone(), Settings { capacity: keys, ..self.0.settings }))
    }

    /// Calls admitted so far for which the store was not asked.
    ///
    /// With the feature `metrics` they are also the samples of `ratelimit.decision.duration` whose
    /// `store` is `leased`.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.0.table.admitted()
    }

    fn with(inner: Arc<S>, settings: Settings) -> Self {
        let table = Table::new(settings.capacity, settings.percent);
        let (passes, sweeper) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Leases { inner, settings, table, passes, sweeper }))
    }
}

impl<S: Store> Leases<S> {
    /// Gives back what is left of leases that are over.
    fn give_back(&self, over: &Over) {
        self.give_back_but(over, None);
    }

    /// Gives back what is left of leases that are over, but for an account that is gone.
    fn give_back_but(&self, over: &Over, gone: Option<u64>) {
        let now = if over.is_empty() { 0 } else { self.table.now() };
        over.iter().for_each(|lease| lease.give_back(&*self.inner, now, gone));
    }

    fn pass_all(&self) {
        self.passes.store(true, Relaxed);
    }
}

impl<S> Leases<S>
where
    S: Store + Send + Sync + 'static,
{
    /// Decides by what is in hand, or asks; `waits` times it has waited for others.
    fn take(self: &Arc<Self>, charges: &[Charge<'_>], waits: u8) -> Answer<LeasedFuture<S>> {
        let most = if self.passes.load(Relaxed) { 0 } else { self.settings.most(charges) };
        let Some(caller) = (most > 1).then(|| self.table.caller(charges)).flatten() else {
            return LeasedFuture::pass(self.inner.take(charges));
        };
        let (met, over) = self.table.ask(&caller, charges, (most, self.settings.at_most()));
        self.give_back(&over);
        match met {
            Met::Admitted(decision) => Answer::Now(Ok(decision)),
            Met::Wait(flight) if waits < WAITS => {
                let (leases, charges) = (self.clone(), OwnedCharges::from(charges));
                Answer::Later(LeasedFuture::wait(leases, caller, flight, charges, waits + 1))
            }
            Met::Wait(_) | Met::Pass => LeasedFuture::pass(self.inner.take(charges)),
            Met::Borrow(loan) => {
                LeasedFuture::borrow(Ticket::new(self, caller, loan).borrow(charges))
            }
        }
    }

    /// Looks after what is in hand, while there is anything: nobody may ask again.
    fn watch(self: &Arc<Self>) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = sweeper.as_ref().is_some_and(|sweeper| !sweeper.is_finished());
        if let (false, Ok(runtime)) = (runs, Handle::try_current()) {
            let leases = Arc::downgrade(self);
            *sweeper = Some(runtime.spawn(async move {
                let mut ticks = interval_at(Instant::now() + SWEEP, SWEEP);
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

    /// Gives back what lies unused. Whether nothing is in hand any more, and the task is to end.
    fn sweep(&self) -> bool {
        self.give_back(&self.table.sweep(self.settings.at_most()));
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
        self.give_back(&self.table.end_all());
    }
}

impl<S> Store for Leased<S>
where
    S: Store + Send + Sync + 'static,
{
    type Error = S::Error;
    type Future = LeasedFuture<S>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.0.take(charges, 0)
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        LeasedFuture::pass(self.0.inner.settle(charge, units))
    }

    /// What is in hand goes with the account.
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        let account = self.0.table.tag(charge);
        self.0.give_back_but(&self.0.table.end(account), Some(account));
        let ending = Ending::new(self.0.clone(), account);
        LeasedFuture::change(self.0.inner.reset(charge), ending)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        let account = self.0.table.tag(charge);
        self.0.give_back(&self.0.table.end(account));
        let ending = Ending::new(self.0.clone(), account);
        LeasedFuture::change(self.0.inner.block(charge, time), ending)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        LeasedFuture::pass(self.0.inner.unblock(charge))
    }

    /// A call that was admitted by what is in hand is undone in the store too: its decision is the
    /// receipt of its part of what was borrowed.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.inner.undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.inner.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        Condition::wrapping("leased", self.0.inner.health(), Condition::same)
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
