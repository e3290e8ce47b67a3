//! Decides with a local store, which mirrors the decisions of the inner store.

use std::{
    convert::Infallible,
    fmt,
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;

use super::{Fallback, Policy};
use crate::{
    decision::{Decision, Hold, Outcome, Source},
    key::Key,
    quota::Quota,
    store::{BoxFuture, Charge, Health, Never, Op, Store, Unsupported},
};

/// Policy that decides with a local store.
///
/// During an outage, a limit still applies and the service remains available. The
/// [source](Decision::source) of a local decision is [`Source::Fallback`].
///
/// - **Shares.** Each of `n` processes ([`instances`](Fallback::instances)) allows its share of
///   each quota. A quota with a burst of `B` units and one unit per time `T` becomes a burst of
///   `B/n` units and one unit per time `n·T`. So does a
///   [token bucket](crate::Algorithm::TokenBucket), which refills continuously if `n` is above 1. In
///   an outage of length `Δ`, all processes together allow at most `B + Δ/T` units. A share is
///   at least one unit: rounding may add `n` units, or `n` units per period under algorithms that
///   count by periods. A share is the same for every cost, so a request whose cost is above the share
///   is denied. [Headroom](Charge::headroom) is divided too, and rounded down.
/// - **Mirrored decisions.** Every decision of the inner store is applied to the local account.
///   Keys therefore do not get a fresh quota in an outage, and blocked keys stay blocked.
/// - **Slots.** The local store also holds the slots that this process holds in the inner store. An
///   outage therefore starts with the requests that really run.
/// - **After an outage.** The inner store does not know the charges of the outage, and they are not
///   made up for. A key may use the units that it used in the outage once more: at most its share in
///   each process and, under algorithms that count by periods, in each period.
///
/// [`adjust`](crate::StoreExt::adjust) uses the inner store, and the local store while the inner one
/// fails. [`reset`](crate::StoreExt::reset), [`block`](crate::StoreExt::block) and
/// [`unblock`](crate::StoreExt::unblock) apply to both stores.
///
/// # Limitations
///
/// - If a call to the inner store times out, both stores may charge the request.
/// - A refund after an outage goes to the inner store, even if the charge was made in the outage. A key
///   may then use these units a second time.
/// - If the inner store undoes a charge, the local account keeps the charge until its units are
///   refilled. Keys with refunded requests have fewer units left at the start of an outage.
/// - During an outage, a `reset`, a `block`, an `unblock` or a refund applies only to this process.
///   The source of such a decision is [`Source::Fallback`].
/// - Slots that were taken in an outage are not counted by the inner store afterwards.
/// - If another process unblocks a key, this process may still deny the key during an outage, until
///   the original end of the block.
/// - The local store needs room for all keys that are in debt at once, as if there were no inner
///   store.
pub struct LocalShare<L> {
    shared: Arc<LocalAccounts<L>>,
    instances: NonZeroU32,
}

struct LocalAccounts<L> {
    store: L,
    stripes: Stripes,
}

impl<L> LocalShare<L> {
    pub(crate) fn new(store: L) -> Self {
        let shared = Arc::new(LocalAccounts { store, stripes: Stripes::default() });
        Self { shared, instances: NonZeroU32::MIN }
    }
}

impl<S, L> Fallback<S, LocalShare<L>> {
    /// Sets the number of processes that share the inner store. Defaults to 1.
    ///
    /// While the inner store fails, each process allows its part of every quota.
    ///
    /// # Panics
    ///
    /// Panics if `instances` is 0.
    #[track_caller]
    #[must_use]
    pub fn instances(mut self, instances: u32) -> Self {
        const ZERO: &str =
            "fallback: instances is 0; give at least 1, because this process counts too";
        self.policy.instances = NonZeroU32::new(instances).expect(ZERO);
        self
    }
}

impl<L> Policy for LocalShare<L>
where
    L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>
        + Send
        + Sync
        + 'static,
{
    const NAME: &'static str = "fallback";
    const EFFECT: &'static str = "decisions are made in this process";
    const SOURCE: Source = Source::Fallback;

    fn decide(&self, op: Op<'_>, _: bool) -> (&'static str, Decision) {
        let decision = self.call(op);
        // The local store had no room for a block.
        let is_full = decision.source() == Source::Overflow;
        (Self::EFFECT, if is_full { decision } else { decision.with_source(Self::SOURCE) })
    }

    fn mirror(&self, op: Op<'_>, decision: Decision) -> Decision {
        match (decision.source(), op) {
            (Source::DenyCache, _) | (_, Op::Peek(_)) => return decision,
            (_, Op::Take(charges)) => self.mirror_all(charges, &decision, 0),
            (_, Op::Adjust(_, units)) => {
                self.mirror_all(op.charges(), &decision, units.min(0).unsigned_abs());
            }
            (_, Op::Reset(_) | Op::Block(..) | Op::Unblock(_)) => drop(self.call(op)),
        }
        match decision.source() {
            Source::Leased => decision,
            _ => self.mirror_slots(op.charges(), decision),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.with_shares(charges, |shares| self.shared.store.undo(shares, taken, units));
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.with_shares(charges, |shares| self.shared.store.supports(shares))
    }

    fn health(&self) -> Option<BoxFuture<Health>> {
        Some(self.shared.store.health())
    }
}

impl<L> LocalShare<L>
where
    L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
{
    /// Calls the local store instead of the inner store.
    fn call(&self, op: Op<'_>) -> Decision {
        let op = match op {
            Op::Take([]) | Op::Peek([]) => return Decision::allow(),
            // The local store mirrored only a share of the charge.
            Op::Adjust(charge, units) if units < 0 => {
                Op::Adjust(charge, units / i64::from(self.instances.get()))
            }
            op => op,
        };
        self.with_shares(op.charges(), |shares| self.shared.store.call(op.on(shares)).now())
    }

    /// Lowers the units left of each local account to this process's share of the units left in the
    /// inner store.
    ///
    /// The units left are raised only after a refund, because answers may arrive out of order.
    fn mirror_all(&self, charges: &[Charge<'_>], decision: &Decision, refunded: u64) {
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
    fn mirror_slots(&self, charges: &[Charge<'_>], mut decision: Decision) -> Decision {
        if !decision.is_allowed() || decision.slot.is_none() {
            return decision;
        }
        const UNLIMITED: Quota = Quota::concurrent(u32::MAX);
        for charge in charges {
            if !decision.charged(charge.rule()) {
                continue;
            }
            let quotas: SmallVec<[_; 4]> = charge.quotas().iter().map(|_| UNLIMITED).collect();
            let unlimited = charge.with_quotas(&quotas).with_headroom(0);
            for (index, quota) in charge.charged_quotas().filter(|(_, it)| it.is_concurrent()) {
                let one = unlimited.with_quota_index(index);
                if let Some(slot) = self.shared.store.call(Op::Take(&[one])).now().take_slot() {
                    let hold = Hold::on_free(move || drop(slot));
                    decision.hold(hold.until_head(quota.sheds()));
                }
            }
        }
        decision
    }

    fn mirror_one(&self, charge: &Charge<'_>, shared: &[Outcome], refunded: u64) {
        let store = &self.shared.store;
        self.with_shares(&[charge.with_cost(0)], |shares| {
            // Two threads could otherwise read the same account and both charge it.
            let _guard = self.shared.stripes.lock(charge.key());
            let decision = store.call(Op::Take(shares)).now();
            for (shared, local) in shared.iter().zip(decision.outcomes()) {
                let same_quota =
                    shared.rule() == local.rule() && shared.quota_index() == local.quota_index();
                let late = local.left() - self.share_left(shared, local);
                let late = late.max(-i64::try_from(refunded).unwrap_or(i64::MAX));
                let is_rate = shared.is_known() && shared.held().is_none();
                if same_quota && is_rate && late != 0 {
                    let one = shares[0].with_quota_index(local.quota_index());
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
                let _ = self.shared.store.call(Op::Block(charge, time)).now();
            }
        }
    }

    /// Replaces each quota by the share of this process, and calls `read`.
    fn with_shares<T>(&self, charges: &[Charge<'_>], read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let mut quotas = SmallVec::<[Quota; 8]>::new();
        let all = charges.iter().flat_map(|charge| charge.quotas());
        quotas.extend(all.map(|quota| quota.share(self.instances)));
        let mut rest = quotas.as_slice();
        let shares = charges.iter().map(|charge| {
            let (quotas, others) = rest.split_at(charge.quotas().len());
            rest = others;
            charge.with_quotas(quotas).with_headroom(charge.headroom() / self.instances)
        });
        read(&shares.collect::<SmallVec<[Charge<'_>; 4]>>())
    }
}

impl<L> Clone for LocalShare<L> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), instances: self.instances }
    }
}

impl<L: fmt::Debug> fmt::Debug for LocalShare<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LocalShare");
        debug.field("store", &self.shared.store).field("instances", &self.instances).finish()
    }
}

/// A fixed number of mutexes. Many keys share one mutex.
#[derive(Default)]
struct Stripes {
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
