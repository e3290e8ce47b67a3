//! Plans: binary arguments of a script, each with the quotas and demands of one account.
//!
//! Products are computed in Rust, because numbers in Lua lose digits.

use super::script::letter;
use crate::{
    algorithm::{Demand, Receipt, gcra::Gcra},
    quota::{Algorithm, Quota},
    store::{
        Unsupported,
        redis::slots::{MAX_COST, SlotTake, Slots},
    },
};

/// The longest time for which accounts are kept, in nanoseconds: forty years.
pub(crate) const LONGEST: u64 = 40 * 365 * 86_400 * 1_000_000_000;
/// The maximum units of an account.
const MOST_UNITS: u64 = 1 << 39;
/// The bound below which a double represents every integer.
const EXACT: u64 = 1 << 53;

/// The bytes of a plan. Its numbers are little-endian.
#[derive(Debug, Default)]
pub(crate) struct EncodedPlan(pub(crate) Vec<u8>);

/// A change of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Charges the demand if it fits.
    Charge,
    /// Changes no units, for a reset or a block.
    None,
    /// Charges units, even if they do not fit.
    Late(u64),
    /// Refunds units.
    Refund(u64),
    /// Undoes a charge, except for refilled units.
    Undo(Receipt),
}

impl EncodedPlan {
    /// Appends the lowest `N` bytes.
    pub(crate) fn int<const N: usize>(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes()[..N]);
        self
    }

    /// Appends a time in microseconds, then the remaining nanoseconds.
    pub(crate) fn nanos(self, nanos: u64) -> Self {
        self.int::<7>(nanos / 1_000).int::<2>(nanos % 1_000)
    }

    /// Appends one quota with its demand and its change. `key` is the index of the list of a
    /// sliding log in the keys of the script.
    pub(crate) fn quota(mut self, quota: &Quota, ask: Demand, change: Change, key: usize) -> Self {
        let capacity = u64::from(quota.burst()) + u64::from(quota.soft());
        let possible = ask.need() <= capacity;
        self.0.push(letter(quota));
        let flag = match change {
            Change::Undo(receipt) => !receipt.queued,
            _ => possible,
        };
        let plan = self.int::<1>(u64::from(ask.cost > 0)).int::<1>(u64::from(flag));
        if quota.algorithm() == Algorithm::Gcra {
            return plan.gcra(quota, ask, change, possible);
        }
        let (cost, need, end) = match change {
            Change::Charge => (ask.cost.into(), ask.need(), ask.max_wait),
            Change::None => (0, ask.need(), 0),
            Change::Late(units) | Change::Refund(units) => (units, ask.need(), 0),
            Change::Undo(Receipt { cost, units, end, .. }) => (units.into(), cost.into(), end),
        };
        let plan = plan.int::<5>(cost.min(MOST_UNITS)).int::<5>(need);
        let plan = plan.int::<5>(quota.late_limit());
        let soft = u64::from(quota.soft());
        let (units, period) = (u64::from(quota.units()), quota.period_nanos() / 1_000);
        match quota.algorithm() {
            Algorithm::TokenBucket => {
                let (burst, refill) = (u64::from(quota.burst()), units.max(1));
                let initial = quota.initial().map(u64::from);
                let kept = initial.map_or(0, |_| burst.div_ceil(refill) * period);
                let plan = plan.int::<5>(burst).int::<5>(soft).int::<5>(refill);
                plan.int::<5>(initial.unwrap_or(burst)).int::<7>(period).int::<7>(kept)
            }
            Algorithm::SlidingWindow { buckets } => {
                let buckets = u64::from(buckets.max(1));
                let plan = plan.int::<5>(units).int::<5>(soft);
                plan.int::<7>(period / buckets).int::<4>(buckets)
            }
            Algorithm::SlidingLog => {
                plan.int::<5>(units).int::<5>(soft).int::<7>(period).int::<1>(key as u64)
            }
            windows => {
                let (carry_over, kind) = match windows {
                    Algorithm::FixedWindow { carry_over, paced } => {
                        (carry_over, u64::from(paced) * 2)
                    }
                    _ => (0, 1),
                };
                let plan = plan.int::<5>(units).int::<5>(soft).int::<7>(period);
                plan.int::<5>(carry_over.into()).int::<1>(kind).nanos(end)
            }
        }
    }

    /// Appends a quota of slots with its demand. `key` is the index of the sorted set in the keys of
    /// the script.
    pub(crate) fn slots(
        mut self,
        quota: &Quota,
        ask: Demand,
        slots: &Slots,
        take: &SlotTake,
        key: usize,
    ) -> Self {
        let limit = u64::from(quota.burst()) + u64::from(quota.soft());
        let possible = ask.need() <= limit && ask.cost <= MAX_COST;
        let need = if possible { ask.need() } else { MOST_UNITS };
        self.0.push(letter(quota));
        let plan = self.int::<1>(u64::from(ask.cost > 0)).int::<1>(u64::from(possible));
        let plan = plan.int::<2>(take.cost.into()).int::<5>(need).int::<5>(limit);
        let plan = plan.int::<1>(key as u64).int::<7>(slots.life_micros()).int::<8>(slots.store);
        let plan = plan.int::<8>(take.first).int::<2>(take.freed.len() as u64 * 10);
        plan.slot_list(take.freed.iter().copied())
    }

    /// Appends the slots of requests: the first number and how many.
    pub(crate) fn slot_list(self, requests: impl Iterator<Item = (u64, u32)>) -> Self {
        requests.fold(self, |plan, (first, units)| plan.int::<8>(first).int::<2>(units.into()))
    }

    fn gcra(self, quota: &Quota, ask: Demand, change: Change, possible: bool) -> Self {
        let gcra = Gcra::new(quota);
        let interval = quota.interval_nanos();
        let time_of = |units: u64| interval.saturating_mul(units).min(LONGEST);
        let limit = u64::from(quota.burst());
        let plan = match change {
            Change::Charge if possible => {
                let slack = match quota.soft() {
                    0 => ask.max_wait,
                    soft => time_of(soft.into()),
                };
                let room = time_of(limit) + slack - time_of(ask.need());
                self.nanos(time_of(ask.cost.into())).nanos(room)
            }
            // The room is negative, so the demand never fits.
            Change::Charge => self.nanos(time_of(ask.cost.into())).int::<7>(u64::MAX).int::<2>(0),
            // Without queueing, no receipt ends later than this.
            Change::None => self.nanos(0).nanos(time_of(limit + u64::from(quota.soft()))),
            Change::Late(units) => self.nanos(time_of(units)).nanos(time_of(quota.late_limit())),
            Change::Refund(units) => self.nanos(time_of(units)).nanos(0),
            Change::Undo(Receipt { units, end, .. }) => {
                self.nanos(time_of(units.into())).nanos(end)
            }
        };
        plan.nanos(gcra.retention()).nanos(gcra.initial_reset())
    }
}

/// Returns an error if the scripts cannot count the quota exactly.
pub(crate) fn check(quota: &Quota) -> Result<(), Unsupported> {
    let (width, product) = match quota.algorithm() {
        Algorithm::Gcra | Algorithm::Concurrent => return Ok(()),
        Algorithm::SlidingWindow { buckets } => (quota.period_nanos() / u64::from(buckets), true),
        Algorithm::FixedWindow { paced, .. } => (quota.period_nanos(), paced),
        _ => (quota.period_nanos(), false),
    };
    if !width.is_multiple_of(1_000) {
        return Err(Unsupported::new(
            "a window, bucket or refill that is not a whole number of microseconds, the resolution \
             of Redis's clock; choose another period, or Gcra",
        ));
    }
    let beyond = quota.units().max(quota.max_debt_units());
    let units = u64::from(quota.units()) + u64::from(beyond) + u64::from(quota.soft());
    if product && units.saturating_mul(width / 1_000) >= EXACT {
        return Err(Unsupported::new(
            "(units + max_debt + soft) * width of a sliding or paced window, in microseconds, is \
             2^53 or more, which exceeds Lua's numbers; use more buckets, or Gcra",
        ));
    }
    Ok(())
}
