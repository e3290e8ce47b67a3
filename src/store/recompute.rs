//! Recomputes outcomes for another cost.

use crate::{
    algorithm::{Demand, gcra::Gcra},
    decision::Outcome,
    store::Charge,
};

/// Returns `outcome` for the demand `ask`. An outcome of another algorithm than GCRA is unchanged.
pub(super) fn recompute(outcome: &Outcome, charge: &Charge<'_>, ask: Demand) -> Outcome {
    let gcra = charge.quotas().get(outcome.place()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(outcome.reset_ns(), 0, ask);
        Outcome::with(outcome.rule(), outcome.place(), step.snapshot)
    })
}
