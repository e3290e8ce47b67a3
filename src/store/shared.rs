//! Implements `Store` for references and smart pointers to stores.

use std::sync::Arc;

use super::{Answer, BoxFuture, Charge, Health, Op, Store, Unsupported, wrapper::forward};
use crate::decision::Decision;

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
