//! A store with a policy for the time in which its inner store fails.

mod local;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::local::LocalShare;
use tower::BoxError;

use super::forward;
use crate::{
    decision::{Decision, Outcome, Source},
    log::{LogLimit, info, warn},
    store::{
        Answer, BoxFuture, Charge, Context, Health, Op, OwnedOp, Status, Store, Unsupported,
        context::OwnedContext,
    },
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
/// level. Only `take` begins or ends an outage, not `peek`, and no change of accounts such as a refund.
///
/// [`undo`](Store::undo) uses the store that made the charge. Clones share the stores.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let local = LocalStore::with_capacity(100_000);
/// let store = shared.timeout(Timeout::DEFAULT).breaker().fallback(local, 4);
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
    /// The source of the decisions.
    const SOURCE: Source;

    /// Decides instead of the inner store, which may support the charges or not.
    fn decide(&self, op: Op<'_>, context: &Context<'_>, is_supported: bool) -> Decision;

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

    /// Registers the rules of a layer.
    fn register(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
        Ok(())
    }

    /// Returns the health of the store that the policy uses, if any.
    fn health(&self) -> Option<BoxFuture<Health>> {
        None
    }
}

/// Returns the handling of requests by the policy whose decisions have this source.
fn effect(source: Source) -> &'static str {
    match source {
        Source::FailedOpen => "requests are allowed without a limit",
        Source::FailedClosed => {
            "report-only requests and those of cost 0 are allowed, and others are rejected with 503"
        }
        _ => "decisions are made in this process",
    }
}

impl<S, P> Fallback<S, P> {
    pub(crate) fn new(inner: S, policy: P) -> Self {
        Self {
            inner: Arc::new(inner),
            policy: Arc::new(policy),
            outages: Arc::default(),
        }
    }

    /// Returns `true` if the policy currently decides, for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        is_failing(self.outages.epoch())
    }
}

/// Handles the answer of the inner store. After an error, the policy decides.
fn finish<S: Store, P: Policy>(
    fallback: &Fallback<S, P>,
    op: Op<'_>,
    context: &Context<'_>,
    epoch: u64,
    answer: Result<Decision, S::Error>,
) -> Decision {
    let outages = &fallback.outages;
    let inner = &fallback.inner;
    let is_take = matches!(op, Op::Take(_));
    let error = match answer {
        Ok(decision) => {
            // A decision without a call does not show that the inner store works.
            let has_quotas = op.charges().iter().any(|charge| !charge.quotas.is_empty());
            if is_take && has_quotas && decision.cause().is_answer() {
                outages.record_success(epoch, || !inner.failure_domains(op).is_empty());
            }
            return fallback.policy.mirror(op, decision);
        }
        Err(error) => error,
    };
    let is_supported = inner.supports(op.charges()).is_ok();
    let decision = fallback.policy.decide(op, context, is_supported);
    if is_take {
        outages.record_failure(epoch, effect(decision.source()), error);
    }
    decision
}

impl<S, P> Store for Fallback<S, P>
where
    S: Store + Send + Sync + 'static,
    P: Policy,
{
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let epoch = self.outages.epoch();
        match self.inner.call(op, context) {
            Answer::Now(answer) => Answer::Now(Ok(finish(self, op, context, epoch, answer))),
            Answer::Later(later) => {
                let store = self.clone();
                let op = OwnedOp::from(op);
                let context = OwnedContext::from(context);
                Answer::Later(Box::pin(async move {
                    let answer = later.await;
                    Ok(op.with(|op| finish(&store, op, &context.get(), epoch, answer)))
                }))
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.cause() != P::SOURCE.cause() {
            self.inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            self.policy.undo(charges, taken, units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.supports(charges)?;
        self.policy.supports(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.register(charges)?;
        self.policy.register(charges)
    }

    forward!(self => self.inner; known_rules, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let failing = self.is_failing();
        let inner = self.inner.health();
        let local = self.policy.health();
        Box::pin(async move {
            let inner = inner.await;
            // The health of the inner store is newer than its last call, which counts only if the health is
            // unknown.
            let decides = !inner.is_healthy() || failing && inner.status == Status::Unknown;
            let mut health = match failing {
                _ if decides => Health::failing(P::NAME, effect(P::SOURCE)),
                true => Health::healthy(P::NAME, "failed on the last call"),
                false => Health::healthy(P::NAME, ""),
            };
            health.inner.push(inner);
            if let Some(local) = local {
                health.inner.push(local.await);
            }
            health
        })
    }
}

impl<S, P> Clone for Fallback<S, P> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            policy: self.policy.clone(),
            outages: self.outages.clone(),
        }
    }
}

/// Policy that allows requests without a charge.
///
/// No limit applies during an outage. This suits a public read API with other protection, but not a
/// login. The [source](Decision::source) of a decision during an outage is [`Source::FailedOpen`].
///
/// Charges that the inner store does not [support](crate::Store::supports) are a mistake of the
/// configuration. They are logged as a failure of the store, but such requests are denied, as by
/// [`FailClosed`], unless all their charges are report-only or have cost 0.
#[derive(Clone, Copy, Debug)]
pub struct FailOpen(pub(crate) ());

/// Policy that denies requests.
///
/// The response is a 503 with a `Retry-After`, or gRPC status 14. The limit is never exceeded, but
/// an outage of the store is an outage of the service. The [source](Decision::source) of a decision
/// during an outage is [`Source::FailedClosed`].
///
/// A request is allowed without a charge if each of its rules is
/// [report-only](crate::Rule::report_only) or has cost 0, also if the inner store does not
/// [support](crate::Store::supports) its charges. The decision reports the
/// [denial](Decision::would_deny) by a report-only rule.
#[derive(Clone, Copy, Debug)]
pub struct FailClosed {
    retry_after: Duration,
}

impl FailClosed {
    pub(crate) const POLICY: Self = Self {
        retry_after: Duration::from_secs(1),
    };
}

impl<S> Fallback<S, FailClosed> {
    /// Sets the `Retry-After` of rejections. Defaults to 1 s.
    ///
    /// # Panics
    ///
    /// Panics if it is zero.
    #[track_caller]
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        assert!(
            !retry_after.is_zero(),
            "retry_after of fail_closed is 0; give at least 1 ns"
        );
        Self {
            policy: Arc::new(FailClosed { retry_after }),
            ..self
        }
    }
}

impl Policy for FailOpen {
    const NAME: &'static str = "fail_open";
    const SOURCE: Source = Source::FailedOpen;

    fn decide(&self, op: Op<'_>, context: &Context<'_>, is_supported: bool) -> Decision {
        if let Op::Take(charges) | Op::Peek(charges) = op
            && !is_supported
            && charges
                .iter()
                .any(|charge| charge.may_deny() && !charge.quotas.is_empty())
        {
            return FailClosed::POLICY.decide(op, context, is_supported);
        }
        Decision::allow().with_source(Self::SOURCE)
    }
}

impl Policy for FailClosed {
    const NAME: &'static str = "fail_closed";
    const SOURCE: Source = Source::FailedClosed;

    fn decide(&self, op: Op<'_>, _: &Context<'_>, _: bool) -> Decision {
        let decides = matches!(op, Op::Take(_) | Op::Peek(_));
        let charges = op.charges().iter();
        let unmade = charges.filter(|charge| charge.cost > 0 || !decides);
        let mut decision = Decision::allow();
        // A charge that denies comes before those that only report.
        if let Some(charge) = unmade.min_by_key(|charge| charge.report_only) {
            let report_only = decides && charge.report_only;
            if !report_only {
                decision = Decision::deny();
            }
            let outcome = Outcome::unknown(charge.rule, 0, Some(self.retry_after));
            decision = decision.with_outcome(outcome.with_report_only(report_only));
        }
        decision.with_source(Self::SOURCE)
    }
}

/// The time without a failure after which the outage of some servers of a store has ended.
const QUIET: Duration = Duration::from_secs(1);

/// The state of a wrapped store: working or failing.
///
/// The epoch counts the state changes. An even epoch means working, and an odd epoch means failing.
/// A call changes the state only if the epoch has not changed since the call began.
#[derive(Debug, Default)]
struct OutageState {
    epoch: AtomicU64,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    last_failure: Option<Instant>,
    log: LogLimit,
}

impl OutageState {
    fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Records the failure of a call. Logs the outage, unless another was logged shortly before.
    fn record_failure(&self, epoch: u64, effect: &str, error: impl Into<BoxError>) {
        let mut history = self.history.lock();
        if !is_failing(epoch) && epoch == self.epoch() {
            self.epoch.store(epoch + 1, Release);
        }
        if is_failing(self.epoch()) {
            history.last_failure = Some(Instant::now());
            if history.log.should_log_failure() {
                drop(history);
                warn!("the store failed; {effect}: {}", error.into());
            }
        }
    }

    /// Records the success of a call. If `is_partial`, other servers of the store may still fail.
    fn record_success(&self, epoch: u64, is_partial: impl FnOnce() -> bool) {
        if !is_failing(epoch) {
            return;
        }
        let is_partial = is_partial();
        let mut history = self.history.lock();
        let is_quiet = history
            .last_failure
            .is_none_or(|last| last.elapsed() >= QUIET);
        if epoch == self.epoch() && (is_quiet || !is_partial) {
            self.epoch.store(epoch + 1, Release);
            if history.log.should_log_recovery() {
                drop(history);
                info!("the store recovered");
            }
        }
    }
}

fn is_failing(epoch: u64) -> bool {
    epoch % 2 == 1
}
