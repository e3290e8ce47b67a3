//! Recomputes an outcome for a different cost.

use crate::{
    algorithm::{Demand, gcra::Gcra},
    decision::Outcome,
    store::Charge,
};

/// Returns the outcome that `ask` would have on the same account, if nothing was charged in
/// between. For algorithms other than GCRA, returns `outcome` unchanged.
pub(super) fn recompute(outcome: &Outcome, charge: &Charge<'_>, ask: Demand) -> Outcome {
    let gcra = charge.quotas().get(outcome.place()).and_then(Gcra::counting);
    gcra.map_or(*outcome, |gcra| {
        let step = gcra.look(outcome.reset_ns(), 0, ask);
        Outcome::with(outcome.rule(), outcome.place(), step.snapshot)
    })
}
