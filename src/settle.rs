//! Charges adjusted to the real cost of a request, known only after the response.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::AcqRel},
    },
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    decision::Decision,
    name::RuleName,
    store::{Answer, BlockError, Charge, OwnedCharges, Store},
};

/// The adjustment of a charge once its real cost is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// It stands, unless a [`Reservation`] that is still held settles it.
    #[default]
    Keep,
    /// It is given back, as far as it has not flowed back by itself.
    Refund,
    /// It becomes so many units: the rest is given back as far as it has not flowed back by itself,
    /// or is charged late.
    Charge(u32),
}

/// The charges of a request, in the extensions of that request: the handler settles them to what
/// was really used. See [`reserve`](crate::RateLimitLayer::reserve).
///
/// Each rule's charge is settled once; what is said later is ignored. A charge that becomes less is
/// [undone](Store::undo) in part: units that have flowed back since are not given back again, so a
/// handler that settles an hour later banks nothing. One that becomes more is charged late.
///
/// When the last clone is dropped, what was not settled stays charged, whatever became of the
/// request: a client that goes away gets nothing back. So a handler may move the reservation into
/// the body it streams, and settle at its end.
///
/// It is an axum extractor, too (feature `axum`).
///
/// ```
/// use tower_sluice::{Reservation, UnknownRule};
///
/// async fn complete(reservation: Reservation) -> Result<String, String> {
///     let (text, tokens) = (String::from("…"), 42);
///     let settled: Result<(), UnknownRule> = reservation.settle_rule("tokens", tokens);
///     settled.map_err(|wrong| wrong.to_string())?;
///     Ok(text)
/// }
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Held>);

struct Held {
    accounts: Arc<dyn Settler>,
    charges: OwnedCharges,
    decision: Decision,
    unsettled: Unsettled,
    /// Every rule of the layer.
    rules: Arc<[RuleName]>,
    /// For each charge: settled, or never charged.
    settled: SmallVec<[AtomicBool; 8]>,
}

/// The end of a charge that nobody settled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Unsettled {
    #[default]
    Keep,
    Refund,
    AtLeast(u32),
}

impl Reservation {
    pub(crate) fn new(
        accounts: Arc<dyn Settler>,
        charges: OwnedCharges,
        decision: Decision,
        (unsettled, rules): (Unsettled, Arc<[RuleName]>),
        charged: bool,
    ) -> Self {
        let settled = (0..charges.len()).map(|_| AtomicBool::new(!charged)).collect();
        Self(Arc::new(Held { accounts, charges, decision, unsettled, rules, settled }))
    }

    /// The decision that admitted the request.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Settles every rule's charge to `units`.
    pub fn settle(&self, units: u32) {
        self.0.adjust(None, |_| units);
    }

    /// Settles the charge of the rule `name` to `units`; other rules' charges stay open. A rule that
    /// did not charge this request has nothing to settle.
    ///
    /// # Errors
    ///
    /// When the layer has no rule of this name; the error names those it has. Nothing is settled.
    pub fn settle_rule(&self, name: &str, units: u32) -> Result<(), UnknownRule> {
        if !self.0.rules.iter().any(|rule| rule.as_str() == name) {
            return Err(UnknownRule { name: name.into(), known: self.0.rules.clone() });
        }
        self.0.adjust(Some(name), |_| units);
        Ok(())
    }

    /// Gives every rule's charge back, as far as it has not flowed back by itself.
    pub fn refund(&self) {
        self.0.adjust(None, |_| 0);
    }

    /// Denies the keys of this request for `time`, under every rule that charged it. A denial is
    /// free by design; this is how to punish.
    ///
    /// A store that answers later, such as Redis, is not waited for: `Ok` means that the block was
    /// sent.
    ///
    /// # Errors
    ///
    /// When one of the keys could not be blocked: [`BlockError::Full`] if the table of blocks is
    /// full. The others are blocked.
    pub fn block(&self, time: Duration) -> Result<(), BlockError> {
        self.0.charges.with(|charges| {
            let block = |charge| self.0.accounts.block(charge, time);
            charges.iter().map(block).fold(Ok(()), Result::and)
        })
    }

    /// Ends a [`block`](Reservation::block) of the keys of this request.
    pub fn unblock(&self) {
        self.0.charges.with(|charges| charges.iter().for_each(|c| self.0.accounts.unblock(c)));
    }

    /// Ends the accounts of this request, as if its keys had never been seen.
    pub fn reset(&self) {
        self.0.charges.with(|charges| charges.iter().for_each(|c| self.0.accounts.reset(c)));
    }

    pub(crate) fn apply(&self, settle: Settle) {
        match settle {
            Settle::Keep => {}
            Settle::Refund => self.refund(),
            Settle::Charge(units) => self.settle(units),
        }
    }
}

impl Held {
    /// Has the open charges of the rule, or of all rules, become what `cost` makes of them.
    fn adjust(&self, rule: Option<&str>, cost: impl Fn(u32) -> u32) {
        self.charges.with(|charges| {
            for (charge, settled) in charges.iter().zip(&self.settled) {
                let other = rule.is_some_and(|name| charge.rule().as_str() != name);
                let other = other || !self.decision.charged(charge.rule());
                if other || settled.swap(true, AcqRel) {
                    continue;
                }
                let (before, after) = (charge.units(), cost(charge.units()));
                if after < before {
                    self.accounts.undo(charge, &self.decision, before - after);
                } else if after > before {
                    self.accounts.charge_late(charge, after - before);
                }
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.unsettled {
            Unsettled::Keep => {}
            Unsettled::Refund => self.adjust(None, |_| 0),
            Unsettled::AtLeast(units) => self.adjust(None, |charged| charged.max(units)),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("unsettled", &self.0.unsettled).finish_non_exhaustive()
    }
}

/// A [`Reservation`] was asked to settle a rule that its layer does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRule {
    name: Box<str>,
    known: Arc<[RuleName]>,
}

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown rule `{}`, expected one of ", self.name)?;
        for (at, rule) in self.known.iter().enumerate() {
            write!(f, "{}`{rule}`", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Error for UnknownRule {}

#[cfg(feature = "axum")]
pub use self::extract::NoReservation;

#[cfg(feature = "axum")]
mod extract {
    use std::{error::Error, fmt};

    use axum::{
        extract::FromRequestParts,
        response::{IntoResponse, Response},
    };
    use http::{StatusCode, request::Parts};

    use super::Reservation;

    /// The rejection of the extractor [`Reservation`] where no layer provides one: 500, with the
    /// fix in its text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NoReservation;

    impl fmt::Display for NoReservation {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "the request has no `Reservation`; call `.reserve()` on the RateLimitLayer around \
                 this handler",
            )
        }
    }

    impl Error for NoReservation {}

    impl IntoResponse for NoReservation {
        fn into_response(self) -> Response {
            (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
        }
    }

    /// The reservation of this request; where several layers provide one, that of the innermost.
    impl<S: Sync> FromRequestParts<S> for Reservation {
        type Rejection = NoReservation;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoReservation> {
            parts.extensions.get().cloned().ok_or(NoReservation)
        }
    }
}

/// A store whose answers nobody waits for.
pub(crate) trait Settler: Send + Sync {
    fn undo(&self, charge: &Charge<'_>, taken: &Decision, units: u32);
    fn charge_late(&self, charge: &Charge<'_>, units: u32);
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Result<(), BlockError>;
    fn unblock(&self, charge: &Charge<'_>);
    fn reset(&self, charge: &Charge<'_>);
}

impl<S> Settler for S
where
    S: Store + Send + Sync,
    S::Future: 'static,
{
    fn undo(&self, charge: &Charge<'_>, taken: &Decision, units: u32) {
        Store::undo(self, &[*charge], taken, Some(units));
    }

    fn charge_late(&self, charge: &Charge<'_>, units: u32) {
        detach(Store::settle(self, charge, -i64::from(units)));
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Result<(), BlockError> {
        match Store::block(self, charge, time).blocked() {
            Answer::Now(Ok(_)) => Ok(()),
            Answer::Now(Err(BlockError::Full)) => Err(BlockError::Full),
            Answer::Now(Err(_)) => Err(BlockError::Unavailable),
            later @ Answer::Later(_) => {
                detach(later);
                Ok(())
            }
        }
    }

    fn unblock(&self, charge: &Charge<'_>) {
        detach(Store::unblock(self, charge));
    }

    fn reset(&self, charge: &Charge<'_>) {
        detach(Store::reset(self, charge));
    }
}

/// A later answer goes on by itself where there is a runtime; a `Drop` cannot wait for it.
fn detach<F: Future + Send + 'static>(answer: Answer<F>) {
    if let (Answer::Later(future), Ok(runtime)) = (answer, tokio::runtime::Handle::try_current()) {
        drop(runtime.spawn(async move {
            future.await;
        }));
    }
}
