//! Outcomes for a different cost.

use crate::{
    algorithm::{Demand, gcra::Gcra},
    decision::Outcome,
    store::Charge,
};

/// Recomputes an outcome for the demand `ask`.
///
/// Returns the outcome unchanged if the algorithm is not GCRA.
pub(super) fn recompute(outcome: &Outcome, charge: &Charge<'_>, ask: Demand) -> Outcome {
    let gcra = charge.quotas().get(outcome.place()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(outcome.reset_ns(), 0, ask);
        Outcome::with(outcome.rule(), outcome.place(), step.snapshot)
    })
}
