//! Plans: what a script needs to know of a quota and of what is asked, in bytes.
//!
//! Products with a quota's interval are made here, because a double in Lua would lose digits.

use super::script::letter;
use crate::{
    algorithm::{Ask, Receipt, gcra::Gcra},
    quota::{Algorithm, Quota},
    store::Unsupported,
};

/// Longer than any account is remembered, in nanoseconds: forty years.
pub(super) const LONGEST: u64 = 40 * 365 * 86_400 * 1_000_000_000;
/// More units than any account holds, in five bytes.
const MOST_UNITS: u64 = 1 << 39;
/// Doubles hold every integer below this.
const EXACT: u64 = 1 << 53;

/// Bytes of a plan, little-endian.
#[derive(Debug, Default)]
pub(super) struct Plan(pub(super) Vec<u8>);

/// What a script moves on an account.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moved {
    /// What is asked, if it fits.
    Charge,
    /// No units: an account is ended, or its key blocked or not.
    Nothing,
    /// So many units, whether they fit or not.
    Late(u64),
    /// Units given back.
    Back(u64),
    /// The units of a charge that its receipt still holds.
    Undone(Receipt),
}

impl Plan {
    /// The lowest `N` bytes.
    pub(super) fn int<const N: usize>(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes()[..N]);
        self
    }

    /// A time or an instant: microseconds, and the nanoseconds beyond them.
    pub(super) fn nanos(self, nanos: u64) -> Self {
        self.int::<7>(nanos / 1_000).int::<2>(nanos % 1_000)
    }

    /// One quota and what is asked of it. `key` is the number of the key of its list.
    pub(super) fn place(mut self, quota: &Quota, ask: Ask, moved: Moved, key: usize) -> Self {
        let raised = u64::from(quota.limit()) + u64::from(quota.soft_units());
        let possible = ask.need() <= raised;
        self.0.push(letter(quota));
        let apart = match moved {
            Moved::Undone(receipt) => !receipt.queued,
            _ => possible,
        };
        let plan = self.int::<1>(u64::from(ask.cost > 0)).int::<1>(u64::from(apart));
        if quota.counted_by() == Algorithm::Gcra {
            return plan.gcra(quota, ask, moved, possible);
        }
        let (cost, need, end) = match moved {
            Moved::Charge => (ask.cost.into(), ask.need(), ask.max_wait),
            Moved::Nothing => (0, ask.need(), 0),
            Moved::Late(units) | Moved::Back(units) => (units, ask.need(), 0),
            Moved::Undone(Receipt { cost, units, end, .. }) => (units.into(), cost.into(), end),
        };
        let plan = plan.int::<5>(cost.min(MOST_UNITS)).int::<5>(need);
        let plan = plan.int::<5>(quota.late_limit());
        let soft = u64::from(quota.soft_units());
        let (units, period) = (u64::from(quota.units()), quota.period_nanos() / 1_000);
        match quota.counted_by() {
            Algorithm::TokenBucket => {
                let (burst, refill) = (u64::from(quota.limit()), units.max(1));
                let initial = quota.initial_units().map(u64::from);
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

    fn gcra(self, quota: &Quota, ask: Ask, moved: Moved, possible: bool) -> Self {
        let gcra = Gcra::new(quota);
        let interval = quota.interval_nanos();
        let worth = |units: u64| interval.saturating_mul(units).min(LONGEST);
        let limit = u64::from(quota.limit());
        let plan = match moved {
            Moved::Charge if possible => {
                let slack = match quota.soft_units() {
                    0 => ask.max_wait,
                    soft => worth(soft.into()),
                };
                let room = worth(limit) + slack - worth(ask.need());
                self.nanos(worth(ask.cost.into())).nanos(room)
            }
            // below zero: never
            Moved::Charge => self.nanos(worth(ask.cost.into())).int::<7>(u64::MAX).int::<2>(0),
            // longer ahead no receipt ends, but by queueing
            Moved::Nothing => self.nanos(0).nanos(worth(limit + u64::from(quota.soft_units()))),
            Moved::Late(units) => self.nanos(worth(units)).nanos(worth(quota.late_limit())),
            Moved::Back(units) => self.nanos(worth(units)).nanos(0),
            Moved::Undone(Receipt { units, end, .. }) => self.nanos(worth(units.into())).nanos(end),
        };
        plan.nanos(gcra.kept()).nanos(gcra.cold())
    }
}

/// Whether the scripts can count `quota` exactly.
pub(super) fn check(quota: &Quota) -> Result<(), Unsupported> {
    let (width, product) = match quota.counted_by() {
        Algorithm::Gcra => return Ok(()),
        Algorithm::SlidingWindow { buckets } => (quota.period_nanos() / u64::from(buckets), true),
        Algorithm::FixedWindow { paced, .. } => (quota.period_nanos(), paced),
        _ => (quota.period_nanos(), false),
    };
    if !width.is_multiple_of(1_000) {
        return Err(Unsupported::new(
            "a window, bucket or refill that is no whole number of microseconds; Redis's clock \
             ticks in them: choose another period, or Gcra",
        ));
    }
    let beyond = quota.units().max(quota.max_debt_units());
    let units = u64::from(quota.units()) + u64::from(beyond) + u64::from(quota.soft_units());
    if product && units.saturating_mul(width / 1_000) >= EXACT {
        return Err(Unsupported::new(
            "(units + max_debt + soft) * width of a sliding or paced window, in microseconds, is 2^53 or \
             more, which Lua's numbers do not hold; take more buckets, or Gcra",
        ));
    }
    Ok(())
}
