//! A store with a governor limiter.

use std::{future::ready, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    NotUntil, RateLimiter,
    clock::{Clock, Reference},
    middleware::{RateLimitingMiddleware, StateSnapshot},
    state::keyed::KeyedStateStore,
};

use super::{Answer, BoxFuture, Charge, Health, Never, Op, Store, Unsupported, no_slots};
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
};

const SEVERAL: Unsupported = Unsupported::new(
    "a governor limiter decides one charge under one quota; use LocalStore for several",
);
const BLOCKED: Unsupported = Unsupported::new(
    "a governor limiter cannot deny every request; use LocalStore for Quota::blocked()",
);
const LOOK: Unsupported =
    Unsupported::new("a governor limiter does not support cost 0; use LocalStore to peek");
const QUEUE: Unsupported =
    Unsupported::new("a governor limiter does not support headroom or max_wait; use LocalStore");
const REPORT: Unsupported = Unsupported::new(
    "a governor limiter does not support report-only charges; use RateLimitLayer::report_only, or \
     LocalStore",
);
const SETTLE: Unsupported =
    Unsupported::new("a governor limiter cannot adjust, reset or block an account; use LocalStore");

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
pub struct GovernorStore<M, C, W>(Arc<RateLimiter<Key, M, C, W>>)
where
    M: KeyedStateStore<Key>,
    C: Clock,
    W: RateLimitingMiddleware<C::Instant>;

impl<M, C, W> GovernorStore<M, C, W>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    W: RateLimitingMiddleware<C::Instant>,
{
    /// Creates a store that uses `limiter`.
    pub fn new(limiter: Arc<RateLimiter<Key, M, C, W>>) -> Self {
        Self(limiter)
    }
}

impl<M, C, W> Clone for GovernorStore<M, C, W>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    W: RateLimitingMiddleware<C::Instant>,
{
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Result of an allowed check of a governor limiter: `()` or a [`StateSnapshot`].
pub trait PositiveOutcome {
    /// Returns the limit, the units left, and the time to refill one unit, if known.
    fn left(&self) -> Option<(u32, u32, Duration)>;
}

impl PositiveOutcome for () {
    fn left(&self) -> Option<(u32, u32, Duration)> {
        None
    }
}

impl PositiveOutcome for StateSnapshot {
    fn left(&self) -> Option<(u32, u32, Duration)> {
        let quota = self.quota();
        let limit = quota.burst_size().get();
        Some((limit, self.remaining_burst_capacity(), quota.replenish_interval()))
    }
}

impl<M, C, W> GovernorStore<M, C, W>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    W: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>>,
    W::PositiveOutcome: PositiveOutcome,
{
    fn decide(&self, charge: &Charge<'_>, cost: NonZeroU32) -> Decision {
        let rule = charge.rule();
        let decision = match self.0.check_key_n(charge.key(), cost) {
            Ok(Ok(admission)) => Decision::allow().with_outcome(match admission.left() {
                None => Outcome::unknown(rule, 0, Some(Duration::ZERO)),
                Some((limit, remaining, interval)) => {
                    // governor reports whole units, so both times are upper bounds.
                    let full = interval.saturating_mul(limit - remaining.min(limit));
                    let next = full.min(interval);
                    Outcome::full(rule, 0, limit)
                        .with_remaining(remaining)
                        .with_reset_after(full)
                        .with_next_after(next)
                }
            }),
            Ok(Err(denial)) => {
                let wait = denial.wait_time_from(self.0.clock().now());
                // A denial needs a wait above zero.
                let wait = wait.max(Duration::from_nanos(1));
                let (limit, interval) =
                    (denial.quota().burst_size(), denial.quota().replenish_interval());
                let missing = limit.get().saturating_sub(cost.get());
                let full = wait.saturating_add(interval.saturating_mul(missing));
                let remaining = remaining(wait, interval, cost);
                let next = wait.saturating_sub(interval.saturating_mul(cost.get() - remaining - 1));
                let outcome = Outcome::full(rule, 0, limit.get())
                    .with_remaining(remaining)
                    .with_reset_after(full)
                    .with_next_after(next)
                    .with_retry_after(Some(wait));
                Decision::deny().with_outcome(outcome)
            }
            // governor does not report the units left if the cost can never fit.
            Err(_) => Decision::deny().with_outcome(Outcome::unknown(rule, 0, None)),
        };
        decision.with_source(Source::Governor)
    }
}

/// Returns the units left after a denial. `wait` is the time until `cost` units are available.
fn remaining(wait: Duration, interval: Duration, cost: NonZeroU32) -> u32 {
    let lacking = wait.as_nanos().div_ceil(interval.as_nanos().max(1));
    cost.get().saturating_sub(u32::try_from(lacking).unwrap_or(u32::MAX))
}

/// Returns the charge and its cost if governor can decide it.
fn single<'a>(charges: &'a [Charge<'_>]) -> Result<(&'a Charge<'a>, NonZeroU32), Unsupported> {
    let [charge] = charges else { return Err(SEVERAL) };
    let [quota] = charge.quotas() else { return Err(SEVERAL) };
    no_slots(charges)?;
    if quota.is_blocked() {
        return Err(BLOCKED);
    }
    if charge.headroom() > 0 || !charge.max_wait().is_zero() {
        return Err(QUEUE);
    }
    if charge.is_report_only() {
        return Err(REPORT);
    }
    NonZeroU32::new(charge.cost()).map(|cost| (charge, cost)).ok_or(LOOK)
}

impl<M, C, W> Store for GovernorStore<M, C, W>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    C::Instant: Reference,
    W: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>>,
    W::PositiveOutcome: PositiveOutcome,
{
    type Error = Unsupported;
    type Future = Never<Result<Decision, Unsupported>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        Answer::Now(match op {
            Op::Take(charges) => single(charges).map(|(charge, cost)| self.decide(charge, cost)),
            Op::Peek(_) => Ok(Decision::unsupported()),
            _ => Err(SETTLE),
        })
    }

    fn health(&self) -> BoxFuture<Health> {
        Box::pin(ready(Health::healthy("governor", "in this process")))
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        single(charges).map(|_| ())
    }
}
