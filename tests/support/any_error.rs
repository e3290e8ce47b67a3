//! A store of any type and with a boxed error, for tests of wrappers in every order.

use std::sync::Arc;

use tower::BoxError;
use tower_sluice::{
    Decision, LocalStore, Store, StoreExt,
    store::{
        Answer, BoxFuture, Charge, Context, DynStore, FailureDomain, Health, Op, Timeout,
        Unsupported,
    },
};

/// A shared store of any type.
pub(crate) type Any = Arc<DynStore<BoxError>>;

/// A wrapper of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wrapper {
    Timeout,
    Breaker,
    DenyCache,
    Leases,
    Fallback,
    FailOpen,
    FailClosed,
}

impl Wrapper {
    pub(crate) fn wrap(self, store: Any) -> Any {
        match self {
            Self::Timeout => AnyError(store.timeout(Timeout::DEFAULT)).boxed(),
            Self::Breaker => AnyError(store.breaker()).boxed(),
            Self::DenyCache => AnyError(store.deny_cache()).boxed(),
            Self::Leases => AnyError(store.leases(5)).boxed(),
            Self::Fallback => AnyError(store.fallback(LocalStore::new(), 1)).boxed(),
            Self::FailOpen => AnyError(store.fail_open()).boxed(),
            Self::FailClosed => AnyError(store.fail_closed()).boxed(),
        }
    }
}

/// A store with a boxed error, so that every wrapper fits around it.
pub(crate) struct AnyError<S>(pub(crate) S);

impl<S> Store for AnyError<S>
where
    S: Store + Send + Sync + 'static,
    S::Future: 'static,
{
    type Error = BoxError;
    type Future = BoxFuture<Result<Decision, BoxError>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        match self.0.call(op, context) {
            Answer::Now(answer) => Answer::Now(answer.map_err(Into::into)),
            Answer::Later(later) => {
                Answer::Later(Box::pin(async { later.await.map_err(Into::into) }))
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.supports(charges)
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        self.0.failure_domains(op)
    }

    fn health(&self) -> BoxFuture<Health> {
        self.0.health()
    }
}
