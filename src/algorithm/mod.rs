//! Pure steps: what an account holds, the instant and the price give what it holds next.
//!
//! No clock, no I/O and no atomics here: `now` is an argument, in nanoseconds of Unix time as the
//! store's own clock counts it (it never steps back), and the store decides how a step is applied.
//!
//! The state of GCRA is one instant, so that a store can keep it in one word ([`gcra`]). The
//! others are a [`State`], and an account is an `Option<State>`: `None` is a cold one. They differ
//! in how they count, which is a [`Counter`]; what a decision is made of is the same for all and
//! stands here.

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
    decision::{NEVER, Numbers},
    quota::{Algorithm, Quota},
};

/// What one charge asks of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Units charged when it fits; 0 looks.
    pub(crate) cost: u32,
    /// Units that must be left over, never charged.
    pub(crate) headroom: u32,
    /// How long the caller is ready to queue, in nanoseconds; at most ten years.
    pub(crate) max_wait: u64,
}

impl Ask {
    #[inline]
    pub(crate) fn units(cost: u32) -> Self {
        Self { cost, headroom: 0, max_wait: 0 }
    }

    /// Units that must fit.
    #[inline]
    pub(crate) fn need(self) -> u64 {
        if self.cost == 0 { 0 } else { u64::from(self.cost) + u64::from(self.headroom) }
    }
}

/// What became of an [`Ask`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Whether it was charged (a look: always).
    pub(crate) allowed: bool,
    /// Whether it passed only because the quota is soft.
    pub(crate) overage: bool,
    /// How long an allowed caller has to wait, in nanoseconds.
    pub(crate) wait: u64,
    /// The account after the step.
    pub(crate) numbers: Numbers,
}

impl Step {
    /// What refused nothing, and left these numbers.
    pub(crate) fn passed(numbers: Numbers) -> Self {
        Self { allowed: true, overage: false, wait: 0, numbers }
    }

    /// Whether it was refused for good.
    pub(crate) fn is_never(&self) -> bool {
        match self.numbers {
            Numbers::Refilling { retry, .. }
            | Numbers::Known { retry, .. }
            | Numbers::Unknown { retry } => retry == NEVER,
        }
    }
}

/// What is to become of an [`Ask`].
struct Verdict {
    allowed: bool,
    overage: bool,
    wait: u64,
    retry: u64,
}

impl Verdict {
    fn step(self, state: &State, quota: &Quota, now: u64) -> Step {
        let Self { allowed, overage, wait, retry } = self;
        Step { allowed, overage, wait, numbers: state.numbers(quota, now, retry) }
    }
}

/// What an account of an algorithm other than GCRA holds.
#[derive(Clone, Debug)]
pub(crate) enum State {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// How an algorithm counts. All is said as of `now`, whenever the account was last changed.
trait Counter {
    /// Whole units that would pass now.
    fn remaining(&self, quota: &Quota, now: u64) -> u64;

    /// The time until the account is untouched again.
    fn full(&self, quota: &Quota, now: u64) -> u64;

    /// How long until `need` units pass when the capacity is raised by `soft`; [`NEVER`] where
    /// waiting does not help.
    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64;

    /// The time until more is [remaining](Counter::remaining); 0 when nothing is to come.
    fn next(&self, quota: &Quota, now: u64) -> u64 {
        let left = self.remaining(quota, now);
        if left < quota.limit().into() { self.wait(quota, now, left + 1, 0) } else { 0 }
    }

    /// A charge may queue for less than this.
    fn queue(&self, _quota: &Quota, _now: u64) -> u64 {
        0
    }

    /// Units a late charge may still take, until the limit and `max_debt` are charged.
    fn owable(&self, quota: &Quota, now: u64) -> u64;

    fn charge(&mut self, quota: &Quota, now: u64, units: u64);

    /// Takes charges back, the newest first; at most all.
    fn refund(&mut self, quota: &Quota, now: u64, units: u64);

    /// Takes back what still counts of a charge.
    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt);

    /// From when on the account is as if it had never been.
    fn forget_at(&self, quota: &Quota) -> u64;
}

/// Looks at an account: what [`take`] would say, with nothing charged and nothing opened.
pub(crate) fn look(account: Option<&State>, quota: &Quota, now: u64, ask: Ask) -> Step {
    let look = |state: &State| state.judge(quota, now, ask).step(state, quota, now);
    match account.filter(|state| state.lives(quota, now)) {
        Some(state) => look(state),
        None => look(&State::fresh(quota, now)),
    }
}

/// What a store that decided elsewhere is to say of `ask`, the account being as it is since.
#[cfg(feature = "redis")]
pub(crate) fn told(
    account: Option<&State>,
    quota: &Quota,
    now: u64,
    ask: Ask,
    charged: bool,
) -> Step {
    let Some(state) = account.filter(|state| charged && state.lives(quota, now)) else {
        return look(account, quota, now, ask);
    };
    let over = state.counter().wait(quota, now, ask.headroom.into(), 0);
    let (overage, wait) = if quota.soft_units() > 0 { (over > 0, 0) } else { (false, over) };
    Verdict { allowed: true, overage, wait, retry: 0 }.step(state, quota, now)
}

/// Charges an account, opening it if need be and ending it (`None`) where it is full.
pub(crate) fn take(account: &mut Option<State>, quota: &Quota, now: u64, ask: Ask) -> Step {
    if ask.cost == 0 {
        return look(account.as_ref(), quota, now, ask);
    }
    end(account, quota, now);
    let cold = account.is_none();
    let state = enter(account, quota, now);
    let verdict = state.judge(quota, now, ask);
    if verdict.allowed {
        state.counter_mut().charge(quota, now, ask.cost.into());
    }
    let never = verdict.retry == NEVER;
    let step = verdict.step(state, quota, now);
    if cold && never {
        *account = None;
    }
    end(account, quota, now);
    step
}

/// Opens a cold account that was refused, where it starts at `initial` units.
///
/// [`take`] does so itself; this is for an account that a decision over several refused because of
/// another.
pub(crate) fn open(account: &mut Option<State>, quota: &Quota, now: u64, ask: Ask) {
    let possible = ask.need() <= u64::from(quota.limit()) + u64::from(quota.soft_units());
    end(account, quota, now);
    if quota.initial_units().is_some() && ask.cost > 0 && possible {
        enter(account, quota, now);
    }
}

/// Gives `units` back (above 0) or charges them late (below 0).
///
/// A refund changes nothing where there is no account. A late charge never fails but stops where
/// the limit and `max_debt` are charged.
pub(crate) fn settle(account: &mut Option<State>, quota: &Quota, now: u64, units: i64) -> Numbers {
    end(account, quota, now);
    if units < 0 {
        let counter = enter(account, quota, now).counter_mut();
        let late = units.unsigned_abs().min(counter.owable(quota, now));
        counter.charge(quota, now, late);
    } else if let Some(state) = account {
        state.counter_mut().refund(quota, now, units.unsigned_abs());
    }
    end(account, quota, now);
    look(account.as_ref(), quota, now, Ask::units(0)).numbers
}

/// Returns whether a late charge of `units` is cut.
pub(crate) fn cuts(account: Option<&State>, quota: &Quota, now: u64, units: u64) -> bool {
    let owable = |state: &State| state.counter().owable(quota, now);
    let owable = match account.filter(|state| state.lives(quota, now)) {
        Some(state) => owable(state),
        None => owable(&State::fresh(quota, now)),
    };
    units > owable
}

/// Undoes a charge by its receipt. Others' charges stay, and so does what has flowed back since.
pub(crate) fn undo(account: &mut Option<State>, quota: &Quota, now: u64, receipt: Receipt) {
    end(account, quota, now);
    if let Some(state) = account {
        state.counter_mut().undo(quota, now, receipt);
    }
    end(account, quota, now);
}

/// The account, opened if there is none.
fn enter<'a>(account: &'a mut Option<State>, quota: &Quota, now: u64) -> &'a mut State {
    account.get_or_insert_with(|| State::fresh(quota, now))
}

/// Drops what is as if it had never been.
fn end(account: &mut Option<State>, quota: &Quota, now: u64) {
    account.take_if(|state| !state.lives(quota, now));
}

/// States that a store kept elsewhere.
#[cfg(feature = "redis")]
impl State {
    pub(crate) fn token_bucket(tokens: i64, anchor: u64, opened: u64) -> Self {
        Self::TokenBucket(TokenBucket::kept(tokens, anchor, opened))
    }

    pub(crate) fn fixed_window(start: u64, count: u64, bonus: u64) -> Self {
        Self::FixedWindow(FixedWindow::kept(start, count, bonus))
    }

    pub(crate) fn sliding_window(entries: Vec<(u64, u64)>) -> Self {
        Self::SlidingWindow(SlidingWindow::kept(entries))
    }

    pub(crate) fn sliding_log(entries: Vec<(u64, u64)>) -> Self {
        Self::SlidingLog(SlidingLog::kept(entries))
    }
}

impl State {
    /// From when on the account may be forgotten: it is then as if it had never been.
    pub(crate) fn forget_at(&self, quota: &Quota) -> u64 {
        if self.suits(quota) { self.counter().forget_at(quota) } else { 0 }
    }

    /// An account at its first contact.
    fn fresh(quota: &Quota, now: u64) -> Self {
        match quota.counted_by() {
            Algorithm::Gcra => unreachable!("an account of GCRA is one word: see `gcra`"),
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::fresh(quota, now)),
            Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
                Self::FixedWindow(FixedWindow::fresh(quota, now))
            }
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow(SlidingWindow::default()),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
        }
    }

    fn lives(&self, quota: &Quota, now: u64) -> bool {
        self.forget_at(quota) > now
    }

    /// Whether the quota's algorithm keeps such a state: it may have been changed since.
    fn suits(&self, quota: &Quota) -> bool {
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

    fn judge(&self, quota: &Quota, now: u64, ask: Ask) -> Verdict {
        let say = |allowed, overage, wait, retry| Verdict { allowed, overage, wait, retry };
        let (counter, need) = (self.counter(), ask.need());
        let plain = if need > 0 { counter.wait(quota, now, need, 0) } else { 0 };
        let raised = match u64::from(quota.soft_units()) {
            soft if soft > 0 && plain > 0 => counter.wait(quota, now, need, soft),
            _ => plain,
        };
        match raised {
            0 => say(true, plain > 0, 0, 0),
            wait if wait <= ask.max_wait && wait < counter.queue(quota, now) => {
                say(true, false, wait, 0)
            }
            retry => say(false, false, 0, retry),
        }
    }

    fn numbers(&self, quota: &Quota, now: u64, retry: u64) -> Numbers {
        let counter = self.counter();
        Numbers::Known {
            limit: quota.limit(),
            remaining: u32::try_from(counter.remaining(quota, now)).unwrap_or(u32::MAX),
            full: counter.full(quota, now),
            next: counter.next(quota, now),
            retry,
        }
    }
}
