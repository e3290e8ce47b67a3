//! The demand on one quota, and its part of a plan.

use super::{
    MAX_COST,
    algorithms::letter,
    plan::{Change, EncodedPlan, LONGEST, SlotTake},
};
use crate::{
    algorithm::{Demand, Receipt, gcra},
    quota::{Quota, QuotaAddress},
    store::Charge,
};

/// The maximum units of an account.
const MOST_UNITS: u64 = 1 << 39;

/// The demand on one quota of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaRequest {
    /// The index of the quota in the first charge that names it.
    pub(crate) index: usize,
    pub(crate) quota: Quota,
    pub(crate) address: QuotaAddress,
    pub(crate) demand: Demand,
}

impl QuotaRequest {
    /// Creates the demand of a charge on one of its quotas.
    pub(super) fn new(charge: &Charge<'_>, index: usize, quota: &Quota) -> Self {
        let mut demand = charge.demand();
        if quota.is_concurrent() {
            // Requests that wait for slots for different times share a call.
            demand.max_wait = charge.queues().into();
        }
        Self {
            index,
            quota: *quota,
            address: QuotaAddress::at(charge.quotas, index),
            demand,
        }
    }

    /// Adds another demand.
    pub(super) fn join(&mut self, other: Demand) {
        let demand = &mut self.demand;
        demand.cost = demand.cost.saturating_add(other.cost);
        demand.headroom = demand.headroom.max(other.headroom);
        demand.max_wait = demand.max_wait.min(other.max_wait);
    }

    /// Lets a demand for more slots than a request takes never fit.
    pub(super) fn deny_too_many_slots(&mut self) {
        if self.quota.is_concurrent() && self.demand.cost > MAX_COST {
            self.demand.headroom = u32::MAX;
        }
    }

    /// Returns `true` if the quota is charged, uses GCRA and starts full.
    pub(super) fn is_plain(&self) -> bool {
        self.quota.is_gcra() && self.quota.initial().is_none() && self.demand.cost > 0
    }

    /// Returns `true` if the quota is of slots, and some are taken.
    pub(super) fn takes_slots(&self) -> bool {
        self.quota.is_concurrent() && self.demand.cost > 0
    }
}

impl EncodedPlan {
    /// Appends the letter of the algorithm and the address of a quota, whether it is charged, and one
    /// more flag.
    fn head(self, quota_request: &QuotaRequest, flag: bool) -> Self {
        self.int::<1>(letter(&quota_request.quota).into())
            .int::<4>(quota_request.address.number().into())
            .int::<1>(u64::from(quota_request.demand.cost > 0))
            .int::<1>(u64::from(flag))
    }

    /// Appends a demand on a rate, its change, and the edges of calendar periods around `now`. `list` is
    /// the index of the list of a sliding log in the keys of the script.
    pub(super) fn rate(
        self,
        quota_request: &QuotaRequest,
        change: Change,
        list: usize,
        now: u64,
    ) -> Self {
        let quota = &quota_request.quota;
        let demand = quota_request.demand;
        let flag = match change {
            Change::Undo(receipt) => !receipt.queued,
            Change::Charge | Change::Units(_) => demand.need() <= quota.raised_limit(),
        };
        let plan = self.head(quota_request, flag);
        let plan = if quota.is_gcra() {
            plan.gcra(quota, demand, change)
        } else {
            plan.counted(quota, demand, change, list)
        };
        let edges = quota.calendar_edges(now).into_iter().flatten();
        edges.fold(plan, |plan, edge| plan.int::<7>(edge / 1_000))
    }

    /// Appends a demand on slots. `keys` are the indices of the sorted set and of its mark in the keys of
    /// the script.
    pub(super) fn slots(
        self,
        quota_request: &QuotaRequest,
        take: &SlotTake,
        keys: [usize; 2],
    ) -> Self {
        let demand = quota_request.demand;
        let limit = quota_request.quota.raised_limit();
        let [set, mark] = keys.map(|key| key as u64);
        let is_possible = demand.need() <= limit && demand.cost <= MAX_COST;
        self.head(quota_request, is_possible)
            .int::<2>(take.cost.into())
            .int::<5>(demand.need())
            .int::<5>(limit)
            .int::<2>(set)
            .int::<2>(mark)
            .int::<2>(take.mark_millis)
            .int::<5>(take.own.min(MOST_UNITS))
            .int::<7>(take.ttl_micros)
            .int::<8>(take.store)
            .int::<8>(take.first)
            .int::<2>(take.freed.len() as u64 * 10)
            .slot_list(&take.freed)
    }

    /// Appends a change of a quota of GCRA: the time to add or to subtract, and its bound.
    fn gcra(self, quota: &Quota, demand: Demand, change: Change) -> Self {
        let interval = quota.interval_nanos();
        let time_of = |units: u64| interval.saturating_mul(units).min(LONGEST);
        let plan = match change {
            // The room is negative, so the demand never fits.
            Change::Charge if demand.need() > quota.raised_limit() => self
                .nanos(time_of(demand.cost.into()))
                .int::<7>(u64::MAX)
                .int::<2>(0),
            Change::Charge => {
                let slack = match quota.soft() {
                    0 => demand.max_wait,
                    soft => time_of(soft.into()),
                };
                let room = time_of(quota.limit().into()) + slack - time_of(demand.need());
                self.nanos(time_of(demand.cost.into())).nanos(room)
            }
            // A reset: the largest distance of the TAT after a charge that did not queue. The receipt of
            // such a charge holds no units after its TAT.
            Change::Units(0) => self.nanos(0).nanos(time_of(quota.raised_limit())),
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

    /// Appends a change of a quota that is not counted by GCRA, and its settings.
    fn counted(self, quota: &Quota, demand: Demand, change: Change, list: usize) -> Self {
        let (cost, need, end) = match change {
            Change::Charge => (demand.cost.into(), demand.need(), demand.max_wait),
            Change::Units(units) => (units, demand.need(), 0),
            Change::Undo(Receipt {
                cost, units, end, ..
            }) => (units.into(), cost.into(), end),
        };
        self.int::<5>(cost.min(MOST_UNITS))
            .int::<5>(need)
            .int::<5>(quota.late_limit())
            .settings(quota, end, list)
    }
}
