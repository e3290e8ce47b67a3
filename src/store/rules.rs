//! Which rules charge the accounts of a store.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::{Charge, Unsupported};
use crate::{name::RuleName, quota::Quota};

/// The quotas of each rule that a layer brought to a store.
///
/// Two layers that give one rule other quotas would charge the same accounts. Under GCRA whoever
/// uses the one is refused by the other without reason. The windowed algorithms are worse: an
/// account whose short window has passed starts anew, and with it what it owes under a long one.
#[derive(Debug, Default)]
pub(super) struct KnownRules(Mutex<HashMap<RuleName, Vec<Quota>>>);

impl KnownRules {
    /// Remembers the quotas of `charges`, if they are those that were known.
    pub(super) fn agree(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = |charge: &&Charge<'_>| {
            known.get(&charge.rule()).is_some_and(|quotas| quotas != charge.quotas())
        };
        if let Some(charge) = charges.iter().find(differs) {
            let what = format!(
                "rule {} has other quotas in another layer on this store, and both would charge \
                 the same accounts; rename one, or give each layer a store of its own",
                charge.rule()
            );
            return Err(Unsupported(what.into()));
        }
        known.extend(charges.iter().map(|charge| (charge.rule(), charge.quotas().to_vec())));
        Ok(())
    }
}
