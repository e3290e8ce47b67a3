//! The rules that are registered with a store.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use super::{Charge, Unsupported};
use crate::{name::RuleName, quota::Quota};

/// The registered quotas of each rule, to find layers that give one rule different quotas.
#[derive(Debug, Default)]
pub(super) struct KnownRules(Mutex<HashMap<RuleName, Vec<Quota>>>);

impl KnownRules {
    /// Registers the quotas of fixed charges. Fails if a rule is registered with other quotas.
    pub(super) fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let fixed = || charges.iter().filter(|charge| charge.is_fixed());
        if fixed().next().is_none() {
            return Ok(());
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = |charge: &&Charge<'_>| {
            known.get(&charge.rule()).is_some_and(|quotas| quotas != charge.quotas())
        };
        if let Some(charge) = fixed().find(differs) {
            let what = format!(
                "rule {} has different quotas in another layer on this store, and both would \
                 charge the same accounts; rename one, or give each layer its own store",
                charge.rule()
            );
            return Err(Unsupported(what.into()));
        }
        known.extend(fixed().map(|charge| (charge.rule(), charge.quotas().to_vec())));
        Ok(())
    }
}
