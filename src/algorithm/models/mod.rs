//! Tests of each algorithm against a slow and simple model.
//!
//! Most models keep every charge. To compute a wait, a model searches for the first instant at which
//! the units are available.

mod bounds;
#[cfg(feature = "calendar")]
mod calendar;
mod hostile;
mod proofs;
mod properties;
mod refilling;
mod sequence;
mod windows;

use std::{fmt::Debug, time::Duration};

use proptest::{prelude::*, test_runner::TestCaseResult};

use self::sequence::{Jump, Op};
use super::{
    tests::{Account, Row},
    *,
};

const SECOND: u64 = 1_000_000_000;
/// The number of random sequences per test.
const SEQUENCES: u32 = if cfg!(debug_assertions) { 300 } else { 100_000 };

/// A charge that the test may undo later.
#[derive(Clone, Copy, Debug)]
struct Charge {
    at: u64,
    units: u64,
    /// The maximum number of units to undo.
    back: u64,
    /// GCRA: the nanoseconds from the charge until the account is full.
    work: u64,
    /// Paced windows: the instant of the next unit after this charge.
    next_at: u64,
    queued: bool,
    receipt: Receipt,
}

/// A slow model of an account.
trait Model: Clone + Debug {
    fn of(quota: &Quota) -> Self;
    /// Drops the account if it has expired.
    fn arrive(&mut self, now: u64);
    /// Creates the account if it does not exist.
    fn open(&mut self, now: u64);
    /// Returns `true` if `need` units are available at `t`. The limit is raised by `soft` units.
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool;
    fn is_full(&self, t: u64) -> bool;
    fn charge(&mut self, now: u64, units: u64);
    /// GCRA: returns the nanoseconds until the account is full.
    fn work_at(&self, _now: u64) -> u64 {
        0
    }
    /// Paced windows: returns the instant of the next unit, at most the end of the window.
    fn next_at(&self, _now: u64) -> u64 {
        0
    }
    /// Charges units until the debt reaches `max_debt`.
    fn charge_late(&mut self, now: u64, units: u64);
    fn refund(&mut self, now: u64, units: u64);
    fn undo(&mut self, now: u64, charge: Charge);
    /// Returns the instant before which a queued charge must start.
    fn queue_end(&self, _now: u64) -> u64 {
        0
    }
    /// Returns the first instant, `now` or later, at which `pred` is true.
    fn first(&self, now: u64, pred: impl Fn(u64) -> bool) -> u64 {
        let mut width = 1;
        while !pred(now + width) {
            width *= 2;
        }
        let mut no = now;
        let mut yes = now + width;
        if pred(no) {
            return no;
        }
        while yes - no > 1 {
            let middle = no + (yes - no) / 2;
            if pred(middle) {
                yes = middle;
            } else {
                no = middle;
            }
        }
        yes
    }
    /// Returns a copy of the account, created first if necessary.
    fn opened(&self, now: u64) -> Self {
        let mut opened = self.clone();
        opened.open(now);
        opened
    }
    fn remaining(&self, t: u64) -> u64 {
        (1..)
            .take_while(|units| self.fits(t, *units, 0))
            .last()
            .unwrap_or(0)
    }
    fn next(&self, now: u64, limit: u64) -> u64 {
        let left = self.remaining(now);
        if left == limit {
            0
        } else {
            self.first(now, |t| self.remaining(t) > left) - now
        }
    }
}

fn ceil(a: u128, b: u128) -> u64 {
    u64::try_from(a.div_ceil(b)).expect("fits")
}

/// A decision in comparable form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decided {
    allowed: bool,
    overage: bool,
    wait: u64,
    row: Row,
}

impl From<Evaluation> for Decided {
    fn from(evaluation: Evaluation) -> Self {
        let Evaluation {
            allowed,
            overage,
            wait,
            snapshot,
        } = evaluation;
        Self {
            allowed,
            overage,
            wait,
            row: snapshot.into(),
        }
    }
}

fn row<M: Model>(model: &M, quota: &Quota, now: u64, retry: u64) -> Row {
    Row {
        remaining: u32::try_from(model.remaining(now)).expect("fits"),
        full: model.first(now, |t| model.is_full(t)) - now,
        next: model.next(now, quota.limit().into()),
        retry,
    }
}

/// Returns the decision of the model, and charges the model if the demand is allowed.
fn decide<M: Model>(model: &mut M, quota: &Quota, now: u64, demand: Demand) -> Decided {
    let opened = model.opened(now);
    let decided = |allowed, overage, wait, row| Decided {
        allowed,
        overage,
        wait,
        row,
    };
    let need = demand.need();
    let soft = u64::from(quota.soft());
    if need == 0 {
        return decided(true, false, 0, row(&opened, quota, now, 0));
    }
    if !opened.fits(now, need, soft) && need > u64::from(quota.limit()) + soft {
        return decided(false, false, 0, row(&opened, quota, now, NEVER));
    }
    let overage = !opened.fits(now, need, 0) && opened.fits(now, need, soft);
    let wait = opened.first(now, |t| opened.fits(t, need, soft)) - now;
    if wait > 0 && (wait > demand.max_wait || now + wait >= opened.queue_end(now)) {
        if quota.initial().is_some() {
            model.open(now);
        }
        return decided(false, false, 0, row(&opened, quota, now, wait));
    }
    model.open(now);
    model.charge(now, demand.cost.into());
    decided(true, overage, wait, row(model, quota, now, 0))
}

/// Generates periods. Some are not divisible by the units of the quota.
fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        Just(86_400 * SECOND),
        Just(999_999_937),
        (12u64..100),
        (12u64..100_000_000_000),
    ]
}

fn soft() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0u32), 1 => 1u32..4, 1 => 4u32..30]
}

/// Generates a `max_debt`, or `None` for the default.
fn debt() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![2 => Just(None), 1 => (0u32..4).prop_map(Some), 1 => (4u32..40).prop_map(Some)]
}

fn with_debt(quota: Quota, debt: Option<u32>) -> Quota {
    debt.map_or(quota, |units| quota.with_max_debt(units))
}

fn quota(units: u32, period: u64) -> Quota {
    Quota::new(units, Duration::from_nanos(period)).expect("a quota")
}

/// Runs a sequence on the algorithm and on its model, and compares all results.
fn run<M: Model>(quota: Quota, start: u64, steps: Vec<(Jump, Op)>) -> TestCaseResult {
    let mut fast = Account::new();
    let mut slow = M::of(&quota);
    let mut charges: Vec<Charge> = Vec::new();
    let mut now = start;
    let mut last = Row {
        remaining: 0,
        full: 0,
        next: 0,
        retry: 0,
    };
    for (jump, op) in steps {
        now += jump.nanos(&quota, last);
        slow.arrive(now);
        match op {
            Op::Take {
                cost,
                headroom,
                max_wait,
            } => {
                let demand = Demand {
                    cost,
                    headroom,
                    max_wait,
                };
                let look = Decided::from(fast.look(&quota, now, demand));
                let (evaluation, receipt) = fast.take(&quota, now, demand);
                let decided = Decided::from(evaluation);
                let before = slow.clone();
                let expected = decide(&mut slow, &quota, now, demand);
                prop_assert_eq!(decided, expected, "{:?} at {} of {:?}", demand, now, before);
                let unchanged = if decided.allowed && cost > 0 {
                    charges.push(Charge {
                        at: now,
                        units: cost.into(),
                        back: cost.into(),
                        work: slow.work_at(now),
                        // With headroom, units may remain although the charge queued. Its position
                        // is then unknown.
                        next_at: match decided.row.remaining {
                            0 => slow.next_at(now),
                            _ => u64::MAX,
                        },
                        queued: decided.wait > 0,
                        receipt,
                    });
                    Decided {
                        row: look.row,
                        ..decided
                    }
                } else {
                    decided
                };
                prop_assert_eq!(look, unchanged);
                if !decided.allowed {
                    retry_holds(&fast, &quota, now, demand, decided.row.retry)?;
                }
                last = decided.row;
            }
            Op::Adjust(units) => {
                last = fast.adjust(&quota, now, units.saturating_neg()).into();
                if units < 0 {
                    slow.open(now);
                    slow.charge_late(now, units.unsigned_abs());
                } else {
                    if units > 0 && quota.initial().is_some() {
                        slow.open(now);
                    }
                    slow.refund(now, units.unsigned_abs());
                }
            }
            Op::Undo(nth, units) => {
                if let Some(at) = charges.len().checked_sub(nth + 1) {
                    let mut charge = charges.remove(at);
                    charge.receipt.units = charge.receipt.units.min(units);
                    charge.back = charge.back.min(units.into());
                    fast.undo(&quota, now, charge.receipt);
                    slow.undo(now, charge);
                }
                last = fast.look(&quota, now, Demand::units(0)).snapshot.into();
            }
        }
        slow.arrive(now);
        let expected = row(&slow.opened(now), &quota, now, last.retry);
        prop_assert_eq!(last, expected, "after {:?} at {} of {:?}", op, now, slow);
        snapshot_holds(fast.clone(), &quota, now, last)?;
    }
    Ok(())
}

/// Checks that the demand is allowed exactly after `retry`, and not a nanosecond earlier.
fn retry_holds(
    account: &Account,
    quota: &Quota,
    now: u64,
    demand: Demand,
    retry: u64,
) -> TestCaseResult {
    let passes = |t| {
        account
            .look(
                quota,
                t,
                Demand {
                    max_wait: 0,
                    ..demand
                },
            )
            .allowed
    };
    if retry == NEVER {
        return Ok(());
    }
    prop_assert!(
        retry > 0 && passes(now + retry),
        "after {:?}, {:?} is still denied",
        retry,
        demand
    );
    prop_assert!(
        !passes(now + retry - 1),
        "before {:?}, {:?} is already allowed",
        retry,
        demand
    );
    Ok(())
}

/// Checks the units left and the times in `row` by evaluating the account at later instants.
fn snapshot_holds(mut account: Account, quota: &Quota, now: u64, row: Row) -> TestCaseResult {
    // A new account is created at `now`.
    account.open(quota, now, Demand::units(1));
    let passes = |units| {
        let evaluation = account.look(quota, now, Demand::units(units));
        evaluation.allowed && !evaluation.overage
    };
    let remaining = |t| Row::from(account.look(quota, t, Demand::units(0)).snapshot).remaining;
    let more = row.remaining.checked_add(1);
    prop_assert!(
        passes(row.remaining) && !more.is_some_and(passes),
        "{:?}",
        row
    );
    if row.next > 0 && more.is_some() {
        prop_assert!(remaining(now + row.next) > row.remaining, "{:?}", row);
        prop_assert!(remaining(now + row.next - 1) <= row.remaining, "{:?}", row);
    }

    let full = |t| Row::from(account.look(quota, t, Demand::units(0)).snapshot).full == 0;
    prop_assert!(full(now + row.full), "{:?}", row);
    prop_assert!(row.full == 0 || !full(now + row.full - 1), "{:?}", row);

    let expired = account.expires_at(quota).max(now);
    let carries_over = matches!(
        quota.algorithm(),
        Algorithm::FixedWindow {
            carry_over: 1..,
            ..
        }
    );
    if quota.initial().is_none() && !carries_over {
        prop_assert_eq!(expired, now + row.full);
    }
    let beyond = quota.limit().saturating_add(1);
    let raised = quota.limit().saturating_add(quota.soft());
    for cost in [0, 1, quota.limit(), beyond, raised] {
        let look =
            |account: &Account| Decided::from(account.look(quota, expired, Demand::units(cost)));
        prop_assert_eq!(look(&account), look(&Account::new()));
    }
    Ok(())
}

fn sequences() -> ProptestConfig {
    ProptestConfig {
        cases: SEQUENCES,
        ..crate::keeping_regressions()
    }
}
