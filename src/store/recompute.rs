//! Recomputes outcomes for another cost.

use crate::{
    algorithm::{Demand, gcra::Gcra},
    decision::Outcome,
    store::Charge,
};

/// Returns the outcome for another demand. Only GCRA outcomes change.
pub(super) fn recompute(outcome: &Outcome, charge: &Charge<'_>, ask: Demand) -> Outcome {
    let gcra = charge.quotas().get(outcome.place()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(outcome.reset_ns(), 0, ask);
        Outcome::with(outcome.rule(), outcome.place(), step.snapshot)
    })
}
