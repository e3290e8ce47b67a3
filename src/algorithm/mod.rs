//! The arithmetic of the algorithms, as functions without side effects.
//!
//! An unused account is `None`. `now` is the time of the store's clock, in nanoseconds since the
//! Unix epoch.

pub(crate) mod concurrent;
mod counted;
mod entries;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
mod receipt;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

pub(crate) use self::receipt::Receipt;
use self::{counted::CountedState, gcra::Gcra};
#[cfg(feature = "redis")]
use self::{
    entries::Entries, fixed_window::FixedWindow, sliding_log::SlidingLog,
    sliding_window::SlidingWindow, token_bucket::TokenBucket,
};
use crate::{
    decision::{NEVER, Snapshot},
    quota::Quota,
};

/// The units that a request wants, and the time that it may queue for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Units to charge. A cost of 0 is always allowed.
    pub(crate) cost: u32,
    /// Units that must be left over after the charge.
    pub(crate) headroom: u32,
    /// The longest queueing time in nanoseconds, at most ten years.
    pub(crate) max_wait: u64,
}

impl Demand {
    #[inline]
    pub(crate) fn units(cost: u32) -> Self {
        Self { cost, headroom: 0, max_wait: 0 }
    }

    /// Returns the units that must be available: cost plus headroom. A cost of 0 needs none.
    #[inline]
    pub(crate) fn need(self) -> u64 {
        if self.cost == 0 { 0 } else { u64::from(self.cost) + u64::from(self.headroom) }
    }
}

/// The result of a [`Demand`], with the state of the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) allowed: bool,
    /// `true` if the request was allowed beyond the limit of a soft quota.
    pub(crate) overage: bool,
    /// The time in the queue, in nanoseconds.
    pub(crate) wait: u64,
    pub(crate) snapshot: Snapshot,
}

impl Evaluation {
    /// Creates the result of a demand that was allowed without waiting.
    pub(crate) const fn allowed(snapshot: Snapshot) -> Self {
        Self { allowed: true, overage: false, wait: 0, snapshot }
    }

    /// Returns the nanoseconds until the demand would be allowed, or [`NEVER`].
    #[inline]
    pub(crate) fn retry_ns(&self) -> u64 {
        match self.snapshot {
            Snapshot::Refilling { retry_ns, .. }
            | Snapshot::Known { retry_ns, .. }
            | Snapshot::Slots { retry_ns, .. }
            | Snapshot::Unknown { retry_ns } => retry_ns,
        }
    }

    /// Returns `true` if the demand was denied and waiting does not help.
    pub(crate) fn is_never(&self) -> bool {
        self.retry_ns() == NEVER
    }
}

/// The result of a [`Demand`], without the state of the account.
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

/// The state of an account.
#[derive(Clone, Debug)]
pub(crate) enum AccountState {
    /// The theoretical arrival time of GCRA.
    Gcra(u64),
    Counted(CountedState),
}

/// Constructors for accounts that are read from Redis.
#[cfg(feature = "redis")]
impl AccountState {
    pub(crate) fn token_bucket(tokens: i64, anchor: u64, opened: u64) -> Self {
        Self::Counted(CountedState::TokenBucket(TokenBucket { tokens, anchor, opened }))
    }

    pub(crate) fn fixed_window(start: u64, count: u64, bonus: u64) -> Self {
        Self::Counted(CountedState::FixedWindow(FixedWindow { start, count, bonus }))
    }

    pub(crate) fn sliding_window(entries: Vec<(u64, u64)>) -> Self {
        Self::Counted(CountedState::SlidingWindow(SlidingWindow(Entries::from_pairs(entries))))
    }

    pub(crate) fn sliding_log(entries: Vec<(u64, u64)>) -> Self {
        Self::Counted(CountedState::SlidingLog(SlidingLog(Entries::from_pairs(entries))))
    }
}

impl AccountState {
    /// Returns the instant from which the account can be dropped.
    ///
    /// Returns 0 if the quota now uses another algorithm.
    #[inline]
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        match (Gcra::counting(quota), self) {
            (Some(gcra), Self::Gcra(tat)) => gcra.expires_at(*tat),
            (None, Self::Counted(state)) => state.expires_at(quota),
            _ => 0,
        }
    }

    /// Returns a small copy of the account, whose size does not grow with the number of charges.
    ///
    /// The copy never has more units left than the account.
    pub(crate) fn condensed(&self) -> Self {
        match self {
            Self::Gcra(tat) => Self::Gcra(*tat),
            Self::Counted(state) => Self::Counted(state.condensed()),
        }
    }

    fn counted(&self) -> Option<&CountedState> {
        match self {
            Self::Gcra(_) => None,
            Self::Counted(state) => Some(state),
        }
    }
}

/// Returns the theoretical arrival time of a GCRA account.
#[inline]
fn tat(account: Option<&AccountState>) -> u64 {
    match account {
        Some(AccountState::Gcra(tat)) => *tat,
        _ => gcra::NO_ACCOUNT,
    }
}

/// Changes a GCRA account, unless `change` returns `None`.
#[inline]
fn change_gcra<T>(
    account: &mut Option<AccountState>,
    change: impl FnOnce(u64) -> (Option<u64>, T),
) -> T {
    let (new, result) = change(tat(account.as_ref()));
    if let Some(new) = new {
        *account = Some(AccountState::Gcra(new));
    }
    result
}

/// Changes the account of a counting algorithm.
fn change_counted<T>(
    account: &mut Option<AccountState>,
    change: impl FnOnce(&mut Option<CountedState>) -> T,
) -> T {
    let mut state = match account.take() {
        Some(AccountState::Counted(state)) => Some(state),
        _ => None,
    };
    let result = change(&mut state);
    *account = state.map(AccountState::Counted);
    result
}

/// Returns the result of [`take`] without charging the account.
#[inline]
pub(crate) fn look(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    match Gcra::counting(quota) {
        Some(gcra) => gcra.look(tat(account), now, demand),
        None => counted::look(account.and_then(AccountState::counted), quota, now, demand),
    }
}

/// Returns the evaluation of a decision that Redis made.
///
/// `account` is the state after the decision. `charged` is `true` if Redis charged the account.
#[cfg(feature = "redis")]
pub(crate) fn reconstruct(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
    charged: bool,
) -> Evaluation {
    match Gcra::counting(quota) {
        Some(gcra) => gcra.reconstruct(tat(account), now, demand, charged),
        None => {
            let state = account.and_then(AccountState::counted);
            counted::reconstruct(state, quota, now, demand, charged)
        }
    }
}

/// Returns the account without the last of several charges that were made at `now`.
#[cfg(feature = "redis")]
pub(crate) fn before(account: &AccountState, quota: &Quota, now: u64, units: u64) -> AccountState {
    let mut before = account.clone();
    match &mut before {
        AccountState::Gcra(tat) => {
            *tat = tat.saturating_sub(quota.interval_nanos().saturating_mul(units));
        }
        AccountState::Counted(state) => counted::refund(state, quota, now, units),
    }
    before
}

/// Charges the account if enough units are available.
#[inline]
pub(crate) fn take(
    account: &mut Option<AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    match Gcra::counting(quota) {
        Some(gcra) => change_gcra(account, |tat| gcra.take(tat, now, demand)),
        None => change_counted(account, |state| counted::take(state, quota, now, demand)),
    }
}

/// Creates the account of a quota with `initial` units when another quota denied the request.
///
/// Does nothing if the quota has no `initial` units, or if the account exists.
pub(crate) fn open(account: &mut Option<AccountState>, quota: &Quota, now: u64, demand: Demand) {
    match Gcra::counting(quota) {
        Some(gcra) => change_gcra(account, |tat| (gcra.open(tat, now, demand), ())),
        None => change_counted(account, |state| counted::open(state, quota, now, demand)),
    }
}

/// Charges `units`, or refunds units if `units` is negative.
///
/// The charge stops when the debt reaches `max_debt`.
pub(crate) fn adjust(
    account: &mut Option<AccountState>,
    quota: &Quota,
    now: u64,
    units: i64,
) -> Snapshot {
    match Gcra::counting(quota) {
        Some(gcra) => change_gcra(account, |tat| gcra.adjust(tat, now, units)),
        None => change_counted(account, |state| counted::adjust(state, quota, now, units)),
    }
}

/// Returns `true` if [`adjust`] would charge fewer than `units` units because of `max_debt`.
pub(crate) fn caps_late_charge(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    units: u64,
) -> bool {
    match Gcra::counting(quota) {
        Some(gcra) => gcra.caps_late_charge(tat(account), now, units),
        None => {
            let state = account.and_then(AccountState::counted);
            counted::caps_late_charge(state, quota, now, units)
        }
    }
}

/// Undoes a charge. Units that were refilled since the charge are not added twice.
///
/// The quota may be older than the account. An account that is expired by this quota stays as it
/// is.
pub(crate) fn undo(account: &mut AccountState, quota: &Quota, now: u64, receipt: Receipt) {
    match (Gcra::counting(quota), account) {
        (Some(gcra), AccountState::Gcra(tat)) => {
            *tat = gcra.undo(*tat, now, receipt).unwrap_or(*tat);
        }
        (None, AccountState::Counted(state)) => counted::undo(state, quota, now, receipt),
        _ => {}
    }
}

#[cfg(test)]
mod edges;
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;

#[cfg(test)]
use crate::quota::Algorithm;
