//! Stores behind pointers, and stores whose type is chosen at run time.

use std::sync::Arc;

use super::{Answer, BoxFuture, Op, Store, wrapper::forward};
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

/// A store with boxed futures.
pub(super) struct Boxed<S>(pub(super) S);

impl<S: Store + 'static> Store for Boxed<S> {
    type Error = S::Error;
    type Future = BoxFuture<Result<Decision, S::Error>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        match self.0.call(op) {
            Answer::Now(output) => Answer::Now(output),
            Answer::Later(future) => Answer::Later(Box::pin(future)),
        }
    }

    forward!(self => self.0; undo, supports, failure_domains, health);
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

            forward!(self => (**self); undo, supports, failure_domains, health);
        }
    )*};
}

for_pointers!(&S, Arc<S>, Box<S>);
