//! Slots: the number of requests that run at the same time.
//!
//! An account is the number of held slots. A demand is allowed if the held slots and the demand are
//! together at most the limit. No clock takes part, so a denial knows no wait: the store estimates one
//! from the time for which slots of the key were held before.
//!
//! **Invariant.** At most `limit` slots are held, and `soft` more under a soft quota, after each demand
//! that was allowed. A lower limit ends no request: until enough of them have ended, more are held.
//!
//! **Example.** Two slots.
//!
//! ```
//! use tower_sluice::{Limiter, Quota};
//!
//! let limiter = Limiter::local();
//! let quota = Quota::concurrent(2);
//! let one = limiter.take("alice", &quota, 1).now();
//! let other = limiter.take("alice", &quota, 1).now();
//! assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
//!
//! drop(one); // frees its slot
//! assert!(limiter.take("alice", &quota, 1).now().is_allowed());
//! # drop(other);
//! ```

use super::{Demand, Evaluation};
use crate::{
    decision::{NEVER, Snapshot, UNKNOWN_WAIT},
    quota::Quota,
};

/// Returns the result of a demand while `held` slots are held.
///
/// The snapshot has the slots that are held before the demand. The caller adds those of a demand that
/// every quota allows.
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

/// Returns the evaluation of a decision that Redis made.
///
/// `after` are the slots held after the decision. `charged` is `true` if Redis charged the account.
#[cfg(feature = "redis")]
pub(super) fn reconstruct(after: u64, quota: &Quota, demand: Demand, charged: bool) -> Evaluation {
    let mut before = after;
    if charged {
        // One reply answers several equal requests, so `after` may include slots that were taken after
        // this request. It was allowed, so at most `fits` slots were held before it.
        let fits = quota.raised_limit().saturating_sub(demand.need());
        before = after.saturating_sub(demand.cost.into()).min(fits);
    }
    let mut evaluation = look(before, quota, demand);
    evaluation.snapshot.set_held(after);
    evaluation
}

#[inline(always)]
pub(crate) fn snapshot(held: u64, quota: &Quota, retry_ns: u64) -> Snapshot {
    Snapshot::Slots {
        limit: quota.limit(),
        held,
        retry_ns,
        free_in_ns: 0,
    }
}

/// Returns the slots that must be freed before the demand fits.
pub(crate) fn missing(held: u64, quota: &Quota, demand: Demand) -> u64 {
    held.saturating_add(demand.need())
        .saturating_sub(quota.raised_limit())
}
