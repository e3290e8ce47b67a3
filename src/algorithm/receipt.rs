//! Receipts: what is known of a charge that is undone.

use super::Ask;
use crate::decision::{Decision, NEVER, Numbers, Outcome};

/// A charge of one account that is undone, in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// When the account was charged. What was charged before a reset is gone.
    pub(crate) charged: u64,
    /// The instant of the store's clock as of which `end` was reported.
    pub(crate) at: u64,
    /// GCRA: the TAT that the charge left. Others: when the next unit after it passes.
    pub(crate) end: u64,
    /// Units charged.
    pub(crate) cost: u32,
    /// Units to give back, at most `cost`.
    pub(crate) units: u32,
    /// True if the charge queued. It is then undone only while nobody has queued behind it. Those
    /// behind it keep their places, so its units would go to a caller that comes later, which would
    /// then run at the same instant as the last one of the queue.
    pub(crate) queued: bool,
}

impl Receipt {
    /// The receipt of a charge that was just made: nothing of it has flowed back.
    #[cfg(feature = "redis")]
    pub(crate) fn newest(now: u64, ask: Ask) -> Self {
        let (charged, at, cost) = (now, now, ask.cost);
        Self { charged, at, end: u64::MAX, cost, units: cost, queued: false }
    }

    /// The receipt of `ask` by its outcome in `taken`: all of it, or up to `units`. `None` where
    /// the store did not report any numbers.
    pub(crate) fn new(
        taken: &Decision,
        outcome: &Outcome,
        ask: Ask,
        units: Option<u32>,
    ) -> Option<Self> {
        let by_own_clock = |instant: u64| instant.saturating_add_signed(outcome.skew());
        let (at, waits) = (by_own_clock(taken.instant()), taken.waits());
        let (ahead, queued) = match *outcome.numbers() {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                let need = ahead.saturating_add(u64::from(ask.headroom).saturating_mul(interval));
                (ahead, waits && need > u64::from(limit).saturating_mul(interval))
            }
            // its place is not known where units are left over as headroom
            Numbers::Known { remaining: 1.., .. } if ask.headroom > 0 => (NEVER, waits),
            Numbers::Known { remaining: 1.., .. } => (0, false),
            Numbers::Known { .. } => (outcome.remaining_and_next().1, waits),
            Numbers::Unknown { .. } => return None,
        };
        Some(Self {
            charged: by_own_clock(taken.charged_at()),
            at,
            end: at.saturating_add(ahead),
            cost: ask.cost,
            units: units.map_or(ask.cost, |units| units.min(ask.cost)),
            queued,
        })
    }
}
