//! What a request really cost, known only after the response.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::AcqRel},
    },
    time::Duration,
};

use crate::{
    decision::Decision,
    store::{Answer, BlockError, Charge, OwnedCharges, Store},
};

/// What becomes of a charge once more is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// It stands, unless a [`Reservation`] that is still held settles it.
    #[default]
    Keep,
    /// It is given back.
    Refund,
    /// It becomes so many units: the rest is given back, or charged late.
    Charge(u32),
}

/// The charges of a request, in the extensions of that request: the handler settles them to what
/// was really used. See [`reserve`](crate::RateLimitLayer::reserve).
///
/// Each rule's charge is settled once; what is said later is ignored. When the last clone is
/// dropped, whatever was not settled becomes what the layer was told. So a handler may move it
/// into the body it streams: cut at the first byte, the stream still settles.
///
/// ```
/// use axum::Extension;
/// use tower_sluice::Reservation;
///
/// async fn complete(Extension(reservation): Extension<Reservation>) -> String {
///     let (text, tokens) = (String::from("…"), 42);
///     reservation.settle_rule("tokens", tokens);
///     text
/// }
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Held>);

struct Held {
    accounts: Arc<dyn Settler>,
    charges: OwnedCharges,
    decision: Decision,
    default: Settle,
    /// A bit per charge: settled, or never charged.
    settled: AtomicU64,
}

impl Reservation {
    pub(crate) fn new(
        accounts: Arc<dyn Settler>,
        charges: OwnedCharges,
        decision: Decision,
        default: Settle,
        charged: bool,
    ) -> Self {
        let settled = AtomicU64::new(if charged { 0 } else { u64::MAX });
        Self(Arc::new(Held { accounts, charges, decision, default, settled }))
    }

    /// The decision that admitted the request.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Settles every rule's charge to `units`.
    pub fn settle(&self, units: u32) {
        self.0.apply(Settle::Charge(units), None);
    }

    /// Settles the charge of the rule `name` to `units`; other rules' charges stay open.
    pub fn settle_rule(&self, name: &str, units: u32) {
        self.0.apply(Settle::Charge(units), Some(name));
    }

    /// Gives every rule's charge back.
    pub fn refund(&self) {
        self.0.apply(Settle::Refund, None);
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
        if settle != Settle::Keep {
            self.0.apply(settle, None);
        }
    }
}

impl Held {
    fn apply(&self, settle: Settle, rule: Option<&str>) {
        self.charges.with(|charges| {
            for (at, charge) in charges.iter().enumerate().take(64) {
                let other = rule.is_some_and(|name| charge.rule().as_str() != name);
                let other = other || !self.decision.charged(charge.rule());
                let bit = 1 << at;
                if other || self.settled.fetch_or(bit, AcqRel) & bit != 0 {
                    continue;
                }
                let now = match settle {
                    Settle::Keep => continue,
                    Settle::Refund => 0,
                    Settle::Charge(units) => i64::from(units),
                };
                let units = i64::from(charge.units()) - now;
                if units != 0 {
                    self.accounts.settle(charge, units);
                }
            }
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.apply(self.default, None);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("default", &self.0.default).finish_non_exhaustive()
    }
}

/// A store whose answers nobody waits for.
pub(crate) trait Settler: Send + Sync {
    fn settle(&self, charge: &Charge<'_>, units: i64);
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Result<(), BlockError>;
    fn unblock(&self, charge: &Charge<'_>);
    fn reset(&self, charge: &Charge<'_>);
}

impl<S> Settler for S
where
    S: Store + Send + Sync,
    S::Future: 'static,
{
    fn settle(&self, charge: &Charge<'_>, units: i64) {
        detach(Store::settle(self, charge, units));
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
