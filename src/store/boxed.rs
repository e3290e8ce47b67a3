//! Stores behind pointers, and stores whose type is chosen at run time.

use std::sync::Arc;

use super::{Answer, BoxFuture, Charge, Health, Op, Store, Unsupported, wrapper::forward};
use crate::decision::Decision;

/// Store of any type, with the error `E`.
///
/// Created by [`StoreExt::boxed`](super::StoreExt::boxed).
///
/// ```
/// use std::{convert::Infallible, sync::Arc};
/// use tower_sluice::{LocalStore, StoreExt, store::DynStore};
///
/// let store: Arc<DynStore<Infallible>> = LocalStore::new().boxed();
/// ```
pub type DynStore<E> = dyn Store<Error = E, Future = BoxFuture<Result<Decision, E>>> + Send + Sync;

const _: Option<&DynStore<super::BoxError>> = None;

/// Store with boxed futures, created by [`StoreExt::boxed`](super::StoreExt::boxed).
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

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        match self.0.call(op) {
            Answer::Now(output) => Answer::Now(output),
            Answer::Later(future) => Answer::Later(Box::pin(future)),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    forward!(self => self.0);

    fn health(&self) -> BoxFuture<Health> {
        self.0.health()
    }
}

macro_rules! for_pointers {
    ($($pointer:ty),*) => {$(
        impl<S: Store + ?Sized> Store for $pointer {
            type Error = S::Error;
            type Future = S::Future;

            #[inline]
            fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
                (**self).call(op)
            }

            fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
                (**self).undo(charges, taken, units);
            }

            forward!(self => (**self));

            fn health(&self) -> BoxFuture<Health> {
                (**self).health()
            }
        }
    )*};
}

for_pointers!(&S, Arc<S>, Box<S>);
