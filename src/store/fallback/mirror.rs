//! Applies the decisions of the inner store to the local accounts.

use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;

use super::{Fallback, Immediate, with_shares};
use crate::{
    decision::{Decision, Hold, Outcome},
    key::Key,
    quota::Quota,
    store::{Charge, Op, Store},
};

impl<S, L> Fallback<S, L>
where
    L: Store<Error = Infallible, Future = Immediate>,
{
    /// Lowers the units left of each local account to this process's share of the units left in the
    /// inner store.
    ///
    /// The units left are raised only after a refund, because answers may arrive out of order.
    pub(super) fn mirror(&self, charges: &[Charge<'_>], decision: &Decision, refunded: u64) {
        if decision.is_blocked() {
            return self.mirror_block(charges, decision);
        }
        let mut outcomes = decision.outcomes();
        for charge in charges {
            let (own, others) =
                outcomes.split_at(charge.charged_quotas().count().min(outcomes.len()));
            outcomes = others;
            self.mirror_one(charge, own, refunded.div_ceil(self.instances.get().into()));
        }
    }

    /// Holds the slots of an allowed decision in the local store as well, beyond any limit.
    pub(super) fn mirror_slots(&self, charges: &[Charge<'_>], mut decision: Decision) -> Decision {
        if !decision.is_allowed() || !decision.holds_slots() {
            return decision;
        }
        const UNLIMITED: Quota = Quota::concurrent(u32::MAX);
        for charge in charges {
            if !decision.charged(charge.rule()) {
                continue;
            }
            let quotas: SmallVec<[_; 4]> = charge.quotas().iter().map(|_| UNLIMITED).collect();
            let unlimited = Charge { quotas: &quotas, ..*charge }.with_headroom(0);
            for (index, quota) in charge.charged_quotas().filter(|(_, it)| it.is_concurrent()) {
                let one = unlimited.with_quota_index(index);
                if let Some(slot) = self.stores.local.call(Op::Take(&[one])).now().take_slot() {
                    let hold = Hold::on_free(move || drop(slot));
                    decision.hold(hold.until_head(quota.sheds()));
                }
            }
        }
        decision
    }

    fn mirror_one(&self, charge: &Charge<'_>, shared: &[Outcome], refunded: u64) {
        let store = &self.stores.local;
        with_shares(&[charge.with_cost(0)], self.instances, |shares| {
            // Two threads could otherwise read the same account and both charge it.
            let _guard = self.stripes().lock(charge.key());
            let decision = store.call(Op::Take(shares)).now();
            for (shared, local) in shared.iter().zip(decision.outcomes()) {
                let same_quota = shared.rule() == local.rule() && shared.place() == local.place();
                let late = local.left() - self.share_left(shared, local);
                let late = late.max(-i64::try_from(refunded).unwrap_or(i64::MAX));
                let is_rate = shared.is_known() && shared.held().is_none();
                if same_quota && is_rate && late != 0 {
                    let one = shares[0].with_quota_index(local.place());
                    let _ = store.call(Op::Adjust(&one, late)).now();
                }
            }
        });
    }

    /// Returns this process's share of the units left in the shared store.
    fn share_left(&self, shared: &Outcome, local: &Outcome) -> i64 {
        if shared.left() >= shared.limit().into() {
            return local.limit().into();
        }
        shared.left().div_euclid(self.instances.get().into())
    }

    fn mirror_block(&self, charges: &[Charge<'_>], denial: &Decision) {
        for outcome in denial.outcomes() {
            let time = outcome.retry_after().unwrap_or(Duration::MAX);
            for charge in charges.iter().filter(|charge| charge.rule() == outcome.rule()) {
                let _ = self.stores.local.call(Op::Block(charge, time)).now();
            }
        }
    }

    fn stripes(&self) -> &Stripes {
        &self.stores.stripes
    }
}

/// A fixed number of mutexes. Many keys share one mutex.
#[derive(Debug, Default)]
pub(super) struct Stripes {
    seed: RandomState,
    locks: [Mutex<()>; STRIPES],
}

const STRIPES: usize = 32;

impl Stripes {
    fn lock(&self, key: &Key) -> MutexGuard<'_, ()> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits of the hash are random")]
        let stripe = self.seed.hash_one(key) as usize % STRIPES;
        self.locks[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
