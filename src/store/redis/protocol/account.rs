//! The demands on one account, and their plan.

use smallvec::SmallVec;

use super::{
    algorithms::{has_list, letter},
    plan::{Change, EncodedPlan, SlotTake},
};
use crate::{
    algorithm::Demand,
    name::RuleName,
    quota::{Quota, QuotaAddress},
    store::redis::cluster::slot,
};

/// The most quotas of a rule that are not part of a call.
pub(super) const MAX_ABSENT: usize = 255;

/// The account of one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccountRequest {
    pub(crate) rule: RuleName,
    pub(crate) address: String,
    pub(crate) report_only: bool,
    /// The number of quotas of the rule. The states of those that are not part of the call are kept.
    pub(crate) known: usize,
    pub(crate) quotas: QuotaRequests,
}

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
    /// Returns `true` if the quota is charged, uses GCRA and starts full.
    fn is_plain(&self) -> bool {
        self.quota.is_gcra() && self.quota.initial().is_none() && self.demand.cost > 0
    }

    /// Returns `true` if the quota is of slots, and some are taken.
    fn takes_slots(&self) -> bool {
        self.quota.is_concurrent() && self.demand.cost > 0
    }
}

/// The quotas of an account. Each has an address of its own.
type QuotaRequests = SmallVec<[QuotaRequest; 1]>;

impl AccountRequest {
    /// Returns the slot of the account on a cluster. A store that is not `sharded` has one slot.
    pub(crate) fn slot(&self, sharded: bool) -> u16 {
        if sharded {
            slot(self.address.as_bytes())
        } else {
            0
        }
    }

    /// Returns the plan of the account, with a change and slots for each quota. A quota without them is
    /// not part of the call. `key` returns the index of a key in the keys of the script. Calendar
    /// periods are those around `now`.
    pub(crate) fn plan<'s>(
        &self,
        now: u64,
        change: impl Fn(usize, Demand) -> Option<Change>,
        slots: impl Fn(usize) -> Option<&'s SlotTake>,
        mut key: impl FnMut(String) -> usize,
    ) -> Vec<u8> {
        let mut plan = EncodedPlan::default();
        let mut count = 0;
        for (index, part) in self.quotas.iter().enumerate() {
            let QuotaRequest { quota, demand, .. } = part;
            let change = if quota.is_concurrent() {
                None
            } else {
                change(index, *demand)
            };
            plan = match (change, slots(index)) {
                (Some(change), _) => {
                    // The list is in the cluster slot of its account.
                    let has_list = has_list(quota);
                    let key = if has_list {
                        key(self.part_key(":", part.address))
                    } else {
                        0
                    };
                    let plan = plan.address(quota, part.address);
                    let plan = plan.quota(quota, *demand, change, key);
                    let edges = quota.calendar_edges(now).into_iter().flatten();
                    edges.fold(plan, |plan, edge| plan.int::<7>(edge / 1_000))
                }
                (None, Some(take)) => {
                    let set = key(take.set.to_string());
                    let mark = if take.mark_millis > 0 {
                        key(format!("{}w", take.set))
                    } else {
                        0
                    };
                    let plan = plan.address(quota, part.address);
                    plan.slots(quota, *demand, take, [set, mark])
                }
                (None, None) => continue,
            };
            count += 1;
        }
        let absent = self.known.saturating_sub(count).min(MAX_ABSENT);
        let head = [u64::from(!self.report_only), count as u64, absent as u64].into_iter();
        let mut bytes = head.fold(EncodedPlan::default(), EncodedPlan::int::<1>).0;
        bytes.extend(plan.0);
        bytes
    }

    /// Returns the key beside the account that belongs to a quota.
    pub(crate) fn part_key(&self, separator: &str, address: QuotaAddress) -> String {
        format!("{}{separator}{:08x}", self.address, address.number())
    }

    /// Returns `true` if an allowed request charges the account.
    pub(crate) fn is_certain(&self) -> bool {
        !self.report_only
    }

    /// Returns `true` if all quotas are charged, use GCRA and start full. A report-only account is
    /// not plain.
    pub(crate) fn is_plain(&self) -> bool {
        !self.report_only
            && !self.quotas.is_empty()
            && self.quotas.iter().all(QuotaRequest::is_plain)
    }

    /// Returns `true` if the account has one quota of slots, and at most one other, which is plain.
    pub(super) fn takes_slots_simply(&self) -> bool {
        let simple = match &*self.quotas {
            [slots] => slots.takes_slots(),
            [slots, rate] if slots.takes_slots() => rate.is_plain(),
            [rate, slots] => rate.is_plain() && slots.takes_slots(),
            _ => false,
        };
        simple && !self.report_only
    }

    /// Returns the quotas of slots, with their indices in the account.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &QuotaRequest)> {
        let all = self.quotas.iter().enumerate();
        all.filter(|(_, part)| part.quota.is_concurrent())
    }

    /// Returns `true` if one of the quotas is a rate.
    pub(crate) fn has_rates(&self) -> bool {
        self.quotas.iter().any(|part| !part.quota.is_concurrent())
    }

    /// Returns `true` if a block of the key denies the call.
    pub(crate) fn may_be_blocked(&self) -> bool {
        !self.report_only && (self.quotas.is_empty() || self.charges())
    }

    /// Returns `true` if the call charges one of the quotas.
    pub(crate) fn charges(&self) -> bool {
        self.quotas.iter().any(|part| part.demand.cost > 0)
    }

    /// Adds a quota, and returns its index. Demands on one account are added.
    pub(super) fn add(&mut self, part: QuotaRequest) -> usize {
        let known = self
            .quotas
            .iter()
            .position(|known| known.address == part.address);
        let Some(index) = known else {
            self.quotas.push(part);
            return self.quotas.len() - 1;
        };
        let demand = &mut self.quotas[index].demand;
        demand.cost = demand.cost.saturating_add(part.demand.cost);
        demand.headroom = demand.headroom.max(part.demand.headroom);
        demand.max_wait = demand.max_wait.min(part.demand.max_wait);
        index
    }
}

impl EncodedPlan {
    /// Appends the letter of the algorithm and the address of a quota.
    fn address(self, quota: &Quota, address: QuotaAddress) -> Self {
        self.int::<1>(letter(quota).into())
            .int::<4>(address.number().into())
    }
}
