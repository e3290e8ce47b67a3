//! A charge whose cost is adjusted later.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{Answer, Certain, Charge, Never, Op, OwnedCharges, Store, StoreExt};
use crate::{
    decision::{Cause, Decision},
    observe,
};

/// The units that a [`Limiter`](crate::Limiter) took, to adjust the charge to its actual cost.
///
/// [`Limiter::reserve`](crate::Limiter::reserve) returns it, and
/// [`Limiter::adjust_to`](crate::Limiter::adjust_to) takes it. A reservation that is dropped leaves the charge
/// as it is. It holds the slots of concurrent quotas, as its decision does.
#[derive(Debug)]
#[must_use = "the units may not have been taken, and are adjusted by the reservation: check \
              `is_allowed()`, and pass it to `adjust_to`"]
pub struct Reservation {
    decision: Decision,
    charges: Box<OwnedCharges>,
}

impl Reservation {
    /// Returns `true` if the units were taken.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Adjusts the charge in every quota to `units`.
    pub(crate) fn adjust<S: Store>(self, store: &S, units: u32)
    where
        S::Future: 'static,
    {
        let Self { decision, charges } = self;
        if !decision.is_allowed() || decision.cause().is_undone() {
            return;
        }
        charges.with(|charges| {
            for charge in charges
                .iter()
                .filter(|charge| decision.charged(charge.rule))
            {
                adjust_charge(store, charge, &decision, units);
            }
        });
    }
}

/// Adjusts a charge, which `taken` has made, to `units`.
fn adjust_charge<S: Store>(store: &S, charge: &Charge<'_>, taken: &Decision, units: u32)
where
    S::Future: 'static,
{
    let before = charge.cost;
    if units < before {
        store.undo(&[*charge], taken, Some(before - units));
    } else if units > before {
        let rule = charge.rule;
        let made = store.adjust(charge, i64::from(units - before));
        made.detach(move |made| {
            if is_lost(made) {
                observe::late_charge_lost(rule);
            }
        });
    }
}

/// Returns `true` if a late charge was not made.
fn is_lost<E>(made: Result<Decision, E>) -> bool {
    made.map_or(true, |made| {
        made.cause().is_undone() || made.cause() == Cause::Unsupported
    })
}

/// Takes the units of a charge. Returns the reservation.
pub(crate) fn reserve<S: Store>(store: &S, charge: Charge<'_>) -> Answer<ReserveFuture<S::Future>> {
    let taken = [charge];
    let charges = Box::new(OwnedCharges::from(&taken[..]));
    match store.call(Op::Take(&taken), &super::Context::default()) {
        Answer::Now(answer) => {
            Answer::Now(answer.map(|decision| Reservation { decision, charges }))
        }
        Answer::Later(inner) => Answer::Later(ReserveFuture {
            inner,
            charges: Some(charges),
        }),
    }
}

pin_project! {
    /// Future of [`Limiter::reserve`](crate::Limiter::reserve), around the future of the store.
    #[derive(Debug)]
    pub struct ReserveFuture<F> {
        #[pin]
        inner: F,
        charges: Option<Box<OwnedCharges>>,
    }
}

impl<E, F: Future<Output = Result<Decision, E>>> Future for ReserveFuture<F> {
    type Output = Result<Reservation, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let Some(charges) = this.charges.take() else {
            panic!("a reservation was polled after it completed");
        };
        Poll::Ready(answer.map(|decision| Reservation { decision, charges }))
    }
}

impl Answer<Certain<ReserveFuture<Never<Result<Decision, Infallible>>>>> {
    /// Returns the reservation of a store that answers immediately and cannot fail.
    pub fn now(self) -> Reservation {
        match self {
            Self::Now(reservation) => reservation,
            Self::Later(later) => match later.inner.inner.0 {},
        }
    }
}
