//! Slots: the number of requests that run at the same time.
//!
//! An account is the number of held slots. A demand is allowed if the held slots and the demand are
//! together at most the limit. No clock takes part.

use super::{Demand, Evaluation};
use crate::{
    decision::{NEVER, Snapshot, UNKNOWN_WAIT},
    quota::Quota,
};

/// Returns the result of a demand while `held` slots are held.
///
/// The snapshot has the slots that are held afterwards, if every other quota allows the demand.
#[inline]
pub(crate) fn look(held: u64, quota: &Quota, demand: Demand) -> Evaluation {
    let limit = u64::from(quota.limit());
    let need = demand.need();
    let raised = quota.raised_limit();
    let fit = if need == 0 || held.saturating_add(need) <= raised {
        Evaluation::at_once(need > 0 && held + need > limit)
    } else {
        Evaluation::denied(if need > raised { NEVER } else { UNKNOWN_WAIT })
    };
    fit.with(|retry_ns| snapshot(held, quota, retry_ns))
}

#[inline(always)]
pub(crate) fn snapshot(held: u64, quota: &Quota, retry_ns: u64) -> Snapshot {
    Snapshot::Slots { limit: quota.limit(), held, retry_ns, free_in_ns: 0 }
}

/// Returns the slots that must be freed before the demand fits.
pub(crate) fn missing(held: u64, quota: &Quota, demand: Demand) -> u64 {
    held.saturating_add(demand.need()).saturating_sub(quota.raised_limit())
}
