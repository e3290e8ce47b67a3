//! A store chosen at run time.

use std::{sync::Arc, time::Duration};

use super::{Answer, BoxFuture, Charge, Condition, Store, Unsupported};
use crate::decision::Decision;

/// Any store whose error is `E`; made by [`Store::boxed`].
///
/// ```
/// use std::{convert::Infallible, sync::Arc};
/// use tower_sluice::{LocalStore, Store, store::DynStore};
///
/// let store: Arc<DynStore<Infallible>> = LocalStore::new().boxed();
/// ```
pub type DynStore<E> = dyn Store<Error = E, Future = BoxFuture<Result<Decision, E>>> + Send + Sync;

const _: Option<&DynStore<super::BoxError>> = None;

/// A store whose later answers are boxed, behind [`Store::boxed`].
#[derive(Clone, Debug)]
pub struct Boxed<S>(Arc<S>);

impl<S> Boxed<S> {
    pub(super) fn new(store: S) -> Self {
        Self(Arc::new(store))
    }
}

impl<S> Store for Boxed<S>
where
    S: Store,
    S::Future: 'static,
{
    type Error = S::Error;
    type Future = BoxFuture<Result<Decision, S::Error>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        boxed(self.0.take(charges))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        boxed(self.0.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        boxed(self.0.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        boxed(self.0.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        boxed(self.0.unblock(charge))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        self.0.health()
    }
}

fn boxed<F: Future + Send + 'static>(answer: Answer<F>) -> Answer<BoxFuture<F::Output>> {
    match answer {
        Answer::Now(output) => Answer::Now(output),
        Answer::Later(future) => Answer::Later(Box::pin(future)),
    }
}
