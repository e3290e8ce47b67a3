//! What a request carries past the gate: to its response, or while it waits for its place.

use std::{fmt, sync::Arc, time::Duration};

use http::Response;
use smallvec::SmallVec;

use crate::{
    decision::Decision,
    fingerprint::{Fingerprint, Secret},
    headers::{Lines, Template},
    load::InFlight,
    name::RuleName,
    observe::Started,
    settings::Classify,
    settle::Reservation,
    store::{Charge, OwnedCharges, Store},
    waiters::Waiter,
};

/// What is kept of the charges; nothing in the plain case.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    pub(crate) charges: Option<Box<OwnedCharges>>,
    /// Where quotas were chosen for this request.
    pub(crate) template: Option<Arc<Template>>,
    /// Where it passes without a charge, because there is room.
    pub(crate) spared: Option<InFlight>,
    pub(crate) started: Started,
    pub(crate) who: Who,
}

/// What stands for the keys of the charges, where the layer tells it.
#[derive(Debug, Default)]
pub(crate) struct Who(Option<Box<SmallVec<[(RuleName, Fingerprint); 2]>>>);

impl Who {
    pub(crate) fn of(charges: &[Charge<'_>], secret: Option<&Secret>) -> Self {
        let name = |secret| {
            let known = charges.iter().map(|it| (it.rule(), it.key().fingerprint(secret)));
            Box::new(known.collect())
        };
        Self(secret.map(name))
    }

    pub(crate) fn under(&self, rule: RuleName) -> Option<Fingerprint> {
        let known = self.0.as_ref()?.iter().find(|(known, _)| *known == rule)?;
        Some(known.1)
    }
}

/// What an admitted request carries to its response.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) lines: Option<Lines>,
    pub(crate) rest: Option<Box<Rest>>,
}

#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) exposed: Option<Decision>,
    pub(crate) reserved: Option<(Reservation, Option<Classify>)>,
    pub(crate) in_flight: Option<InFlight>,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").finish_non_exhaustive()
    }
}

impl Pass {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_none() && self.rest.is_none()
    }

    pub(crate) fn stamp<B>(self, mut response: Response<B>) -> Response<B> {
        if let Some(lines) = self.lines {
            lines.write(response.headers_mut());
        }
        let Some(rest) = self.rest else { return response };
        if let Some(decision) = rest.exposed {
            response.extensions_mut().insert(decision);
        }
        if let Some((reservation, Some(classify))) = rest.reserved {
            let (parts, body) = response.into_parts();
            reservation.apply(classify(&parts));
            response = Response::from_parts(parts, body);
        }
        response
    }
}

/// A place in the queue. Dropped, its charge is undone where nobody has queued behind it.
pub(crate) struct Place<S: Store> {
    store: Arc<S>,
    held: Option<Box<(Decision, Ticket)>>,
    _waiter: Waiter,
}

impl<S: Store> Place<S> {
    pub(crate) fn new(store: Arc<S>, decision: Decision, ticket: Ticket, waiter: Waiter) -> Self {
        Self { store, held: Some(Box::new((decision, ticket))), _waiter: waiter }
    }

    pub(crate) fn wait(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, |held| held.0.wait())
    }

    /// The place has come up.
    pub(crate) fn reached(mut self) -> Option<(Decision, Ticket)> {
        self.held.take().map(|held| *held)
    }
}

impl<S: Store> Drop for Place<S> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take()
            && let (decision, Ticket { charges: Some(charges), .. }) = *held
        {
            charges.with(|charges| self.store.undo(charges, &decision, None));
        }
    }
}
