//! `Store` for references to stores.

use std::sync::Arc;

use super::{Answer, BoxFuture, Charge, Health, Op, Store, Unsupported};
use crate::decision::Decision;

macro_rules! forward {
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

            fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
                (**self).supports(charges)
            }

            fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
                (**self).register(charges)
            }

            fn isolates_failures(&self) -> bool {
                (**self).isolates_failures()
            }

            fn health(&self) -> BoxFuture<Health> {
                (**self).health()
            }
        }
    )*};
}

forward!(&S, Arc<S>, Box<S>);
