//! The arithmetic of the algorithms, as pure functions.
//!
//! A function takes the state of an account, an instant and a [`Demand`], and returns the new
//! state. It reads no clock, does no I/O and uses no atomics. `now` is an argument: nanoseconds of
//! Unix time by the clock of the store, which never goes back. The store decides how to apply the
//! result.
//!
//! An account of GCRA is one instant, which fits into one word ([`gcra`]). An account of another
//! algorithm is an `Option<AccountState>`, where `None` is a new account. Those algorithms differ
//! in how they count, which is the trait [`Counter`]. This module makes the decision, in the same
//! way for all of them.

#[cfg(test)]
mod edges;
mod entries;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
#[cfg(test)]
mod models;
mod receipt;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
#[cfg(test)]
mod tests;
pub(crate) mod token_bucket;

pub(crate) use self::receipt::Receipt;
use self::{
    fixed_window::FixedWindow, sliding_log::SlidingLog, sliding_window::SlidingWindow,
    token_bucket::TokenBucket,
};
use crate::{
    decision::{NEVER, Snapshot},
    quota::{Algorithm, Quota},
};

/// The units that one charge needs from an account, and the time that it may queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Units to charge. A cost of 0 changes nothing and is always allowed.
    pub(crate) cost: u32,
    /// Units that must remain after the charge. They are not charged.
    pub(crate) headroom: u32,
    /// The longest time that the caller queues, in nanoseconds; at most ten years.
    pub(crate) max_wait: u64,
}

impl Demand {
    #[inline]
    pub(crate) fn units(cost: u32) -> Self {
        Self { cost, headroom: 0, max_wait: 0 }
    }

    /// Returns the units that must be available.
    #[inline]
    pub(crate) fn need(self) -> u64 {
        if self.cost == 0 { 0 } else { u64::from(self.cost) + u64::from(self.headroom) }
    }
}

/// The result of a [`Demand`], with the account after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) allowed: bool,
    /// The demand was allowed only because the quota is soft.
    pub(crate) overage: bool,
    /// The time that an allowed caller must wait, in nanoseconds.
    pub(crate) wait: u64,
    pub(crate) snapshot: Snapshot,
}

impl Evaluation {
    /// Creates the result of an allowed demand that neither queued nor exceeded the quota.
    pub(crate) fn allowed(snapshot: Snapshot) -> Self {
        Self { allowed: true, overage: false, wait: 0, snapshot }
    }

    /// Returns `true` if the demand was denied and waiting does not help.
    pub(crate) fn is_never(&self) -> bool {
        match self.snapshot {
            Snapshot::Refilling { retry_ns, .. }
            | Snapshot::Known { retry_ns, .. }
            | Snapshot::Unknown { retry_ns } => retry_ns == NEVER,
        }
    }
}

/// The result of a [`Demand`] without the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    pub(crate) allowed: bool,
    overage: bool,
    wait: u64,
    retry_ns: u64,
}

impl Fit {
    #[inline]
    fn at_once(overage: bool) -> Self {
        Self { allowed: true, overage, wait: 0, retry_ns: 0 }
    }

    #[inline]
    fn queued(wait: u64) -> Self {
        Self { allowed: true, overage: false, wait, retry_ns: 0 }
    }

    #[inline]
    fn denied(retry_ns: u64) -> Self {
        Self { allowed: false, overage: false, wait: 0, retry_ns }
    }

    #[inline]
    fn with(self, snapshot: Snapshot) -> Evaluation {
        let Self { allowed, overage, wait, .. } = self;
        Evaluation { allowed, overage, wait, snapshot }
    }
}

/// The state of an account of an algorithm other than GCRA.
#[derive(Clone, Debug)]
pub(crate) enum AccountState {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// The counting of an algorithm. Results are as of `now`, even if the account was last changed
/// earlier. Times are in nanoseconds.
trait Counter {
    /// Returns the whole units that would be allowed now.
    fn remaining(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until the account is full again.
    fn reset_ns(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until `need` units are available, with a capacity that is larger by `soft`.
    /// [`NEVER`] if waiting does not help.
    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64;

    /// Returns the time until more units are [remaining](Counter::remaining), or 0 if no more units
    /// are to come.
    fn next_ns(&self, quota: &Quota, now: u64) -> u64 {
        let left = self.remaining(quota, now);
        if left < quota.limit().into() { self.wait(quota, now, left + 1, 0) } else { 0 }
    }

    /// Returns the exclusive upper bound of the time that a charge may queue.
    fn queue_limit(&self, _quota: &Quota, _now: u64) -> u64 {
        0
    }

    /// Returns the units that a late charge may still take, up to the limit plus `max_debt`.
    fn late_room(&self, quota: &Quota, now: u64) -> u64;

    fn charge(&mut self, quota: &Quota, now: u64, units: u64);

    /// Reverses the newest charges first, at most all of them.
    fn refund(&mut self, quota: &Quota, now: u64, units: u64);

    /// Reverses the part of a charge that still counts.
    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt);

    /// Returns the instant from which the account equals a new one.
    fn expires_at(&self, quota: &Quota) -> u64;
}

/// Returns the result that [`take`] would return, without changing the account.
pub(crate) fn look(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    let look = |state: &AccountState| {
        let fit = state.fit(quota, now, demand);
        fit.with(state.snapshot(quota, now, fit.retry_ns))
    };
    match account.filter(|state| state.is_live(quota, now)) {
        Some(state) => look(state),
        None => look(&AccountState::new(quota, now)),
    }
}

/// Reconstructs the result of a demand that another store decided, from the account after it.
#[cfg(feature = "redis")]
pub(crate) fn reconstruct(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
    charged: bool,
) -> Evaluation {
    let Some(state) = account.filter(|state| charged && state.is_live(quota, now)) else {
        return look(account, quota, now, demand);
    };
    let over = state.counter().wait(quota, now, demand.headroom.into(), 0);
    let fit = if quota.soft_units() > 0 { Fit::at_once(over > 0) } else { Fit::queued(over) };
    fit.with(state.snapshot(quota, now, 0))
}

/// Charges an account if the demand fits. Creates a missing account, and removes an account
/// (`None`) that equals a new one.
pub(crate) fn take(
    account: &mut Option<AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    if demand.cost == 0 {
        return look(account.as_ref(), quota, now, demand);
    }
    drop_expired(account, quota, now);
    let is_new = account.is_none();
    let state = get_or_open(account, quota, now);
    let fit = state.fit(quota, now, demand);
    if fit.allowed {
        state.counter_mut().charge(quota, now, demand.cost.into());
    }
    let evaluation = fit.with(state.snapshot(quota, now, fit.retry_ns));
    if is_new && fit.retry_ns == NEVER {
        *account = None;
    }
    drop_expired(account, quota, now);
    evaluation
}

/// Creates the account of a denied demand if the quota sets `initial` units.
///
/// [`take`] does so itself. A decision over several accounts denies without calling [`take`], and
/// then calls this function.
pub(crate) fn open(account: &mut Option<AccountState>, quota: &Quota, now: u64, demand: Demand) {
    let possible = demand.need() <= u64::from(quota.limit()) + u64::from(quota.soft_units());
    drop_expired(account, quota, now);
    if quota.initial_units().is_some() && demand.cost > 0 && possible {
        get_or_open(account, quota, now);
    }
}

/// Charges `units` late (above 0) or refunds them (below 0).
///
/// A refund does nothing if there is no account. A late charge never fails: it stops at the limit
/// plus `max_debt`.
pub(crate) fn adjust(
    account: &mut Option<AccountState>,
    quota: &Quota,
    now: u64,
    units: i64,
) -> Snapshot {
    drop_expired(account, quota, now);
    if units > 0 {
        let counter = get_or_open(account, quota, now).counter_mut();
        let late = units.unsigned_abs().min(counter.late_room(quota, now));
        counter.charge(quota, now, late);
    } else if let Some(state) = account {
        state.counter_mut().refund(quota, now, units.unsigned_abs());
    }
    drop_expired(account, quota, now);
    look(account.as_ref(), quota, now, Demand::units(0)).snapshot
}

/// Returns `true` if a late charge of `units` would be charged only in part.
pub(crate) fn caps_late_charge(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    units: u64,
) -> bool {
    let room = |state: &AccountState| state.counter().late_room(quota, now);
    let room = match account.filter(|state| state.is_live(quota, now)) {
        Some(state) => room(state),
        None => room(&AccountState::new(quota, now)),
    };
    units > room
}

/// Reverses a charge by its receipt. It does not reverse the charges of other callers, and does not
/// return units that have already come back.
pub(crate) fn undo(account: &mut Option<AccountState>, quota: &Quota, now: u64, receipt: Receipt) {
    drop_expired(account, quota, now);
    if let Some(state) = account {
        state.counter_mut().undo(quota, now, receipt);
    }
    drop_expired(account, quota, now);
}

fn get_or_open<'a>(
    account: &'a mut Option<AccountState>,
    quota: &Quota,
    now: u64,
) -> &'a mut AccountState {
    account.get_or_insert_with(|| AccountState::new(quota, now))
}

fn drop_expired(account: &mut Option<AccountState>, quota: &Quota, now: u64) {
    account.take_if(|state| !state.is_live(quota, now));
}

/// Constructors for the states that another store keeps.
#[cfg(feature = "redis")]
impl AccountState {
    pub(crate) fn token_bucket(tokens: i64, anchor: u64, opened: u64) -> Self {
        Self::TokenBucket(TokenBucket::from_parts(tokens, anchor, opened))
    }

    pub(crate) fn fixed_window(start: u64, count: u64, bonus: u64) -> Self {
        Self::FixedWindow(FixedWindow::from_parts(start, count, bonus))
    }

    pub(crate) fn sliding_window(entries: Vec<(u64, u64)>) -> Self {
        Self::SlidingWindow(SlidingWindow::from_entries(entries))
    }

    pub(crate) fn sliding_log(entries: Vec<(u64, u64)>) -> Self {
        Self::SlidingLog(SlidingLog::from_entries(entries))
    }
}

impl AccountState {
    /// Creates an account at its first charge.
    fn new(quota: &Quota, now: u64) -> Self {
        match quota.counted_by() {
            Algorithm::Gcra => unreachable!("an account of GCRA is one word: see `gcra`"),
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::new(quota, now)),
            Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
                Self::FixedWindow(FixedWindow::new(quota, now))
            }
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
        }
    }

    /// Returns the instant from which the account equals a new one, so that it can be dropped. 0 if
    /// the state belongs to another algorithm.
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        if self.matches(quota) { self.counter().expires_at(quota) } else { 0 }
    }

    fn is_live(&self, quota: &Quota, now: u64) -> bool {
        self.expires_at(quota) > now
    }

    /// Returns `true` if the quota's algorithm uses this kind of state. The algorithm may have
    /// changed since the last charge.
    fn matches(&self, quota: &Quota) -> bool {
        match self {
            Self::TokenBucket(_) => quota.counted_by() == Algorithm::TokenBucket,
            Self::FixedWindow(_) => matches!(
                quota.counted_by(),
                Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow
            ),
            Self::SlidingWindow(_) => {
                matches!(quota.counted_by(), Algorithm::SlidingWindow { .. })
            }
            Self::SlidingLog(_) => quota.counted_by() == Algorithm::SlidingLog,
        }
    }

    fn counter(&self) -> &dyn Counter {
        match self {
            Self::TokenBucket(counter) => counter,
            Self::FixedWindow(counter) => counter,
            Self::SlidingWindow(counter) => counter,
            Self::SlidingLog(counter) => counter,
        }
    }

    fn counter_mut(&mut self) -> &mut dyn Counter {
        match self {
            Self::TokenBucket(counter) => counter,
            Self::FixedWindow(counter) => counter,
            Self::SlidingWindow(counter) => counter,
            Self::SlidingLog(counter) => counter,
        }
    }

    fn fit(&self, quota: &Quota, now: u64, demand: Demand) -> Fit {
        let (counter, need) = (self.counter(), demand.need());
        let plain = if need > 0 { counter.wait(quota, now, need, 0) } else { 0 };
        let raised = match u64::from(quota.soft_units()) {
            soft if soft > 0 && plain > 0 => counter.wait(quota, now, need, soft),
            _ => plain,
        };
        match raised {
            0 => Fit::at_once(plain > 0),
            wait if wait <= demand.max_wait && wait < counter.queue_limit(quota, now) => {
                Fit::queued(wait)
            }
            retry_ns => Fit::denied(retry_ns),
        }
    }

    fn snapshot(&self, quota: &Quota, now: u64, retry_ns: u64) -> Snapshot {
        let counter = self.counter();
        Snapshot::Known {
            limit: quota.limit(),
            remaining: u32::try_from(counter.remaining(quota, now)).unwrap_or(u32::MAX),
            reset_ns: counter.reset_ns(quota, now),
            next_ns: counter.next_ns(quota, now),
            retry_ns,
        }
    }
}
