//! A reference to a store is a store.

use std::{sync::Arc, time::Duration};

use super::{Answer, BoxFuture, Charge, Condition, Store, Unsupported};
use crate::decision::Decision;

impl<S: Store + ?Sized> Store for &S {
    type Error = S::Error;
    type Future = S::Future;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        (**self).take(charges)
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        (**self).settle(charge, units)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        (**self).reset(charge)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        (**self).block(charge, time)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        (**self).unblock(charge)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        (**self).undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        (**self).check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        (**self).announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        (**self).health()
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    type Error = S::Error;
    type Future = S::Future;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        (**self).take(charges)
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        (**self).settle(charge, units)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        (**self).reset(charge)
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        (**self).block(charge, time)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        (**self).unblock(charge)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        (**self).undo(charges, taken, units);
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        (**self).check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        (**self).announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        (**self).health()
    }
}
