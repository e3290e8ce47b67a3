//! Receipts for charges, to undo them.

use super::Demand;
use crate::decision::{Decision, NEVER, Outcome, Snapshot};

/// The receipt of a charge to one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The instant of the charge. An account that was created after this instant ignores the
    /// receipt.
    pub(crate) charged: u64,
    /// The instant of the decision.
    pub(crate) at: u64,
    /// For GCRA, the theoretical arrival time after the charge. For other algorithms, the instant
    /// at which the next unit is available.
    pub(crate) end: u64,
    /// Units charged.
    pub(crate) cost: u32,
    /// The maximum number of units to undo.
    pub(crate) units: u32,
    /// `true` if the charge must wait in the queue.
    ///
    /// Only the newest charge in the queue can be undone. Otherwise, two requests would get the
    /// same position.
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
        let by_own_clock = |instant: u64| instant.saturating_add_signed(outcome.skew());
        let (at, waits) = (by_own_clock(taken.at), taken.wait > 0);
        let (reset_ns, queued) = match *outcome.snapshot() {
            Snapshot::Refilling { reset_ns, interval, limit, .. } => {
                let need =
                    reset_ns.saturating_add(u64::from(demand.headroom).saturating_mul(interval));
                (reset_ns, waits && need > u64::from(limit).saturating_mul(interval))
            }
            // With headroom, units may remain although the charge queued. Its position is then
            // unknown.
            Snapshot::Known { remaining: 1.., .. } if demand.headroom > 0 => (NEVER, waits),
            Snapshot::Known { remaining: 1.., .. } => (0, false),
            Snapshot::Known { .. } => (outcome.remaining_and_next().1, waits),
            Snapshot::Slots { .. } | Snapshot::Unknown { .. } => return None,
        };
        Some(Self {
            charged: by_own_clock(taken.charged_at),
            at,
            end: at.saturating_add(reset_ns),
            cost: demand.cost,
            units: units.map_or(demand.cost, |units| units.min(demand.cost)),
            queued,
        })
    }
}
