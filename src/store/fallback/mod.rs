//! A store in this process that decides while the shared store fails.

mod mirror;

use std::{convert::Infallible, fmt, num::NonZeroU32, sync::Arc};

use smallvec::SmallVec;

use self::mirror::Stripes;
use super::{
    outage_state::OutageState,
    setting::{SettingError, literal},
    wrapper::{WrapperCall, WrapperFuture},
};
use crate::{
    decision::{Decision, Source},
    quota::Quota,
    store::{
        Answer, BoxFuture, Charge, FailureDomain, Health, Never, Op, OwnedOp, Store, Unsupported,
    },
};

/// The future of a local store, which answers immediately.
type Immediate = Never<Result<Decision, Infallible>>;

/// Store that decides with a local store while its inner store fails.
///
/// During an outage, a limit still applies and the service remains available. The
/// [source](Decision::source) of a local decision is [`Source::Fallback`].
///
/// - **Shares.** Each of `n` processes ([`instances`](Fallback::instances)) allows its share of
///   each quota. A quota with a burst of `B` units and one unit per time `T` becomes a burst of
///   `B/n` units and one unit per time `n·T`. So does a
///   [token bucket](crate::Algorithm::TokenBucket), which refills continuously if `n` is above 1. In
///   an outage of length `Δ`, all processes together allow at most `B + Δ/T` units. A share is
///   at least one unit: rounding may add `n` units, or `n` units per period under algorithms that
///   count by periods. A share is the same for every cost, so a request whose cost is above the share
///   is denied. [Headroom](Charge::headroom) is divided too, and rounded down.
/// - **Mirrored decisions.** Every decision of the inner store is applied to the local account.
///   Keys therefore do not get a fresh quota in an outage, and blocked keys stay blocked.
/// - **Slots.** The local store also holds the slots that this process holds in the inner store. An
///   outage therefore starts with the requests that really run.
/// - **After an outage.** The inner store does not know the charges of the outage, and they are not
///   made up for. A key may use the units that it used in the outage once more: at most its share in
///   each process and, under algorithms that count by periods, in each period.
///
/// [`undo`](Store::undo) uses the store that made the charge. [`adjust`](crate::StoreExt::adjust)
/// uses the inner store, and the local store while the inner one fails.
/// [`reset`](crate::StoreExt::reset), [`block`](crate::StoreExt::block) and
/// [`unblock`](crate::StoreExt::unblock) apply to both stores.
///
/// Clones share both stores.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let local = LocalStore::with_capacity(100_000);
/// let store = shared.timeout(Timeout::DEFAULT).breaker().fallback(local).instances(4);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
///
/// # Limitations
///
/// - If a call to the inner store times out, both stores may charge the request.
/// - A refund after an outage goes to the inner store, even if the charge was made in the outage. A key
///   may then use these units a second time.
/// - If the inner store undoes a charge, the local account keeps the charge until its units are
///   refilled. Keys with refunded requests have fewer units left at the start of an outage.
/// - During an outage, a `reset`, a `block`, an `unblock` or a refund applies only to this process.
///   The source of such a decision is [`Source::Fallback`].
/// - Slots that were taken in an outage are not counted by the inner store afterwards.
/// - If another process unblocks a key, this process may still deny the key during an outage, until
///   the original end of the block.
/// - The local store needs room for all keys that are in debt at once, as if there were no inner
///   store.
pub struct Fallback<S, L> {
    stores: Arc<Stores<S, L>>,
    instances: NonZeroU32,
}

struct Stores<S, L> {
    inner: S,
    local: L,
    outages: OutageState,
    stripes: Stripes,
}

impl<S: Store, L> Fallback<S, L> {
    pub(crate) fn new(inner: S, local: L) -> Self {
        let outages = OutageState::default();
        let stores = Stores { inner, local, outages, stripes: Stripes::default() };
        Self { stores: Arc::new(stores), instances: NonZeroU32::MIN }
    }

    /// Sets the number of processes that share the inner store. Defaults to 1.
    ///
    /// While the inner store fails, each process allows its part of every quota.
    ///
    /// # Panics
    ///
    /// Panics if `instances` is 0.
    #[track_caller]
    #[must_use]
    pub fn instances(self, instances: u32) -> Self {
        literal(self.try_instances(instances))
    }

    /// Fallible form of [`instances`](Fallback::instances), for a number that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if `instances` is 0. The error contains the field, its value and the fix.
    pub fn try_instances(self, instances: u32) -> Result<Self, SettingError> {
        const FIX: &str = "give at least 1, because this process counts too";
        let instances = NonZeroU32::new(instances)
            .ok_or_else(|| SettingError::new("fallback: instances", instances, FIX))?;
        Ok(Self { instances, ..self })
    }

    /// Returns `true` if the local store currently decides, for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.stores.outages.is_failing()
    }
}

impl<S, L> Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    /// Handles the answer of the inner store. After an error, the local store decides.
    fn finish(&self, op: Op<'_>, epoch: u64, answer: Result<Decision, S::Error>) -> Decision {
        match answer {
            // The inner store was not called, so it may still be failing.
            Ok(decision) if decision.source() == Source::DenyCache => decision,
            Ok(decision) if decision.source() == Source::Leased => {
                self.mirror_call(op, &decision);
                decision
            }
            Ok(decision) => {
                let is_partial = || !self.stores.inner.failure_domains(op).is_empty();
                self.stores.outages.record_success(epoch, is_partial);
                self.mirror_call(op, &decision);
                self.mirror_slots(op.charges(), decision)
            }
            Err(error) => {
                self.stores.outages.record_failure(epoch, "the local fallback decides", error);
                let decision = self.call_local(op);
                // The local store had no room for a block.
                if decision.source() == Source::Overflow {
                    return decision;
                }
                decision.with_source(Source::Fallback)
            }
        }
    }

    /// Repeats an operation of the inner store in the local store.
    fn mirror_call(&self, op: Op<'_>, decision: &Decision) {
        match op {
            Op::Take(charges) => self.mirror(charges, decision, 0),
            Op::Peek(_) => {}
            Op::Adjust(_, units) => {
                self.mirror(op.charges(), decision, units.min(0).unsigned_abs());
            }
            Op::Reset(_) | Op::Block(..) | Op::Unblock(_) => drop(self.call_local(op)),
        }
    }

    /// Calls the local store instead of the inner store.
    fn call_local(&self, op: Op<'_>) -> Decision {
        match op {
            Op::Take([]) | Op::Peek([]) => Decision::allow(),
            // The local store mirrored only a share of the charge.
            Op::Adjust(charge, units) if units < 0 => {
                self.call_share(Op::Adjust(charge, units / i64::from(self.instances.get())))
            }
            op => self.call_share(op),
        }
    }

    /// Calls the local store with this process's shares of the quotas.
    fn call_share(&self, op: Op<'_>) -> Decision {
        let local = &self.stores.local;
        with_shares(op.charges(), self.instances, |shares| local.call(op.on(shares)).now())
    }
}

impl<S, L> Store for Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    type Error = Infallible;
    type Future = WrapperFuture<S, FallbackCall<S, L>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let epoch = self.stores.outages.epoch();
        match self.stores.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(self.finish(op, epoch, answer))),
            Answer::Later(inner) => {
                let call = FallbackCall { fallback: self.clone(), op: op.into(), epoch };
                Answer::Later(WrapperFuture::new(inner, call))
            }
        }
    }

    /// Undoes a charge in the store that made the charge.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let Stores { inner, local, .. } = &*self.stores;
        if taken.source() != Source::Fallback {
            inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            with_shares(charges, self.instances, |shares| local.undo(shares, taken, units));
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.supports(charges)?;
        with_shares(charges, self.instances, |shares| local.supports(shares))
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.register(charges)?;
        with_shares(charges, self.instances, |shares| local.register(shares))
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        self.stores.inner.failure_domains(op)
    }

    fn health(&self) -> BoxFuture<Health> {
        let Stores { inner, local, outages, .. } = &*self.stores;
        let effect = "decisions are made in this process".to_owned();
        let (inner, local) = (outages.health("fallback", inner.health(), effect), local.health());
        Box::pin(async move { inner.await.around(local.await) })
    }
}

impl<S, L> Clone for Fallback<S, L> {
    fn clone(&self) -> Self {
        Self { stores: self.stores.clone(), ..*self }
    }
}

impl<S: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("inner", &self.stores.inner)
            .field("local", &self.stores.local)
            .field("instances", &self.instances)
            .field("failing", &self.stores.outages.is_failing())
            .finish_non_exhaustive()
    }
}

/// A call to the inner store of a [`Fallback`].
#[derive(Debug)]
pub struct FallbackCall<S, L> {
    fallback: Fallback<S, L>,
    op: OwnedOp,
    epoch: u64,
}

impl<S, L> WrapperCall<S> for FallbackCall<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    type Error = Infallible;

    fn finish(self, answer: Result<Decision, S::Error>) -> Result<Decision, Infallible> {
        let Self { fallback, op, epoch } = self;
        Ok(op.with(|op| fallback.finish(op, epoch, answer)))
    }
}

/// Replaces each quota by the share of one of `instances` processes, and calls `read`.
fn with_shares<T>(
    charges: &[Charge<'_>],
    instances: NonZeroU32,
    read: impl FnOnce(&[Charge<'_>]) -> T,
) -> T {
    let mut quotas = SmallVec::<[Quota; 8]>::new();
    quotas.extend(
        charges.iter().flat_map(|charge| charge.quotas()).map(|quota| quota.share(instances)),
    );
    let mut rest = quotas.as_slice();
    let shared = charges.iter().map(|charge| {
        let (quotas, others) = rest.split_at(charge.quotas().len());
        rest = others;
        Charge { quotas, ..*charge }.with_headroom(charge.headroom() / instances)
    });
    read(&shared.collect::<SmallVec<[Charge<'_>; 4]>>())
}
