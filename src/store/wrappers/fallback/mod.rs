//! A store with a policy for the time in which its inner store fails.

mod fail;
mod local;
mod outage;

use std::{convert::Infallible, sync::Arc};

use self::outage::OutageState;
pub use self::{
    fail::{FailClosed, FailOpen},
    local::LocalShare,
};
use super::forward;
use crate::{
    decision::{Decision, Source},
    store::{Answer, BoxFuture, Charge, Health, Op, OwnedOp, Store, Unsupported},
};

/// Store that decides by a policy while its inner store fails.
///
/// | created by | policy | decision during an outage |
/// |---|---|---|
/// | [`fallback`](crate::StoreExt::fallback) | [`LocalShare`] | by a local store |
/// | [`fail_open`](crate::StoreExt::fail_open) | [`FailOpen`] | allowed |
/// | [`fail_closed`](crate::StoreExt::fail_closed) | [`FailClosed`] | denied, with 503 |
///
/// With feature `tracing`, an outage is logged: its beginning at warn level and its end at info
/// level. Only decisions begin or end an outage, not changes of accounts such as a refund.
///
/// [`undo`](Store::undo) uses the store that made the charge. Clones share the stores.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let local = LocalStore::with_capacity(100_000);
/// let store = shared.timeout(Timeout::DEFAULT).breaker().fallback(local).instances(4);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
#[derive(Debug)]
pub struct Fallback<S, P> {
    shared: Arc<FallbackInner<S>>,
    policy: P,
}

#[derive(Debug)]
struct FallbackInner<S> {
    inner: S,
    outages: OutageState,
}

/// Decides while the inner store of a [`Fallback`] fails.
pub trait Policy: Clone + Send + Sync + 'static {
    /// The name of the store in health reports.
    const NAME: &'static str;
    /// The handling of requests during an outage.
    const EFFECT: &'static str;
    /// The source of the decisions.
    const SOURCE: Source;

    /// Decides instead of the inner store. Returns the effect for the log, too.
    fn decide(&self, op: Op<'_>, is_supported: bool) -> (&'static str, Decision);

    /// Applies a decision of the inner store.
    fn mirror(&self, op: Op<'_>, decision: Decision) -> Decision {
        let _ = op;
        decision
    }

    /// Undoes a charge that the policy made.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let _ = (charges, taken, units);
    }

    /// Checks that the policy supports these charges.
    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let _ = charges;
        Ok(())
    }

    /// Returns the health of the store that the policy uses, if any.
    fn health(&self) -> Option<BoxFuture<Health>> {
        None
    }
}

impl<S, P> Fallback<S, P> {
    pub(crate) fn new(inner: S, policy: P) -> Self {
        Self { shared: Arc::new(FallbackInner { inner, outages: OutageState::default() }), policy }
    }

    /// Returns `true` if the policy currently decides, for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.shared.outages.is_failing()
    }
}

impl<S: Store, P: Policy> Fallback<S, P> {
    /// Handles the answer of the inner store. After an error, the policy decides.
    fn finish(&self, op: Op<'_>, epoch: u64, answer: Result<Decision, S::Error>) -> Decision {
        let (FallbackInner { inner, outages }, is_take) =
            (&*self.shared, matches!(op, Op::Take(_)));
        match answer {
            Ok(decision) => {
                // A decision without a call does not show that the inner store works.
                if is_take && !decision.source().is_known() {
                    outages.record_success(epoch, || !inner.failure_domains(op).is_empty());
                }
                self.policy.mirror(op, decision)
            }
            Err(error) => {
                let is_supported = inner.supports(op.charges()).is_ok();
                let (effect, decision) = self.policy.decide(op, is_supported);
                if is_take {
                    outages.record_failure(epoch, effect, error);
                }
                decision
            }
        }
    }
}

impl<S, P> Store for Fallback<S, P>
where
    S: Store + Send + Sync + 'static,
    P: Policy,
{
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let epoch = self.shared.outages.epoch();
        match self.shared.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(self.finish(op, epoch, answer))),
            Answer::Later(later) => {
                let (store, op) = (self.clone(), OwnedOp::from(op));
                Answer::Later(Box::pin(async move {
                    let answer = later.await;
                    Ok(op.with(|op| store.finish(op, epoch, answer)))
                }))
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != P::SOURCE {
            self.shared.inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            self.policy.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.shared.inner.supports(charges)?;
        self.policy.supports(charges)
    }

    forward!(self => self.shared.inner; failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let FallbackInner { inner, outages } = &*self.shared;
        let health = outages.health(P::NAME, inner.health(), P::EFFECT);
        let local = self.policy.health();
        Box::pin(async move {
            match local {
                Some(local) => health.await.around(local.await),
                None => health.await,
            }
        })
    }
}

impl<S, P: Clone> Clone for Fallback<S, P> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), policy: self.policy.clone() }
    }
}
