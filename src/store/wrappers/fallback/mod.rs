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
    store::{Answer, BoxFuture, Charge, Health, Op, OwnedOp, Status, Store, Unsupported},
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
    inner: Arc<S>,
    policy: Arc<P>,
    outages: Arc<OutageState>,
}

/// Decides while the inner store of a [`Fallback`] fails.
trait Policy: Send + Sync + 'static {
    /// The name of the store in health reports.
    const NAME: &'static str;
    /// The handling of requests during an outage.
    const EFFECT: &'static str;
    /// The source of the decisions.
    const SOURCE: Source;

    /// Decides instead of the inner store. Returns the effect for the log, too.
    fn decide(&self, op: Op<'_>, is_supported: bool) -> (&'static str, Decision);

    /// Applies a decision of the inner store.
    fn mirror(&self, _: Op<'_>, decision: Decision) -> Decision {
        decision
    }

    /// Undoes a charge that the policy made.
    fn undo(&self, _: &[Charge<'_>], _: &Decision, _: Option<u32>) {}

    /// Checks that the policy supports these charges.
    fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Returns the health of the store that the policy uses, if any.
    fn health(&self) -> Option<BoxFuture<Health>> {
        None
    }
}

impl<S, P> Fallback<S, P> {
    pub(crate) fn new(inner: S, policy: P) -> Self {
        Self { inner: Arc::new(inner), policy: Arc::new(policy), outages: Arc::default() }
    }

    /// Returns `true` if the policy currently decides, for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.outages.is_failing()
    }
}

/// Handles the answer of the inner store. After an error, the policy decides.
fn finish<S: Store, P: Policy>(
    fallback: &Fallback<S, P>,
    op: Op<'_>,
    epoch: u64,
    answer: Result<Decision, S::Error>,
) -> Decision {
    let (Fallback { inner, policy, outages }, is_take) = (fallback, matches!(op, Op::Take(_)));
    match answer {
        Ok(decision) => {
            // A decision without a call does not show that the inner store works.
            if is_take && !decision.source().is_known() {
                outages.record_success(epoch, || !inner.failure_domains(op).is_empty());
            }
            policy.mirror(op, decision)
        }
        Err(error) => {
            let is_supported = inner.supports(op.charges()).is_ok();
            let (effect, decision) = policy.decide(op, is_supported);
            if is_take {
                outages.record_failure(epoch, effect, error);
            }
            decision
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
        let epoch = self.outages.epoch();
        match self.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(finish(self, op, epoch, answer))),
            Answer::Later(later) => {
                let (store, op) = (self.clone(), OwnedOp::from(op));
                Answer::Later(Box::pin(async move {
                    let answer = later.await;
                    Ok(op.with(|op| finish(&store, op, epoch, answer)))
                }))
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != P::SOURCE {
            self.inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            self.policy.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.supports(charges)?;
        self.policy.supports(charges)
    }

    forward!(self => self.inner; failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let (failing, inner, local) =
            (self.is_failing(), self.inner.health(), self.policy.health());
        Box::pin(async move {
            let inner = inner.await;
            let (status, detail) = match inner.status {
                _ if !inner.is_healthy() => (Status::Failing, P::EFFECT),
                Status::Unknown if failing => (Status::Failing, P::EFFECT),
                _ if failing => (Status::Healthy, "failed on the last call"),
                _ => (Status::Healthy, ""),
            };
            let health = Health::new(P::NAME, status, detail).around(inner);
            match local {
                Some(local) => health.around(local.await),
                None => health,
            }
        })
    }
}

impl<S, P> Clone for Fallback<S, P> {
    fn clone(&self) -> Self {
        let Self { inner, policy, outages } = self;
        Self { inner: inner.clone(), policy: policy.clone(), outages: outages.clone() }
    }
}
