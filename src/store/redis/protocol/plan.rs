//! The bytes of a plan, and of the layout of a call.

use std::sync::Arc;

use super::MAX_COST;
use crate::{
    algorithm::{Demand, Receipt, gcra},
    quota::Quota,
};

/// The longest time for which accounts are kept, in nanoseconds: ten years.
pub(super) const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000_000;
/// The maximum units of an account.
const MOST_UNITS: u64 = 1 << 39;

/// The bytes of a plan. Its numbers are little-endian.
#[derive(Debug, Default)]
pub(crate) struct EncodedPlan(pub(crate) Vec<u8>);

/// A change of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Charges the demand if it fits.
    Charge,
    /// Charges units, even if they do not fit, or refunds units. No units for a reset or a block.
    Units(u64),
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
    pub(crate) fn quota(self, quota: &Quota, ask: Demand, change: Change, key: usize) -> Self {
        let capacity = u64::from(quota.limit()) + u64::from(quota.soft());
        let possible = ask.need() <= capacity;
        let flag = match change {
            Change::Undo(receipt) => !receipt.queued,
            _ => possible,
        };
        let plan = self
            .int::<1>(u64::from(ask.cost > 0))
            .int::<1>(u64::from(flag));
        if quota.is_gcra() {
            return plan.gcra(quota, ask, change, possible);
        }
        let (cost, need, end) = match change {
            Change::Charge => (ask.cost.into(), ask.need(), ask.max_wait),
            Change::Units(units) => (units, ask.need(), 0),
            Change::Undo(Receipt {
                cost, units, end, ..
            }) => (units.into(), cost.into(), end),
        };
        let plan = plan.int::<5>(cost.min(MOST_UNITS)).int::<5>(need);
        plan.int::<5>(quota.late_limit()).counted(quota, end, key)
    }

    /// Appends a quota of slots with its demand. `key` is the index of the sorted set in the keys of
    /// the script.
    pub(crate) fn slots(
        self,
        quota: &Quota,
        ask: Demand,
        take: &SlotTake,
        keys: [usize; 2],
    ) -> Self {
        let limit = u64::from(quota.limit()) + u64::from(quota.soft());
        let possible = ask.need() <= limit && ask.cost <= MAX_COST;
        let need = if possible { ask.need() } else { MOST_UNITS };
        let plan = self
            .int::<1>(u64::from(ask.cost > 0))
            .int::<1>(u64::from(possible));
        let plan = plan
            .int::<2>(take.cost.into())
            .int::<5>(need)
            .int::<5>(limit);
        let plan = keys
            .into_iter()
            .fold(plan, |plan, key| plan.int::<2>(key as u64));
        let plan = plan
            .int::<2>(take.mark_millis)
            .int::<5>(take.own.min(MOST_UNITS));
        let plan = plan.int::<7>(take.ttl_micros).int::<8>(take.store);
        let plan = plan
            .int::<8>(take.first)
            .int::<2>(take.freed.len() as u64 * 10);
        plan.slot_list(&take.freed)
    }

    /// Appends the slots of requests: the first number and how many.
    pub(crate) fn slot_list(self, requests: &[RequestSlots]) -> Self {
        requests.iter().fold(self, |plan, request| {
            plan.int::<8>(request.first).int::<2>(request.units.into())
        })
    }

    fn gcra(self, quota: &Quota, ask: Demand, change: Change, possible: bool) -> Self {
        let interval = quota.interval_nanos();
        let time_of = |units: u64| interval.saturating_mul(units).min(LONGEST);
        let limit = u64::from(quota.limit());
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
            Change::Charge => self
                .nanos(time_of(ask.cost.into()))
                .int::<7>(u64::MAX)
                .int::<2>(0),
            // Without queueing, no receipt ends later than this.
            Change::Units(0) => self
                .nanos(0)
                .nanos(time_of(limit + u64::from(quota.soft()))),
            Change::Units(units) => self
                .nanos(time_of(units))
                .nanos(time_of(quota.late_limit())),
            Change::Undo(Receipt { units, end, .. }) => {
                self.nanos(time_of(units.into())).nanos(end)
            }
        };
        plan.nanos(gcra::retention(quota))
            .nanos(gcra::initial_reset(quota))
    }
}

/// The slots of one quota that a call takes.
pub(crate) struct SlotTake {
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    /// The first half of the members of all slots of this process.
    pub(crate) store: u64,
    /// The number of the first slot of the first caller.
    pub(crate) first: u64,
    /// The slots that each caller takes.
    pub(crate) cost: u32,
    /// The microseconds for which a slot counts, unless it is renewed.
    pub(crate) ttl_micros: u64,
    /// The slots of the account that this process holds.
    pub(crate) own: u64,
    /// The milliseconds for which the mark of a denied request counts, or 0 if it does not wait.
    pub(crate) mark_millis: u64,
    /// The slots that the call frees.
    pub(crate) freed: Vec<RequestSlots>,
}

/// The slots of one request, which have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestSlots {
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    pub(crate) first: u64,
    pub(crate) units: u32,
}

impl RequestSlots {
    pub(crate) fn new(set: &Arc<str>, first: u64, units: u32) -> Self {
        let set = set.clone();
        Self { set, first, units }
    }
}

/// The argument that says which groups of equal requests a call has, as `lua/groups.lua` reads it.
#[derive(Debug, Default)]
pub(crate) struct Layout(pub(crate) Vec<u8>);

impl Layout {
    /// Appends a group, whose accounts follow.
    pub(crate) fn group(&mut self, callers: usize, accounts: usize) {
        self.number(callers);
        self.number(accounts);
    }

    /// Appends an account by the numbers of its key and its plan, which start at 1.
    pub(crate) fn account(&mut self, key: usize, plan: usize) {
        self.number(key);
        self.number(plan);
    }

    fn number(&mut self, number: usize) {
        // A call is small enough that all numbers fit.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
    }
}
