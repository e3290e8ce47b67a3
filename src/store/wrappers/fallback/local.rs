//! Decides with a local store, which mirrors the decisions of the inner store.

use std::{convert::Infallible, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::Policy;
use crate::{
    decision::{Cause, Decision, Hold, Outcome, Slot, Source},
    quota::Quota,
    store::{
        BoxFuture, Charge, ChargedQuota, Context, Health, Instances, Never, Op, Store, Unsupported,
        context::Followed,
    },
};

/// Policy that decides with a local store.
///
/// During an outage, a limit still applies and the service remains available. The
/// [source](Decision::source) of a local decision is [`Source::Fallback`].
///
/// - **Parts.** Each of the `n` processes of [`fallback`](crate::StoreExt::fallback) allows its part of
///   each quota. A quota with a burst of `B` units and one unit per time `T` becomes a burst of
///   `B/n` units and one unit per time `n·T`. So does a
///   [token bucket](crate::Algorithm::TokenBucket), which refills continuously if `n` is above 1. In
///   an outage of length `Δ`, all processes together allow at most `B + Δ/T` units. With a fixed
///   number of processes, a part is at least one unit: rounding may add `n` units, or `n` units per
///   period under algorithms that count by periods. The parts of [counted](Instances) processes add
///   up to the limit, so some have no unit of a limit below `n`. A part is the same for every cost, so
///   a request whose cost is above the part is denied. [Headroom](Charge::headroom) is divided too, and
///   rounded down.
/// - **Mirrored decisions.** The accounts of a [`LocalStore`](crate::LocalStore) follow every decision
///   of the inner store. Keys therefore do not get a fresh quota in an outage, and blocked keys stay blocked.
/// - **Slots.** The local store also holds the slots that this process holds in the inner store. An
///   outage therefore starts with the requests that really run.
/// - **After an outage.** The inner store does not know the charges of the outage, and they are not
///   made up for. A key may use the units that it used in the outage once more: at most its part in
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
///   The source of such a decision is [`Source::Fallback`]. The refund is whole, even if only a share
///   of its charge was mirrored before the outage.
/// - A mirrored charge ends with a period of the local account, which may start later than the shared
///   one. A key that was exhausted may stay denied in an outage for the rest of that period, also
///   after a reset by another process.
/// - Slots that were taken in an outage are not counted by the inner store afterwards.
/// - If another process unblocks a key, this process may still deny the key during an outage, until
///   the original end of the block.
/// - The local store needs room for all keys that are in debt at once, as if there were no inner
///   store.
#[derive(Debug)]
pub struct LocalShare<L> {
    store: Arc<L>,
    instances: Instances,
}

/// The `Retry-After` of a process that has no unit of a limit.
const NO_SHARE: Duration = Duration::from_secs(1);

impl<L> LocalShare<L> {
    pub(crate) fn new(store: Arc<L>, instances: Instances) -> Self {
        Self { store, instances }
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
    const SOURCE: Source = Source::Fallback;

    fn decide(&self, op: Op<'_>, context: &Context<'_>, _: bool) -> Decision {
        let decision = self.call(op, context);
        // The local store had no room for a block.
        let is_full = decision.cause() == Cause::Full && matches!(op, Op::Block(..));
        if is_full {
            decision
        } else {
            decision.with_source(Self::SOURCE)
        }
    }

    fn mirror(&self, op: Op<'_>, decision: Decision) -> Decision {
        // A denial without a call changed no account. Of the operations of operators, a denied one did nothing.
        let is_call = decision.cause().is_answer();
        let is_charge = matches!(op, Op::Take(_) | Op::Adjust(..));
        let is_mirrored = decision.is_allowed() || (is_call && is_charge);
        if !is_mirrored {
            return decision;
        }
        match op {
            Op::Peek(_) => return decision,
            Op::Take(charges) => self.mirror_rates(charges, &decision, 0),
            Op::Adjust(_, units) => {
                self.mirror_rates(op.charges(), &decision, units.min(0).unsigned_abs());
            }
            Op::Reset(_) | Op::Block(..) | Op::Unblock(_) => {
                drop(self.call(op, &Context::default()));
            }
        }
        self.mirror_slots(op.charges(), decision)
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.with_shares(charges, |shares| self.store.undo(shares, taken, units));
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        // The whole quotas, because the shares of a rule change with the number of processes.
        self.store.supports(charges)
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.store.register(charges)
    }

    fn health(&self) -> Option<BoxFuture<Health>> {
        Some(self.store.health())
    }
}

impl<L> LocalShare<L>
where
    L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
{
    /// Calls the local store instead of the inner store.
    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Decision {
        let mut decision = self.with_shares(op.charges(), |shares| {
            self.store.call(op.on(shares), context).now()
        });
        if decision.is_blocked() {
            return decision;
        }
        for outcome in &mut decision.outcomes {
            if lacks_share(outcome, op.charges()) {
                let unknown =
                    Outcome::unknown(outcome.rule(), outcome.quota_index(), Some(NO_SHARE));
                *outcome = unknown.with_report_only(outcome.is_report_only());
            }
        }
        decision
    }

    /// Moves each local account to the share of this process in the account of the inner store.
    fn mirror_rates(&self, charges: &[Charge<'_>], decision: &Decision, refunded: u64) {
        if decision.is_blocked() {
            return self.mirror_block(charges, decision);
        }
        let decided = decision.on(Charge::quota_ids(charges));
        let mut outcomes = decided.outcomes();
        for charge in charges {
            // The share of a client keeps its burst.
            let instances = if charge.is_client_share() {
                1
            } else {
                self.instances.count()
            };
            let own;
            (own, outcomes) = outcomes.split_at(charge.charged_quotas().count());
            let followed = Followed {
                outcomes: own,
                instances,
                refunded,
            };
            let context = Context {
                followed: Some(&followed),
                ..Context::default()
            };
            // The context has the units. The cost 0 marks a charge that was not made here.
            self.with_shares(&[charge.with_cost(0)], |shares| {
                let _ = self.store.call(Op::Adjust(&shares[0], 0), &context).now();
            });
        }
    }

    /// Holds the slots of an allowed decision in the local store as well, beyond any limit, queue and
    /// block.
    fn mirror_slots(&self, charges: &[Charge<'_>], mut decision: Decision) -> Decision {
        if !decision.is_allowed() || decision.slot.is_none() {
            return decision;
        }
        for ChargedQuota {
            charge,
            index,
            quota,
        } in Charge::all_quotas(charges)
        {
            if quota.is_concurrent()
                && charge.cost > 0
                && decision.charged(charge.rule)
                && let Some(slot) = self.hold_slots(charge.with_quota_index(index))
            {
                let hold = Hold::on_free(move || drop(slot));
                decision.hold(hold.until_head(quota.sheds()));
            }
        }
        decision
    }

    /// Holds the slots of a charge in the local store.
    fn hold_slots(&self, charge: Charge<'_>) -> Option<Slot> {
        let context = Context {
            holds_slots: true,
            ..Context::default()
        };
        let mut mirrored = self.store.call(Op::Take(&[charge]), &context).now();
        mirrored.take_slot()
    }

    fn mirror_block(&self, charges: &[Charge<'_>], denial: &Decision) {
        for outcome in denial.outcomes() {
            let time = outcome.retry_after().unwrap_or(Duration::MAX);
            let rule = outcome.rule();
            let mut candidates = charges
                .iter()
                .filter(|charge| charge.may_deny() && charge.rule == rule);
            // The outcome names the rule and not the key, so all charges of the rule must have one key.
            if let Some(charge) = candidates.next()
                && candidates.all(|other| other.key == charge.key)
            {
                let _ = self
                    .store
                    .call(Op::Block(charge, time), &Context::default())
                    .now();
            }
        }
    }

    /// Replaces each quota by the share of this process, and calls `read`.
    fn with_shares<T>(&self, charges: &[Charge<'_>], read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let mut quotas = SmallVec::<[Quota; 8]>::new();
        let part = self.instances.part();
        for charge in charges {
            let part = part.for_key(charge.key);
            quotas.extend(charge.quotas.iter().map(|quota| quota.for_process(part)));
        }
        let mut rest = quotas.as_slice();
        let shares = charges.iter().map(|charge| {
            let (quotas, others) = rest.split_at(charge.quotas.len());
            rest = others;
            charge
                .with_quotas(quotas)
                .with_headroom(charge.headroom / part.instances)
        });
        read(&shares.collect::<SmallVec<[Charge<'_>; 4]>>())
    }
}

/// Returns `true` if a quota denied only because the part of this process has no unit of it. Such a denial
/// is not permanent.
fn lacks_share(outcome: &Outcome, charges: &[Charge<'_>]) -> bool {
    if !outcome.is_denied() || outcome.limit() > 0 {
        return false;
    }
    let charge = Charge::find(charges, outcome.rule());
    let quota = charge.and_then(|charge| charge.quotas.get(outcome.quota_index()));
    quota.is_some_and(|quota| quota.limit() > 0)
}
