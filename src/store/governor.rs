//! Any keyed governor limiter as a store.

use std::{future::ready, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    NotUntil, RateLimiter,
    clock::{Clock, Reference},
    middleware::{RateLimitingMiddleware, StateSnapshot},
    state::keyed::KeyedStateStore,
};

use super::{Answer, BoxFuture, Charge, Condition, Never, Store, Unsupported};
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
};

const SEVERAL: Unsupported = Unsupported::new(
    "a governor limiter decides one charge under one quota; use LocalStore for several",
);
const BLOCKED: Unsupported =
    Unsupported::new("a governor limiter always admits some; use LocalStore for Quota::blocked()");
const LOOK: Unsupported =
    Unsupported::new("a governor limiter cannot look (cost 0); use LocalStore to peek");
const QUEUE: Unsupported =
    Unsupported::new("a governor limiter knows no headroom and no queue; use LocalStore");
const REPORT: Unsupported = Unsupported::new(
    "a governor limiter refuses and cannot only report; use RateLimitLayer::report_only, or \
     LocalStore",
);
const SETTLE: Unsupported =
    Unsupported::new("a governor limiter cannot settle, reset or block an account; use LocalStore");

/// A governor limiter as a store, for those who share one with other code.
///
/// The limiter decides by its **own** quota. Give the layer's rule the same one: from the rule
/// come only the quota's name and the `RateLimit-Policy` header. With governor's
/// `StateInformationMiddleware` an admission tells what is left; with the default middleware it
/// does not, and the header fields leave the quota out.
///
/// It answers one charge of at least one unit under one quota. What goes beyond is refused when
/// the layer is built, or is an error where it only shows at run time; so the layer asks for
/// [`fail_open`](Store::fail_open) or [`fail_closed`](Store::fail_closed). governor keeps every
/// key until the user calls its `retain_recent`; [`LocalStore`](crate::LocalStore) is bounded.
///
/// ```
/// use std::{num::NonZeroU32, sync::Arc};
/// use governor::RateLimiter;
/// use tower_sluice::{Key, PeerIp, Quota, RateLimitLayer, Store, store::GovernorStore};
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
    /// The store that asks `limiter`.
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

/// What a governor middleware tells of an admission: nothing (`()`) or a [`StateSnapshot`].
pub trait Admission {
    /// The limit and what remains, where it is told, with the time one unit takes to come back.
    fn left(&self) -> Option<(u32, u32, Duration)>;
}

impl Admission for () {
    fn left(&self) -> Option<(u32, u32, Duration)> {
        None
    }
}

impl Admission for StateSnapshot {
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
    W::PositiveOutcome: Admission,
{
    fn decide(&self, charge: &Charge<'_>, cost: NonZeroU32) -> Decision {
        let rule = charge.rule();
        let decision = match self.0.check_key_n(charge.key(), cost) {
            Ok(Ok(admission)) => Decision::allow().outcome(match admission.left() {
                None => Outcome::unknown(rule, 0, Some(Duration::ZERO)),
                Some((limit, remaining, interval)) => {
                    // governor tells whole units, so both times are upper bounds
                    let full = interval.saturating_mul(limit - remaining.min(limit));
                    let next = full.min(interval);
                    Outcome::new(rule, 0, limit, remaining, full, next, Some(Duration::ZERO))
                }
            }),
            Ok(Err(refusal)) => {
                let wait = refusal.wait_time_from(self.0.clock().now());
                // a refusal is a wait: the clock may have reached its end since
                let wait = wait.max(Duration::from_nanos(1));
                let (limit, interval) =
                    (refusal.quota().burst_size(), refusal.quota().replenish_interval());
                let missing = limit.get().saturating_sub(cost.get());
                let full = wait.saturating_add(interval.saturating_mul(missing));
                let remaining = remaining(wait, interval, cost);
                let next = wait.saturating_sub(interval.saturating_mul(cost.get() - remaining - 1));
                Decision::deny().outcome(Outcome::new(
                    rule,
                    0,
                    limit.get(),
                    remaining,
                    full,
                    next,
                    Some(wait),
                ))
            }
            // governor does not say what is left, only that this never fits
            Err(_) => Decision::deny().outcome(Outcome::unknown(rule, 0, None)),
        };
        decision.from_source(Source::Governor)
    }
}

/// What a refused cost left: it will fit in `wait`, at one unit per `interval`.
fn remaining(wait: Duration, interval: Duration, cost: NonZeroU32) -> u32 {
    let lacking = wait.as_nanos().div_ceil(interval.as_nanos().max(1));
    cost.get().saturating_sub(u32::try_from(lacking).unwrap_or(u32::MAX))
}

/// The one charge of at least one unit that governor can decide.
fn single<'a>(charges: &'a [Charge<'_>]) -> Result<(&'a Charge<'a>, NonZeroU32), Unsupported> {
    let [charge] = charges else { return Err(SEVERAL) };
    let [quota] = charge.quotas() else { return Err(SEVERAL) };
    if quota.is_blocked() {
        return Err(BLOCKED);
    }
    if charge.reserve() > 0 || !charge.patience().is_zero() {
        return Err(QUEUE);
    }
    if charge.is_report_only() {
        return Err(REPORT);
    }
    NonZeroU32::new(charge.units()).map(|cost| (charge, cost)).ok_or(LOOK)
}

impl<M, C, W> Store for GovernorStore<M, C, W>
where
    M: KeyedStateStore<Key>,
    C: Clock,
    C::Instant: Reference,
    W: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>>,
    W::PositiveOutcome: Admission,
{
    type Error = Unsupported;
    type Future = Never<Result<Decision, Unsupported>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        Answer::Now(single(charges).map(|(charge, cost)| self.decide(charge, cost)))
    }

    fn settle(&self, _: &Charge<'_>, _: i64) -> Answer<Self::Future> {
        Answer::Now(Err(SETTLE))
    }

    fn reset(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Err(SETTLE))
    }

    fn block(&self, _: &Charge<'_>, _: Duration) -> Answer<Self::Future> {
        Answer::Now(Err(SETTLE))
    }

    fn unblock(&self, _: &Charge<'_>) -> Answer<Self::Future> {
        Answer::Now(Err(SETTLE))
    }

    fn health(&self) -> BoxFuture<Condition> {
        Box::pin(ready(Condition::well("governor", "in this process")))
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        single(charges).map(|_| ())
    }
}
