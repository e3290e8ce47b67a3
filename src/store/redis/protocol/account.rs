//! The demands on one account, and their plan.

use smallvec::SmallVec;

use super::{
    algorithms::has_list,
    plan::{Change, EncodedPlan, SlotTake},
    quota::QuotaRequest,
};
use crate::{
    algorithm::Demand,
    name::RuleName,
    quota::QuotaAddress,
    store::{Charge, redis::cluster::hash_slot},
};

/// The most quotas of a rule that are not part of a call.
const MAX_ABSENT: usize = 255;

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

/// The quotas of an account. Each has an address of its own.
type QuotaRequests = SmallVec<[QuotaRequest; 1]>;

impl AccountRequest {
    /// Returns the hash slot of the account. A store that is not `sharded` has one.
    pub(crate) fn hash_slot(&self, sharded: bool) -> u16 {
        if sharded {
            hash_slot(self.address.as_bytes())
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
        for (index, quota_request) in self.quotas.iter().enumerate() {
            if let Some(take) = slots(index) {
                let set = key(take.set.to_string());
                let mark = take.mark_key().map_or(0, &mut key);
                plan = plan.slots(quota_request, take, [set, mark]);
            } else if let Some(change) = change(index, quota_request.demand) {
                // The list is in the hash slot of its account.
                let list = has_list(&quota_request.quota)
                    .then(|| self.quota_key(":", quota_request.address));
                let list = list.map_or(0, &mut key);
                plan = plan.rate(quota_request, change, list, now);
            } else {
                continue;
            }
            count += 1;
        }
        let absent = self.known.saturating_sub(count).min(MAX_ABSENT);
        let head = EncodedPlan::default()
            .int::<1>(u64::from(!self.report_only))
            .int::<1>(count as u64)
            .int::<1>(absent as u64);
        [head.0, plan.0].concat()
    }

    /// Returns the key beside the account that belongs to a quota.
    pub(crate) fn quota_key(&self, separator: &str, address: QuotaAddress) -> String {
        format!("{}{separator}{:08x}", self.address, address.number())
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
        all.filter(|(_, quota_request)| quota_request.quota.is_concurrent())
    }

    /// Returns `true` if one of the quotas is a rate.
    pub(crate) fn has_rates(&self) -> bool {
        self.quotas
            .iter()
            .any(|quota_request| !quota_request.quota.is_concurrent())
    }

    /// Returns `true` if a block of the key denies the call.
    pub(crate) fn may_be_blocked(&self) -> bool {
        !self.report_only && (self.quotas.is_empty() || self.charges())
    }

    /// Returns `true` if the call charges one of the quotas.
    pub(crate) fn charges(&self) -> bool {
        self.quotas
            .iter()
            .any(|quota_request| quota_request.demand.cost > 0)
    }

    /// Adds a charge, without its quotas.
    pub(super) fn join(&mut self, charge: &Charge<'_>) {
        // Without quotas and cost, not even a block holds.
        let reads = charge.cost == 0 && charge.charged_quotas().next().is_none();
        self.report_only &= charge.report_only || reads;
        // A charge without quotas, as of a block, does not know those of its rule.
        let known = match charge.quotas.len() {
            0 => MAX_ABSENT,
            known => known,
        };
        self.known = self.known.max(known);
    }

    /// Adds a quota, and returns its index. Demands on one account are added.
    pub(super) fn add(&mut self, quota_request: QuotaRequest) -> usize {
        let mut known = self.quotas.iter();
        let known = known.position(|known| known.address == quota_request.address);
        let index = known.unwrap_or(self.quotas.len());
        match self.quotas.get_mut(index) {
            Some(known) => known.join(quota_request.demand),
            None => self.quotas.push(quota_request),
        }
        self.quotas[index].deny_too_many_slots();
        index
    }
}
