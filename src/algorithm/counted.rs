//! The algorithms that count units: all algorithms except GCRA.
//!
//! Each algorithm implements [`Counter`].

use super::{
    Demand, Evaluation, Fit, Receipt, fixed_window::FixedWindow, sliding_log::SlidingLog,
    sliding_window::SlidingWindow, token_bucket::TokenBucket,
};
use crate::{
    decision::{NEVER, Snapshot},
    quota::{Algorithm, Quota},
};

/// The account of a counting algorithm.
#[derive(Clone, Debug)]
pub(crate) enum CountedState {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// Counts the units of an account. Times are in nanoseconds.
pub(super) trait Counter {
    /// Returns the whole units that are available now.
    fn remaining(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until the account is full again.
    fn reset_ns(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until `need` units are available, or [`NEVER`].
    ///
    /// The limit is raised by `soft` units.
    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64;

    /// Returns the time until more units are available, or 0 if the account is full.
    fn next_ns(&self, quota: &Quota, now: u64) -> u64 {
        let left = self.remaining(quota, now);
        if left < quota.burst().into() { self.wait(quota, now, left + 1, 0) } else { 0 }
    }

    /// Returns the limit of the time in the queue. A charge that must wait this long or longer is
    /// denied.
    fn queue_limit(&self, _quota: &Quota, _now: u64) -> u64 {
        0
    }

    /// Returns the number of units that can be charged before the debt reaches `max_debt`.
    fn late_room(&self, quota: &Quota, now: u64) -> u64;

    fn charge(&mut self, quota: &Quota, now: u64, units: u64);

    /// Refunds up to `units` units, newest charges first.
    fn refund(&mut self, quota: &Quota, now: u64, units: u64);

    /// Undoes a charge. Units that were refilled since the charge are not added twice.
    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt);

    /// Returns the instant from which the account can be dropped.
    fn expires_at(&self, quota: &Quota) -> u64;
}

/// Returns the result of [`take`] without charging the account.
pub(super) fn look(
    account: Option<&CountedState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    let look = |state: &CountedState| {
        let fit = state.fit(quota, now, demand);
        fit.with(state.snapshot(quota, now, fit.retry_ns))
    };
    match account.filter(|state| state.is_live(quota, now)) {
        Some(state) => look(state),
        None => look(&CountedState::new(quota, now)),
    }
}

/// Returns the evaluation of a decision that Redis made.
///
/// `account` is the state after the decision. `charged` is `true` if Redis charged the account.
#[cfg(feature = "redis")]
pub(super) fn reconstruct(
    account: Option<&CountedState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
    charged: bool,
) -> Evaluation {
    let Some(state) = account.filter(|state| charged && state.is_live(quota, now)) else {
        return look(account, quota, now, demand);
    };
    let over = state.counter().wait(quota, now, demand.headroom.into(), 0);
    let fit = if quota.soft() > 0 { Fit::at_once(over > 0) } else { Fit::queued(over) };
    fit.with(state.snapshot(quota, now, 0))
}

/// Charges the account if enough units are available.
pub(super) fn take(
    account: &mut Option<CountedState>,
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

/// Creates the account of a quota with `initial` units when another quota denied the request.
///
/// Does nothing if the quota has no `initial` units, or if the account exists.
pub(super) fn open(account: &mut Option<CountedState>, quota: &Quota, now: u64, demand: Demand) {
    let possible = demand.need() <= u64::from(quota.burst()) + u64::from(quota.soft());
    drop_expired(account, quota, now);
    if quota.initial().is_some() && demand.cost > 0 && possible {
        get_or_open(account, quota, now);
    }
}

/// Charges `units`, or refunds units if `units` is negative.
///
/// The charge stops when the debt reaches `max_debt`.
pub(super) fn adjust(
    account: &mut Option<CountedState>,
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

/// Returns `true` if [`adjust`] would charge fewer than `units` units because of `max_debt`.
pub(super) fn caps_late_charge(
    account: Option<&CountedState>,
    quota: &Quota,
    now: u64,
    units: u64,
) -> bool {
    let room = |state: &CountedState| state.counter().late_room(quota, now);
    let room = match account.filter(|state| state.is_live(quota, now)) {
        Some(state) => room(state),
        None => room(&CountedState::new(quota, now)),
    };
    units > room
}

/// Undoes a charge. Units that were refilled since the charge are not added twice.
pub(super) fn undo(state: &mut CountedState, quota: &Quota, now: u64, receipt: Receipt) {
    if state.is_live(quota, now) {
        state.counter_mut().undo(quota, now, receipt);
    }
}

/// Refunds up to `units` units, newest charges first.
#[cfg(feature = "redis")]
pub(super) fn refund(state: &mut CountedState, quota: &Quota, now: u64, units: u64) {
    state.counter_mut().refund(quota, now, units);
}

fn get_or_open<'a>(
    account: &'a mut Option<CountedState>,
    quota: &Quota,
    now: u64,
) -> &'a mut CountedState {
    account.get_or_insert_with(|| CountedState::new(quota, now))
}

fn drop_expired(account: &mut Option<CountedState>, quota: &Quota, now: u64) {
    account.take_if(|state| !state.is_live(quota, now));
}

impl CountedState {
    fn new(quota: &Quota, now: u64) -> Self {
        match quota.algorithm() {
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::new(quota, now)),
            Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
                Self::FixedWindow(FixedWindow::new(quota, now))
            }
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            // GCRA and slots have their own modules.
            Algorithm::Gcra | Algorithm::Concurrent => unreachable!("neither counts units"),
        }
    }

    /// Returns the instant from which the account can be dropped.
    ///
    /// Returns 0 if the quota now uses another algorithm.
    pub(super) fn expires_at(&self, quota: &Quota) -> u64 {
        if self.matches(quota) { self.counter().expires_at(quota) } else { 0 }
    }

    fn is_live(&self, quota: &Quota, now: u64) -> bool {
        self.expires_at(quota) > now
    }

    /// Returns `true` if the account belongs to the algorithm of the quota.
    fn matches(&self, quota: &Quota) -> bool {
        match self {
            Self::TokenBucket(_) => quota.algorithm() == Algorithm::TokenBucket,
            Self::FixedWindow(_) => matches!(
                quota.algorithm(),
                Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow
            ),
            Self::SlidingWindow(_) => {
                matches!(quota.algorithm(), Algorithm::SlidingWindow { .. })
            }
            Self::SlidingLog(_) => quota.algorithm() == Algorithm::SlidingLog,
        }
    }

    /// Returns a small copy of the account, whose size does not grow with the number of charges.
    ///
    /// The copy never has more units left than the account.
    pub(super) fn condensed(&self) -> Self {
        match self {
            Self::SlidingLog(log) => Self::SlidingLog(log.condensed()),
            other => other.clone(),
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
        let raised = match u64::from(quota.soft()) {
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
            limit: quota.burst(),
            remaining: u32::try_from(counter.remaining(quota, now)).unwrap_or(u32::MAX),
            reset_ns: counter.reset_ns(quota, now),
            next_ns: counter.next_ns(quota, now),
            retry_ns,
        }
    }
}
