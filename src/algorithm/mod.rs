//! The arithmetic of the algorithms, as functions without side effects.
//!
//! An unused account is `None`. `now` is the time of the store's clock, in nanoseconds since the
//! Unix epoch.
//!
//! **How they fit together.** A store finds the state of an account, or none, and asks with a [`Demand`].
//! [`take`] answers with an [`Evaluation`] and charges. All rounding is against the client: waits are
//! rounded up, units down. GCRA has functions of its own, since its state is one instant ([`gcra`]), and so
//! have slots, which no clock changes ([`concurrent`]). All others are a [`Counter`]: a state that says how
//! many units remain, how long a need waits, and how it is charged. All that they have in common,
//! such as a soft limit, a queue or a cut of a late charge, is written once, in this file.
//!
//! **What every algorithm keeps.** A cost of 0 is allowed and changes nothing. A demand that was denied
//! changes nothing, except that an account with `initial` units is opened. A refund gives at most what is
//! missing, and an undo at most what has not come back by itself. No argument overflows: times are at most
//! ten years, and units below 2^32.

pub(crate) mod concurrent;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
mod sliding;
mod token_bucket;

pub(crate) use self::{fixed_window::FixedWindow, sliding::Sliding, token_bucket::TokenBucket};
use crate::{
    decision::{Decision, NEVER, Outcome, Snapshot},
    quota::{Algorithm, Quota},
};

/// The units that a request wants, and the time that it may queue for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        Self {
            cost,
            headroom: 0,
            max_wait: 0,
        }
    }

    /// Returns the demand of a caller that does not queue.
    #[inline]
    pub(crate) fn without_queueing(self) -> Self {
        Self {
            max_wait: 0,
            ..self
        }
    }

    /// Returns the units that must be available: cost plus headroom. A cost of 0 needs none.
    #[inline]
    pub(crate) fn need(self) -> u64 {
        if self.cost == 0 {
            0
        } else {
            u64::from(self.cost) + u64::from(self.headroom)
        }
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

/// Creates results whose account is not yet known. [`with`](Evaluation::with) adds its state.
impl Evaluation {
    #[inline]
    pub(crate) const fn at_once(overage: bool) -> Self {
        Self {
            allowed: true,
            overage,
            wait: 0,
            snapshot: Snapshot::Unknown { retry_ns: 0 },
        }
    }

    #[inline]
    fn queued(wait: u64) -> Self {
        Self {
            wait,
            ..Self::at_once(false)
        }
    }

    #[inline]
    pub(crate) fn denied(retry_ns: u64) -> Self {
        Self {
            allowed: false,
            snapshot: Snapshot::Unknown { retry_ns },
            ..Self::at_once(false)
        }
    }

    /// Creates the result of a charge whose units are available after the time `over`, which is 0 if they
    /// were available at once.
    #[inline]
    fn charged(quota: &Quota, over: u64) -> Self {
        // A quota with soft units does not queue.
        if quota.soft() > 0 {
            Self::at_once(over > 0)
        } else {
            Self::queued(over)
        }
    }

    /// Adds the state of the account. `snapshot` is given the wait of a denial, which the state also has.
    #[inline]
    fn with(self, snapshot: impl FnOnce(u64) -> Snapshot) -> Self {
        Self {
            snapshot: snapshot(self.snapshot.retry_ns()),
            ..self
        }
    }
}

/// The result of a late charge or a refund.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjusted {
    /// The account afterwards.
    pub(crate) snapshot: Snapshot,
    /// `true` if a late charge stopped because the debt reached `max_debt`.
    pub(crate) is_cut: bool,
}

/// The receipt of a charge to one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The instant of the charge. An account that was created after this instant ignores the
    /// receipt. Stores charge no earlier than the last change of the account, since a charge may join
    /// a later one, which an earlier instant would not find.
    pub(crate) charged: u64,
    /// The instant of the decision.
    pub(crate) at: u64,
    /// For GCRA, the theoretical arrival time after the charge. For other algorithms, the instant
    /// from which one more unit can be charged: that of the decision if a unit was left.
    pub(crate) end: u64,
    /// Units charged.
    pub(crate) cost: u32,
    /// The maximum number of units to undo.
    pub(crate) units: u32,
    /// `true` if the charge must wait in the queue.
    ///
    /// Only the newest of the charges in the queue can be undone. Otherwise, two of them would get the same
    /// position.
    pub(crate) queued: bool,
}

impl Receipt {
    /// Creates the receipt of a charge. An undo refunds at most `units` units, by default the whole
    /// cost.
    ///
    /// Returns `None` if the decision does not report the units left.
    pub(crate) fn new(
        taken: &Decision,
        outcome: &Outcome,
        demand: Demand,
        units: Option<u32>,
    ) -> Option<Self> {
        let skew = outcome.skew();
        let at = taken.at.saturating_add_signed(skew);
        let until_end = Self::until_end(outcome, demand)?;
        Some(Self {
            charged: taken.charged_at.saturating_add_signed(skew),
            at,
            end: at.saturating_add(until_end),
            cost: demand.cost,
            units: units.map_or(demand.cost, |units| units.min(demand.cost)),
            queued: taken.wait > 0 && Self::may_queue(outcome, demand),
        })
    }

    /// Returns the time from the decision to [`end`](Receipt::end), or `None` if the decision does not
    /// report the units left.
    fn until_end(outcome: &Outcome, demand: Demand) -> Option<u64> {
        match *outcome.snapshot() {
            Snapshot::Refilling { reset_ns, .. } => Some(reset_ns),
            // With headroom, units may remain although the charge queued. Its position is then
            // unknown.
            Snapshot::Known { remaining: 1.., .. } if demand.headroom > 0 => Some(NEVER),
            Snapshot::Known { remaining: 1.., .. } => Some(0),
            Snapshot::Known { .. } => Some(outcome.remaining_and_next().1),
            Snapshot::Slots { .. } | Snapshot::Unknown { .. } => None,
        }
    }

    /// Returns `true` if this account can be one that makes the decision wait. Called only for decisions
    /// with a wait. Another of their accounts may have had its units at once.
    fn may_queue(outcome: &Outcome, demand: Demand) -> bool {
        match *outcome.snapshot() {
            Snapshot::Refilling {
                reset_ns,
                interval,
                limit,
                ..
            } => {
                let headroom = u64::from(demand.headroom).saturating_mul(interval);
                let full = u64::from(limit).saturating_mul(interval);
                reset_ns.saturating_add(headroom) > full
            }
            Snapshot::Known { remaining: 1.., .. } => demand.headroom > 0,
            Snapshot::Known { .. } => true,
            Snapshot::Slots { .. } | Snapshot::Unknown { .. } => false,
        }
    }
}

/// The state of an account.
#[derive(Clone, Debug)]
pub(crate) enum AccountState {
    /// The theoretical arrival time of GCRA.
    Gcra(u64),
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(Sliding),
    SlidingLog(Sliding),
    /// The number of held slots, which only Redis keeps here.
    #[cfg(feature = "redis")]
    Slots(u64),
}

/// Counts the units of an account, for all algorithms except GCRA and slots. Times are in nanoseconds.
trait Counter {
    /// Returns the whole units that are available now.
    fn remaining(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until the account is full again.
    fn reset_ns(&self, quota: &Quota, now: u64) -> u64;

    /// Returns the time until `need` units are available, or [`NEVER`]. With a `need` of 0, this is the
    /// time until an account in debt, or with a queue, owes nothing.
    ///
    /// The limit is raised by `soft` units.
    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64;

    /// Returns the time until more units are available, or 0 if the account is full.
    fn next_ns(&self, quota: &Quota, now: u64) -> u64 {
        let left = self.remaining(quota, now);
        if left < quota.limit().into() {
            self.wait(quota, now, left + 1, 0)
        } else {
            0
        }
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

    /// Returns the result of a demand, without the state of the account.
    fn fit(&self, quota: &Quota, now: u64, demand: Demand) -> Evaluation {
        let need = demand.need();
        let plain = if need > 0 {
            self.wait(quota, now, need, 0)
        } else {
            0
        };
        let raised = match u64::from(quota.soft()) {
            soft if soft > 0 && plain > 0 => self.wait(quota, now, need, soft),
            _ => plain,
        };
        match raised {
            0 => Evaluation::at_once(plain > 0),
            wait if wait <= demand.max_wait && wait < self.queue_limit(quota, now) => {
                Evaluation::queued(wait)
            }
            retry_ns => Evaluation::denied(retry_ns),
        }
    }

    fn look(&self, quota: &Quota, now: u64, demand: Demand) -> Evaluation {
        self.fit(quota, now, demand)
            .with(|retry_ns| self.snapshot(quota, now, retry_ns))
    }

    fn snapshot(&self, quota: &Quota, now: u64, retry_ns: u64) -> Snapshot {
        Snapshot::Known {
            limit: quota.limit(),
            remaining: u32::try_from(self.remaining(quota, now)).unwrap_or(u32::MAX),
            reset_ns: self.reset_ns(quota, now),
            next_ns: self.next_ns(quota, now),
            retry_ns,
        }
    }
}

impl AccountState {
    /// Creates the account of an algorithm that counts units.
    fn new(quota: &Quota, now: u64) -> Self {
        match quota.algorithm() {
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::new(quota, now)),
            Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
                Self::FixedWindow(FixedWindow::new(quota, now))
            }
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow(Sliding::default()),
            Algorithm::SlidingLog => Self::SlidingLog(Sliding::default()),
            // GCRA and slots have their own modules.
            Algorithm::Gcra | Algorithm::Concurrent => unreachable!("neither counts units"),
        }
    }

    /// Returns the counter, or `None` for GCRA and slots, and if the quota now uses another algorithm.
    fn counter(&self, quota: &Quota) -> Option<&dyn Counter> {
        match (quota.algorithm(), self) {
            (Algorithm::TokenBucket, Self::TokenBucket(counter)) => Some(counter),
            (
                Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow,
                Self::FixedWindow(counter),
            ) => Some(counter),
            (Algorithm::SlidingWindow { .. }, Self::SlidingWindow(counter))
            | (Algorithm::SlidingLog, Self::SlidingLog(counter)) => Some(counter),
            (
                Algorithm::Gcra
                | Algorithm::TokenBucket
                | Algorithm::FixedWindow { .. }
                | Algorithm::AnchoredWindow
                | Algorithm::SlidingWindow { .. }
                | Algorithm::SlidingLog
                | Algorithm::Concurrent,
                _,
            ) => None,
        }
    }

    /// Returns the counter, unless the account is expired.
    fn live(&self, quota: &Quota, now: u64) -> Option<&dyn Counter> {
        self.counter(quota)
            .filter(|counter| counter.expires_at(quota) > now)
    }

    fn counter_mut(&mut self) -> &mut dyn Counter {
        match self {
            Self::TokenBucket(counter) => counter,
            Self::FixedWindow(counter) => counter,
            Self::SlidingWindow(counter) | Self::SlidingLog(counter) => counter,
            Self::Gcra(_) => unreachable!("GCRA counts no units"),
            #[cfg(feature = "redis")]
            Self::Slots(_) => unreachable!("Redis counts the slots"),
        }
    }

    /// Returns the instant from which the account can be dropped.
    ///
    /// Returns 0 if the quota now uses another algorithm.
    #[inline]
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        match self {
            Self::Gcra(tat) if quota.is_gcra() => gcra::expires_at(*tat, quota),
            _ => self
                .counter(quota)
                .map_or(0, |counter| counter.expires_at(quota)),
        }
    }

    /// Returns a small copy of the account, whose size does not grow with the number of charges.
    ///
    /// The copy never has more units left than the account.
    pub(crate) fn condensed(&self) -> Self {
        match self {
            Self::SlidingLog(log) => Self::SlidingLog(log.condensed()),
            other => other.clone(),
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

/// Returns the counter of the account, which is created if it does not exist.
fn get_or_open<'a>(
    account: &'a mut Option<AccountState>,
    quota: &Quota,
    now: u64,
) -> &'a mut dyn Counter {
    account
        .get_or_insert_with(|| AccountState::new(quota, now))
        .counter_mut()
}

/// Drops an account that is expired, or whose quota now uses another algorithm.
fn drop_expired(account: &mut Option<AccountState>, quota: &Quota, now: u64) {
    account.take_if(|state| state.live(quota, now).is_none());
}

/// Returns the result of [`take`] without charging the account.
#[inline]
pub(crate) fn look(
    account: Option<&AccountState>,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> Evaluation {
    if quota.is_gcra() {
        return gcra::look(tat(account), quota, now, demand);
    }
    match account.and_then(|state| state.live(quota, now)) {
        Some(counter) => counter.look(quota, now, demand),
        None => AccountState::new(quota, now)
            .counter_mut()
            .look(quota, now, demand),
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
    if quota.is_gcra() {
        return gcra::reconstruct(tat(account), quota, now, demand, charged);
    }
    if quota.is_concurrent() {
        let after = match account {
            Some(AccountState::Slots(held)) => *held,
            _ => 0,
        };
        return concurrent::reconstruct(after, quota, demand, charged);
    }
    let Some(counter) = account
        .and_then(|state| state.live(quota, now))
        .filter(|_| charged)
    else {
        return look(account, quota, now, demand);
    };
    let over = counter.wait(quota, now, demand.headroom.into(), 0);
    Evaluation::charged(quota, over).with(|_| counter.snapshot(quota, now, 0))
}

/// Returns the account without the last of several charges that were made at `now`.
#[cfg(feature = "redis")]
pub(crate) fn before(account: &AccountState, quota: &Quota, now: u64, units: u64) -> AccountState {
    let mut before = account.clone();
    match &mut before {
        AccountState::Gcra(tat) => {
            *tat = tat.saturating_sub(quota.interval_nanos().saturating_mul(units));
        }
        AccountState::Slots(held) => *held = held.saturating_sub(units),
        counted => counted.counter_mut().refund(quota, now, units),
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
    match quota.is_gcra() {
        true => change_gcra(account, |tat| gcra::take(tat, quota, now, demand)),
        false => take_counted(account, quota, now, demand),
    }
}

fn take_counted(
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
    let counter = get_or_open(account, quota, now);
    let fit = counter.fit(quota, now, demand);
    if fit.allowed {
        counter.charge(quota, now, demand.cost.into());
    }
    let evaluation = fit.with(|retry_ns| counter.snapshot(quota, now, retry_ns));
    if is_new && evaluation.snapshot.retry_ns() == NEVER {
        *account = None;
    }
    drop_expired(account, quota, now);
    evaluation
}

/// Charges units, also if they do not fit.
pub(crate) fn charge(account: &mut Option<AccountState>, quota: &Quota, now: u64, units: u32) {
    if quota.is_gcra() {
        return change_gcra(account, |tat| {
            (Some(gcra::charge(tat, quota, now, units)), ())
        });
    }
    drop_expired(account, quota, now);
    get_or_open(account, quota, now).charge(quota, now, units.into());
}

/// Creates the account of a quota with `initial` units when another quota denied the request.
///
/// Does nothing if the quota has no `initial` units, if the account exists, or if the demand has no cost or
/// can never fit.
pub(crate) fn open(account: &mut Option<AccountState>, quota: &Quota, now: u64, demand: Demand) {
    if quota.is_gcra() {
        return change_gcra(account, |tat| (gcra::open(tat, quota, now, demand), ()));
    }
    let is_possible = demand.need() <= quota.raised_limit();
    drop_expired(account, quota, now);
    if quota.initial().is_some() && demand.cost > 0 && is_possible {
        get_or_open(account, quota, now);
    }
}

/// Charges `units`, or refunds units if `units` is negative. Both create an account with `initial`
/// units first.
pub(crate) fn adjust(
    account: &mut Option<AccountState>,
    quota: &Quota,
    now: u64,
    units: i64,
) -> Adjusted {
    if quota.is_gcra() {
        return change_gcra(account, |tat| gcra::adjust(tat, quota, now, units));
    }
    drop_expired(account, quota, now);
    let late = units.unsigned_abs();
    let mut is_cut = false;
    if units > 0 {
        let counter = get_or_open(account, quota, now);
        let room = counter.late_room(quota, now);
        counter.charge(quota, now, late.min(room));
        is_cut = late > room;
    } else if account.is_some() || units < 0 && quota.initial().is_some() {
        get_or_open(account, quota, now).refund(quota, now, late);
    }
    drop_expired(account, quota, now);
    let looked = look(account.as_ref(), quota, now, Demand::units(0));
    Adjusted {
        snapshot: looked.snapshot,
        is_cut,
    }
}

/// Undoes a charge. Units that were refilled since the charge are not added twice.
///
/// The quota may be older than the account. An account that is expired by this quota stays as it
/// is.
pub(crate) fn undo(account: &mut AccountState, quota: &Quota, now: u64, receipt: Receipt) {
    match account {
        AccountState::Gcra(tat) if quota.is_gcra() => {
            *tat = gcra::undo(*tat, quota, now, receipt).unwrap_or(*tat);
        }
        state if state.live(quota, now).is_some() => {
            state.counter_mut().undo(quota, now, receipt);
        }
        _ => {}
    }
}

#[cfg(test)]
mod edges;
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
