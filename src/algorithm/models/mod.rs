//! Every algorithm against a slow model of its own: what was ever charged, counted anew at each
//! question, and waits found by trying instants.

mod hostile;
mod refilling;
mod sequence;
mod windows;

use std::{fmt::Debug, time::Duration};

use proptest::{prelude::*, test_runner::TestCaseResult};

use self::{
    refilling::{SlowBucket, SlowGcra},
    sequence::{Jump, Op, start, steps},
    windows::{SlowAligned, SlowAnchored, SlowSliding},
};
use super::{
    tests::{Account, Row},
    *,
};

const SECOND: u64 = 1_000_000_000;
/// Sequences for each property: seven kinds of quota, and two for all.
const SEQUENCES: u32 = if cfg!(debug_assertions) { 300 } else { 100_000 };

/// A charge that may be undone.
#[derive(Clone, Copy, Debug)]
struct Charge {
    at: u64,
    units: u64,
    /// Units to give back.
    back: u64,
    /// Nanoseconds owed right after it, of GCRA.
    owed: u64,
    /// Units of its window right after it, of windows that pace.
    count: u64,
    queued: bool,
    receipt: Receipt,
}

/// The slow model of an account. What it says of an instant to come is what happens by itself.
trait Model: Clone + Debug {
    fn of(quota: &Quota) -> Self;
    /// Forgets what is over at `now`, once and for all.
    fn arrive(&mut self, now: u64);
    /// The first contact with a cold account.
    fn open(&mut self, now: u64);
    /// Whether `need` units pass at `t` when the capacity is raised by `soft`.
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool;
    fn untouched(&self, t: u64) -> bool;
    fn charge(&mut self, now: u64, units: u64);
    /// Nanoseconds owed, of GCRA.
    fn owed(&self, _now: u64) -> u64 {
        0
    }
    /// Units charged in the window of `now`, of windows that pace.
    fn count_at(&self, _now: u64) -> u64 {
        0
    }
    /// Stops where the capacity and `max_debt` are charged.
    fn late(&mut self, now: u64, units: u64);
    fn refund(&mut self, now: u64, units: u64);
    fn undo(&mut self, now: u64, charge: Charge);
    /// The end of what a caller may queue for.
    fn queue(&self, _now: u64) -> u64 {
        0
    }
    /// The first instant from `now` on at which `pred` holds, which then holds for good.
    fn first(&self, now: u64, pred: impl Fn(u64) -> bool) -> u64 {
        let mut width = 1;
        while !pred(now + width) {
            width *= 2;
        }
        let (mut no, mut yes) = (now, now + width);
        if pred(no) {
            return no;
        }
        while yes - no > 1 {
            let middle = no + (yes - no) / 2;
            if pred(middle) { yes = middle } else { no = middle }
        }
        yes
    }
    /// The account as it is seen at `now`: a cold one as if it were opened then.
    fn seen(&self, now: u64) -> Self {
        let mut seen = self.clone();
        seen.open(now);
        seen
    }
    fn remaining(&self, t: u64) -> u64 {
        (1..).take_while(|units| self.fits(t, *units, 0)).last().unwrap_or(0)
    }
    fn next(&self, now: u64, limit: u64) -> u64 {
        let left = self.remaining(now);
        if left == limit { 0 } else { self.first(now, |t| self.remaining(t) > left) - now }
    }
}

fn ceil(a: u128, b: u128) -> u64 {
    u64::try_from(a.div_ceil(b)).expect("fits")
}

/// What a decision says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    allowed: bool,
    overage: bool,
    wait: u64,
    row: Row,
}

impl From<Step> for Said {
    fn from(step: Step) -> Self {
        let Step { allowed, overage, wait, numbers } = step;
        Self { allowed, overage, wait, row: numbers.into() }
    }
}

fn row<M: Model>(seen: &M, quota: &Quota, now: u64, retry: u64) -> Row {
    Row {
        remaining: u32::try_from(seen.remaining(now)).expect("fits"),
        full: seen.first(now, |t| seen.untouched(t)) - now,
        next: seen.next(now, quota.limit().into()),
        retry,
    }
}

/// Decides by the rules of the specification.
fn decide<M: Model>(model: &mut M, quota: &Quota, now: u64, ask: Ask) -> Said {
    let seen = model.seen(now);
    let said = |allowed, overage, wait, row| Said { allowed, overage, wait, row };
    let (need, soft) = (ask.need(), u64::from(quota.soft_units()));
    if need == 0 {
        return said(true, false, 0, row(&seen, quota, now, 0));
    }
    if !seen.fits(now, need, soft) && need > u64::from(quota.limit()) + soft {
        return said(false, false, 0, row(&seen, quota, now, NEVER));
    }
    let overage = !seen.fits(now, need, 0) && seen.fits(now, need, soft);
    let wait = seen.first(now, |t| seen.fits(t, need, soft)) - now;
    if wait > 0 && (wait > ask.max_wait || now + wait >= seen.queue(now)) {
        if quota.initial_units().is_some() {
            model.open(now);
        }
        return said(false, false, 0, row(&seen, quota, now, wait));
    }
    model.open(now);
    model.charge(now, ask.cost.into());
    said(true, overage, wait, row(model, quota, now, 0))
}

/// Periods that units divide and that they do not, down to a nanosecond a unit.
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

/// The cap of late charges, of which most quotas have the default.
fn debt() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![2 => Just(None), 1 => (0u32..4).prop_map(Some), 1 => (4u32..40).prop_map(Some)]
}

fn with_debt(quota: Quota, debt: Option<u32>) -> Quota {
    debt.map_or(quota, |units| quota.max_debt(units))
}

fn quota(units: u32, period: u64) -> Quota {
    Quota::new(units, Duration::from_nanos(period)).expect("a quota")
}

/// Plays a sequence on both, and holds what is said against what then happens.
fn run<M: Model>(quota: Quota, start: u64, steps: Vec<(Jump, Op)>) -> TestCaseResult {
    let mut fast = Account::cold(&quota);
    let mut slow = M::of(&quota);
    let mut charges: Vec<Charge> = Vec::new();
    let (mut now, mut last) = (start, Row { remaining: 0, full: 0, next: 0, retry: 0 });
    for (jump, op) in steps {
        now += jump.nanos(&quota, last);
        slow.arrive(now);
        match op {
            Op::Take { cost, headroom, max_wait } => {
                let ask = Ask { cost, headroom, max_wait };
                let look = Said::from(fast.look(&quota, now, ask));
                let (step, receipt) = fast.take(&quota, now, ask);
                let said = Said::from(step);
                let before = slow.clone();
                let expected = decide(&mut slow, &quota, now, ask);
                prop_assert_eq!(said, expected, "{:?} at {} of {:?}", ask, now, before);
                let unchanged = if said.allowed && cost > 0 {
                    charges.push(Charge {
                        at: now,
                        units: cost.into(),
                        back: cost.into(),
                        owed: slow.owed(now),
                        // its place is not known where units are left over as headroom
                        count: match said.row.remaining {
                            0 => slow.count_at(now),
                            _ => u64::MAX,
                        },
                        queued: said.wait > 0,
                        receipt,
                    });
                    Said { row: look.row, ..said }
                } else {
                    said
                };
                prop_assert_eq!(look, unchanged);
                if !said.allowed {
                    retry_holds(&fast, &quota, now, ask, said.row.retry)?;
                }
                last = said.row;
            }
            Op::Settle(units) => {
                last = fast.settle(&quota, now, units).into();
                if units < 0 {
                    slow.open(now);
                    slow.late(now, units.unsigned_abs());
                } else {
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
                last = fast.look(&quota, now, Ask::units(0)).numbers.into();
            }
        }
        slow.arrive(now);
        let expected = row(&slow.seen(now), &quota, now, last.retry);
        prop_assert_eq!(last, expected, "after {:?} at {} of {:?}", op, now, slow);
        numbers_hold(fast.clone(), &quota, now, last)?;
    }
    Ok(())
}

/// Waiting exactly `retry` passes, a nanosecond less does not.
fn retry_holds(account: &Account, quota: &Quota, now: u64, ask: Ask, retry: u64) -> TestCaseResult {
    let passes = |t| account.look(quota, t, Ask { max_wait: 0, ..ask }).allowed;
    if retry == NEVER {
        return Ok(());
    }
    prop_assert!(retry > 0 && passes(now + retry), "{:?} is too early for {:?}", retry, ask);
    prop_assert!(!passes(now + retry - 1), "{:?} is too late for {:?}", retry, ask);
    Ok(())
}

/// What the numbers of an account promise.
fn numbers_hold(mut account: Account, quota: &Quota, now: u64, row: Row) -> TestCaseResult {
    // A cold account is shown as if it were opened now.
    account.open(quota, now, Ask::units(1));
    let passes = |units| {
        let step = account.look(quota, now, Ask::units(units));
        step.allowed && !step.overage
    };
    let remaining = |t| Row::from(account.look(quota, t, Ask::units(0)).numbers).remaining;
    prop_assert!(passes(row.remaining) && !passes(row.remaining + 1), "{:?}", row);
    if row.next > 0 {
        prop_assert!(remaining(now + row.next) > row.remaining, "{:?}", row);
        prop_assert!(remaining(now + row.next - 1) <= row.remaining, "{:?}", row);
    }

    let full = |t| Row::from(account.look(quota, t, Ask::units(0)).numbers).full == 0;
    prop_assert!(full(now + row.full), "{:?}", row);
    prop_assert!(row.full == 0 || !full(now + row.full - 1), "{:?}", row);

    let forgotten = account.forget_at(quota).max(now);
    let lends = matches!(quota.counted_by(), Algorithm::FixedWindow { carry_over: 1.., .. });
    if quota.initial_units().is_none() && !lends {
        prop_assert_eq!(forgotten, now + row.full);
    }
    for cost in [0, 1, quota.limit(), quota.limit() + 1, quota.limit() + quota.soft_units()] {
        let look = |account: &Account| Said::from(account.look(quota, forgotten, Ask::units(cost)));
        prop_assert_eq!(look(&account), look(&Account::cold(quota)));
    }
    Ok(())
}

fn sequences() -> ProptestConfig {
    ProptestConfig { cases: SEQUENCES, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(sequences())]

    #[test]
    fn gcra(
        units in 1u32..11, burst in 1u32..25, soft in soft(), period in periods(),
        start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).burst(burst).soft(soft);
        run::<SlowGcra>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn refilling_accounts_that_start_at_initial(
        bucket: bool, units in 1u32..11, burst in 1u32..25, initial in 0u32..25, soft in soft(),
        period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).burst(burst).initial(initial.min(burst)).soft(soft);
        let quota = with_debt(quota, debt);
        if bucket {
            run::<SlowBucket>(quota.algorithm(Algorithm::TokenBucket), start, steps)?;
        } else {
            run::<SlowGcra>(quota, start, steps)?;
        }
    }

    #[test]
    fn token_bucket(
        units in 1u32..11, burst in 1u32..25, soft in soft(), period in periods(),
        start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = with_debt(quota(units, period).burst(burst).soft(soft), debt);
        run::<SlowBucket>(quota.algorithm(Algorithm::TokenBucket), start, steps)?;
    }

    #[test]
    fn fixed_window(
        units in 1u32..13, carry_over in prop_oneof![2 => Just(0u32), 3 => 1u32..15], paced: bool,
        soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).algorithm(Algorithm::FixedWindow { carry_over, paced });
        let quota = if paced { quota } else { quota.soft(soft) };
        run::<SlowAligned>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn anchored_window(
        units in 1u32..13, soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).algorithm(Algorithm::AnchoredWindow).soft(soft);
        run::<SlowAnchored>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn sliding_window(
        units in 1u32..13, buckets in prop_oneof![2 => Just(1u32), 3 => 2u32..17], soft in soft(),
        width in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, width * u64::from(buckets));
        let quota = quota.algorithm(Algorithm::SlidingWindow { buckets }).soft(soft);
        run::<SlowSliding>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn sliding_log(
        units in 1u32..13, soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).algorithm(Algorithm::SlidingLog).soft(soft);
        run::<SlowSliding>(with_debt(quota, debt), start, steps)?;
    }
}
