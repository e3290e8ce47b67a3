//! A store with a governor limiter.

use std::{any::Any, future::ready, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    NotUntil, Quota, RateLimiter,
    clock::Clock,
    middleware::{RateLimitingMiddleware, StateSnapshot},
    state::keyed::KeyedStateStore,
};

use super::{
    Answer, BoxFuture, Charge, Context, Health, Never, Op, Store, Unsupported, check_rates_only,
    nanos,
};
use crate::{
    decision::{Decision, Outcome, Snapshot, Source},
    key::Key,
    name::RuleName,
};

/// Store that decides with a governor limiter, which other code can use as well.
///
/// The limiter decides with its **own** quota. Give the same quota to the rule of the layer. The
/// layer uses the rule's quota only for the quota name and the `RateLimit-Policy` header.
///
/// With governor's `StateInformationMiddleware`, an allowed decision reports the units left.
/// Without that middleware, the units left are unknown, and the header fields do not contain the
/// quota.
///
/// # Limitations
///
/// - The store supports only one charge of at least one unit, under one quota. A layer with any
///   other charge cannot be built.
/// - A charge that is computed at run time may be unsupported, which is an error. The layer
///   therefore requires [`fail_open`](crate::StoreExt::fail_open) or
///   [`fail_closed`](crate::StoreExt::fail_closed).
/// - A governor limiter cannot [peek](crate::StoreExt::peek).
/// - The memory grows with each key until the application calls `retain_recent` of governor. In
///   contrast, [`LocalStore`](crate::LocalStore) is bounded.
///
/// ```
/// use std::{num::NonZeroU32, sync::Arc};
/// use governor::RateLimiter;
/// use tower_sluice::{Key, PeerIp, Quota, RateLimitLayer, StoreExt, store::GovernorStore};
///
/// let ten = NonZeroU32::new(10).expect("above 0");
/// let limiter = Arc::new(RateLimiter::<Key, _, _>::keyed(governor::Quota::per_second(ten)));
/// let store = GovernorStore::new(limiter.clone()).fail_closed();
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(10), store);
/// ```
#[derive(Debug)]
pub struct GovernorStore<L>(Arc<L>);

impl<L> GovernorStore<L> {
    /// Creates a store that uses `limiter`.
    pub fn new(limiter: Arc<L>) -> Self {
        Self(limiter)
    }
}

impl<L> Clone for GovernorStore<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M, C, W> Store for GovernorStore<RateLimiter<Key, M, C, W>>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    W: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>>,
    W::PositiveOutcome: 'static,
{
    type Error = Unsupported;
    type Future = Never<Result<Decision, Unsupported>>;

    fn call(&self, op: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        let charges = match op {
            Op::Take(charges) => charges,
            Op::Peek(_) => {
                return Answer::Now(Ok(Decision::deny().with_source(Source::Unsupported)));
            }
            _ => return Answer::Now(Err(unsupported(CHANGE))),
        };
        let cost = match only_cost(charges) {
            Ok(cost) => cost,
            Err(error) => return Answer::Now(Err(error)),
        };
        let rule = charges[0].rule;
        let decision = match self.0.check_key_n(charges[0].key, cost) {
            Ok(Ok(allowed)) => Decision::allow().with_outcome(left_after(rule, &allowed)),
            Ok(Err(denial)) => {
                let wait = denial.wait_time_from(self.0.clock().now());
                let outcome = denied(rule, cost, denial.quota(), wait);
                Decision::deny().with_outcome(outcome)
            }
            // governor does not report the units left if the cost can never fit.
            Err(_) => Decision::deny().with_outcome(Outcome::unknown(rule, 0, None)),
        };
        Answer::Now(Ok(decision.with_source(Source::Governor)))
    }

    fn health(&self) -> BoxFuture<Health> {
        Box::pin(ready(Health::healthy("governor", "in this process")))
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        only_cost(charges).map(|_| ())
    }
}

const CHANGE: &str = "cannot adjust, reset or block an account; use LocalStore";
const SEVERAL: &str = "decides one charge under one quota; use LocalStore for several";

/// Returns the outcome of an allowed charge, for the result of a governor limiter.
fn left_after(rule: RuleName, allowed: &dyn Any) -> Outcome {
    let Some(left) = allowed.downcast_ref::<StateSnapshot>() else {
        return Outcome::unknown(rule, 0, Some(Duration::ZERO));
    };
    let limit = left.quota().burst_size().get();
    // governor reports whole units, so the time is an upper bound.
    let used = limit - left.remaining_burst_capacity().min(limit);
    let reset = left.quota().replenish_interval().saturating_mul(used);
    refilling(rule, left.quota(), reset, Duration::ZERO)
}

fn denied(rule: RuleName, cost: NonZeroU32, quota: Quota, wait: Duration) -> Outcome {
    // A denial needs a wait above zero.
    let wait = wait.max(Duration::from_nanos(1));
    let rest = quota.burst_size().get().saturating_sub(cost.get());
    let reset = wait.saturating_add(quota.replenish_interval().saturating_mul(rest));
    refilling(rule, quota, reset, wait)
}

fn refilling(rule: RuleName, quota: Quota, reset: Duration, wait: Duration) -> Outcome {
    let snapshot = Snapshot::Refilling {
        reset_ns: nanos(reset),
        interval: nanos(quota.replenish_interval()).max(1),
        limit: quota.burst_size().get(),
        retry_ns: nanos(wait),
    };
    Outcome::with(rule, 0, snapshot)
}

/// Returns the cost of the only charge, if governor can decide it.
fn only_cost(charges: &[Charge<'_>]) -> Result<NonZeroU32, Unsupported> {
    check_rates_only(charges)?;
    let [charge] = charges else {
        return Err(unsupported(SEVERAL));
    };
    let [quota] = charge.quotas else {
        return Err(unsupported(SEVERAL));
    };
    Err(unsupported(if quota.is_blocked() {
        "cannot deny every request; use LocalStore for Quota::blocked()"
    } else if charge.headroom > 0 || charge.queues() {
        "does not support headroom or max_wait; use LocalStore"
    } else if charge.report_only {
        "does not support report-only charges; use RateLimitLayer::report_only, or LocalStore"
    } else if charge.charged_quotas().next().is_none() {
        "has no quota with this index; use LocalStore"
    } else if let Some(cost) = NonZeroU32::new(charge.cost) {
        return Ok(cost);
    } else {
        "does not support cost 0; use LocalStore to peek"
    }))
}

fn unsupported(what: &str) -> Unsupported {
    Unsupported(format!("a governor limiter {what}").into())
}
