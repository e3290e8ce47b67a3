//! Keeps the local accounts as deep in debt as the shared ones.

use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{AtOnce, Fallback, share::shares};
use crate::{
    decision::{Decision, Outcome},
    key::Key,
    store::{Charge, Store},
};

impl<S, L> Fallback<S, L>
where
    L: Store<Error = Infallible, Future = AtOnce>,
{
    /// Charges each local account late until it has no more than its share of what `said` tells is
    /// left. Only raises debt, since answers overtake one another; a refund of `back` units may
    /// lower it by its share, and not below what is told.
    pub(super) fn mirror(&self, charges: &[Charge<'_>], said: &Decision, back: u64) {
        if said.is_blocked() {
            return self.mirror_block(charges, said);
        }
        let mut outcomes = said.outcomes();
        for charge in charges {
            let (told, others) = outcomes.split_at(charge.placed().count().min(outcomes.len()));
            outcomes = others;
            self.mirror_one(charge, told, back.div_ceil(self.processes.get().into()));
        }
    }

    fn mirror_one(&self, charge: &Charge<'_>, told: &[Outcome], back: u64) {
        let local = &self.stores.local;
        shares(&[charge.cost(0)], self.processes, |shares| {
            // two that saw the same account would charge it twice
            let _alone = self.stripes().lock(charge.key());
            let here = local.take(shares).now();
            for (told, here) in told.iter().zip(here.outcomes()) {
                let of_it = told.rule() == here.rule() && told.place() == here.place();
                let late = here.left() - self.share_left(told, here);
                let late = late.max(-i64::try_from(back).unwrap_or(i64::MAX));
                if of_it && told.is_known() && late != 0 {
                    self.stores.journal.cap(charge, here.place(), here.owed());
                    let _ = local.settle(&shares[0].only(here.place()), -late).now();
                }
            }
        });
    }

    /// What the local account may have left where the shared one has what is `told`.
    fn share_left(&self, told: &Outcome, here: &Outcome) -> i64 {
        if told.left() >= told.limit().into() {
            return here.limit().into();
        }
        told.left().div_euclid(self.processes.get().into())
    }

    fn mirror_block(&self, charges: &[Charge<'_>], refusal: &Decision) {
        for outcome in refusal.outcomes() {
            let time = outcome.retry_after().unwrap_or(Duration::MAX);
            for charge in charges.iter().filter(|charge| charge.rule() == outcome.rule()) {
                let _ = self.stores.local.block(charge, time).now();
            }
        }
    }

    fn stripes(&self) -> &Stripes {
        &self.stores.stripes
    }
}

/// Locks, one for many keys.
#[derive(Debug, Default)]
pub(super) struct Stripes {
    seed: RandomState,
    locks: [Mutex<()>; STRIPES],
}

const STRIPES: usize = 32;

impl Stripes {
    fn lock(&self, key: &Key) -> MutexGuard<'_, ()> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let stripe = self.seed.hash_one(key) as usize % STRIPES;
        self.locks[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
