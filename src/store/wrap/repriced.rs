//! What is known of an account at one cost, told of another.

use crate::{
    algorithm::{Ask, gcra::Gcra},
    decision::Outcome,
    store::Charge,
};

/// What the same account says to `ask`, where GCRA counts it; nothing was charged in between.
pub(super) fn repriced(outcome: &Outcome, charge: &Charge<'_>, ask: Ask) -> Outcome {
    let gcra = charge.quotas().get(outcome.place()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(gcra.stored(outcome.ahead()), 0, ask);
        Outcome::with(outcome.rule(), outcome.place(), step.numbers)
    })
}
