//! The rules that charge the accounts of a store.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::{Charge, Unsupported};
use crate::{quota::Quota, rule::RuleName};

/// The quotas of each rule that a layer registered with a store.
///
/// Two layers with different quotas for one rule would charge the same accounts. Under GCRA, a key
/// that uses one layer would be denied by the other without reason. The windowed algorithms are
/// worse: when the short window of an account ends, the account starts again and loses the units
/// charged in the long window.
#[derive(Debug, Default)]
pub(super) struct KnownRules(Mutex<HashMap<RuleName, Vec<Quota>>>);

impl KnownRules {
    /// Registers the quotas of `charges`. Fails if a rule was registered with different quotas.
    pub(super) fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = |charge: &&Charge<'_>| {
            known.get(&charge.rule()).is_some_and(|quotas| quotas != charge.quotas())
        };
        if let Some(charge) = charges.iter().find(differs) {
            let what = format!(
                "rule {} has different quotas in another layer on this store, and both would \
                 charge the same accounts; rename one, or give each layer its own store",
                charge.rule()
            );
            return Err(Unsupported(what.into()));
        }
        known.extend(charges.iter().map(|charge| (charge.rule(), charge.quotas().to_vec())));
        Ok(())
    }
}
