//! A store in this process that decides while the shared store fails.

mod journal;
mod mirror;
mod recovery;

use std::{convert::Infallible, fmt, num::NonZeroU32, sync::Arc};

use smallvec::SmallVec;

use self::{journal::Journal, mirror::Stripes};
use super::{
    outage_state::OutageState,
    setting::{SettingError, literal},
    wrapper::{WrapperCall, WrapperFuture},
};
use crate::{
    decision::{Decision, Source},
    quota::Quota,
    store::{Answer, BoxFuture, Charge, Health, Never, Op, OwnedOp, Store, Unsupported},
};

/// The future of a local store, which answers immediately.
type Immediate = Never<Result<Decision, Infallible>>;

/// The default capacity of the journal. A full journal takes 32 MB, or 50 MB with long keys.
const ACCOUNTS: usize = 65_536;

/// Store that decides with a local store while its inner store fails.
///
/// During an outage, a limit still applies and the service remains available. The
/// [source](Decision::source) of a local decision is [`Source::Fallback`].
///
/// - **Shares.** Each of `n` processes ([`instances`](Fallback::instances)) allows its share of
///   each quota. A quota with a burst of `B` units and one unit per time `T` becomes a burst of
///   `B/n` units and one unit per time `n·T`. In an outage of length `Δ`, all processes together
///   allow at most `B + Δ/T` units, with two exceptions:
///   - A share is at least one unit. Rounding may add `n` units, or `n` units per period under
///     algorithms that count by periods.
///   - A single cost may be above the share. Each process allows such a cost if the local account
///     is full and the cost is at most the whole quota.
/// - **Mirrored decisions.** Every decision of the inner store is applied to the local account.
///   Keys therefore do not get a fresh quota in an outage, and blocked keys stay blocked.
/// - **Slots.** The local store also holds the slots that this process holds in the inner store. An
///   outage therefore starts with the requests that really run.
/// - **Late charges.** Units that were allowed during an outage are charged to the inner store
///   after the outage. Units that were refilled since then are not charged. A separate task makes
///   the late charges, and needs a tokio runtime.
///
/// [`adjust`](crate::StoreExt::adjust) and [`undo`](Store::undo) use the store that made the
/// charge. [`reset`](crate::StoreExt::reset), [`block`](crate::StoreExt::block) and
/// [`unblock`](crate::StoreExt::unblock) apply to both stores.
///
/// Clones share both stores.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, StoreExt, store::Timeout};
///
/// let shared = LocalStore::new(); // In production: a remote store.
/// let local = LocalStore::with_capacity(100_000);
/// let store = shared.timeout(Timeout::DEFAULT).breaker().fallback(local).instances(4);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
///
/// # Limitations
///
/// - If a call to the inner store times out, both stores may charge the request. A late charge that
///   times out may be made twice.
/// - If the inner store undoes a charge, the local account keeps the charge until its units are
///   refilled. Keys with refunded requests have fewer units left at the start of an outage.
/// - During an outage, a `reset`, a `block`, an `unblock` or a refund applies only to this process.
///   The source of such a decision is [`Source::Fallback`].
/// - Slots that were taken in an outage are not counted by the inner store afterwards.
/// - If another process unblocks a key, this process may still deny the key during an outage, until
///   the original end of the block.
/// - The local store needs room for all keys that are in debt at once, as if there were no inner
///   store.
pub struct Fallback<S, L> {
    stores: Arc<Stores<S, L>>,
    instances: NonZeroU32,
    journal_capacity: usize,
}

struct Stores<S, L> {
    inner: S,
    local: L,
    outages: OutageState,
    journal: Journal,
    stripes: Stripes,
}

impl<S: Store, L> Fallback<S, L> {
    pub(crate) fn new(inner: S, local: L) -> Self {
        let (outages, journal) = (OutageState::of(&inner), Journal::default());
        let stores = Stores { inner, local, outages, journal, stripes: Stripes::default() };
        Self { stores: Arc::new(stores), instances: NonZeroU32::MIN, journal_capacity: ACCOUNTS }
    }

    /// Sets the number of processes that share the inner store. Defaults to 1.
    ///
    /// While the inner store fails, each process allows its part of every quota.
    ///
    /// # Panics
    ///
    /// Panics if `instances` is 0.
    #[track_caller]
    #[must_use]
    pub fn instances(self, instances: u32) -> Self {
        literal(self.try_instances(instances))
    }

    /// Fallible form of [`instances`](Fallback::instances), for a number that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if `instances` is 0. The error contains the field, its value and the fix.
    pub fn try_instances(self, instances: u32) -> Result<Self, SettingError> {
        const FIX: &str = "give at least 1, because this process counts too";
        let instances = NonZeroU32::new(instances)
            .ok_or_else(|| SettingError::new("fallback: instances", instances, FIX))?;
        Ok(Self { instances, ..self })
    }

    /// Sets the capacity of the journal, in accounts. Defaults to 65 536.
    ///
    /// The journal holds units that were allowed locally and must still be charged to the inner
    /// store. An account takes about 500 bytes, plus the length of a long key.
    ///
    /// Charges are [dropped](Fallback::dropped_charges) if the journal is full, or if the key is
    /// longer than 256 bytes.
    #[must_use]
    pub fn journal(self, accounts: usize) -> Self {
        Self { journal_capacity: accounts, ..self }
    }

    /// Returns the number of charges that the [journal](Fallback::journal) dropped.
    ///
    /// The inner store never receives dropped charges. A number above 0 means that the journal was
    /// full, or that a key was longer than 256 bytes.
    #[must_use]
    pub fn dropped_charges(&self) -> u64 {
        self.stores.journal.dropped_charges()
    }

    /// Returns `true` if the local store currently decides, for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.stores.outages.is_failing()
    }
}

impl<S, L> Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    fn call_inner(&self, op: Op<'_>) -> Answer<WrapperFuture<S, FallbackCall<S, L>>> {
        let epoch = self.stores.outages.epoch();
        match self.stores.inner.call(op) {
            Answer::Now(answer) => Answer::Now(Ok(self.finish(op, epoch, answer))),
            Answer::Later(inner) => {
                let call = FallbackCall { fallback: self.clone(), op: op.into(), epoch };
                Answer::Later(WrapperFuture::new(inner, call))
            }
        }
    }

    /// Handles the answer of the inner store. After an error, the local store decides.
    fn finish(&self, op: Op<'_>, epoch: u64, answer: Result<Decision, S::Error>) -> Decision {
        match answer {
            // The inner store was not called, so it may still be failing.
            Ok(decision) if decision.source() == Source::DenyCache => decision,
            Ok(decision) if decision.source() == Source::Leased => {
                self.mirror_call(op, &decision);
                decision
            }
            Ok(decision) => {
                self.record_success(epoch);
                self.mirror_call(op, &decision);
                self.mirror_slots(op.charges(), decision)
            }
            Err(error) => {
                self.record_failure(epoch, error);
                let decision = self.call_local(op);
                // The local store had no room for a block.
                if decision.source() == Source::Overflow {
                    return decision;
                }
                decision.from_source(Source::Fallback)
            }
        }
    }

    /// Repeats an operation of the inner store in the local store.
    fn mirror_call(&self, op: Op<'_>, decision: &Decision) {
        match op {
            Op::Take(charges) => self.mirror(charges, decision, 0),
            Op::Adjust(_, units) => {
                self.mirror(op.charges(), decision, units.min(0).unsigned_abs());
            }
            Op::Reset(_) | Op::Block(..) | Op::Unblock(_) => drop(self.call_local(op)),
        }
    }

    /// Calls the local store instead of the inner store.
    fn call_local(&self, op: Op<'_>) -> Decision {
        match op {
            Op::Take([]) => Decision::allow(),
            Op::Take(charges) => {
                let decision = self.call_share(op);
                if decision.is_allowed() {
                    for charge in charges.iter().filter(|charge| decision.charged(charge.rule())) {
                        self.record(charge, charge.cost().into());
                    }
                }
                decision
            }
            // The local store mirrored only a share of the charge.
            Op::Adjust(charge, units) if units < 0 => {
                self.call_share(Op::Adjust(charge, units / i64::from(self.instances.get())))
            }
            Op::Adjust(charge, units) => {
                self.record(charge, units.unsigned_abs());
                self.call_share(op)
            }
            Op::Reset(_) | Op::Block(..) | Op::Unblock(_) => self.call_share(op),
        }
    }

    fn record(&self, charge: &Charge<'_>, units: u64) {
        self.stores.journal.record(charge, units, self.journal_capacity);
    }

    /// Calls the local store with this process's shares of the quotas.
    fn call_share(&self, op: Op<'_>) -> Decision {
        let local = &self.stores.local;
        with_shares(op.charges(), self.instances, |shares| local.call(op.on(shares)).now())
    }
}

impl<S, L> Store for Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    type Error = Infallible;
    type Future = WrapperFuture<S, FallbackCall<S, L>>;

    /// Calls the inner store. A refund first removes units from the journal, and calls the inner
    /// store only for the rest.
    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let Op::Adjust(charge, units) = op else { return self.call_inner(op) };
        let refund = units.min(0).unsigned_abs();
        let local = self.stores.journal.remove_units(charge, refund).cast_signed();
        if local > 0 {
            let decision = self.call_share(Op::Adjust(charge, -local));
            if units == -local {
                return Answer::Now(Ok(decision.from_source(Source::Fallback)));
            }
        }
        self.call_inner(Op::Adjust(charge, units + local))
    }

    /// Undoes a charge in the store that made the charge.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let Stores { inner, local, journal, .. } = &*self.stores;
        if taken.source() != Source::Fallback {
            inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            with_shares(charges, self.instances, |shares| local.undo(shares, taken, units));
            for charge in charges.iter().filter(|charge| taken.charged(charge.rule())) {
                let units = units.map_or(charge.cost(), |units| units.min(charge.cost()));
                journal.remove_units(charge, units.into());
            }
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.supports(charges)?;
        with_shares(charges, self.instances, |shares| local.supports(shares))
    }

    fn register(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.register(charges)?;
        with_shares(charges, self.instances, |shares| local.register(shares))
    }

    fn health(&self) -> BoxFuture<Health> {
        let Stores { inner, local, outages, .. } = &*self.stores;
        let (local, dropped) = (local.health(), self.stores.journal.dropped_charges());
        let effect = match dropped {
            0 => "decisions are made in this process".to_owned(),
            n => format!("decisions are made in this process; {n} charges never reach the store"),
        };
        let inner = outages.health("fallback", inner.health(), effect);
        Box::pin(async move { inner.await.around(local.await) })
    }
}

impl<S, L> Clone for Fallback<S, L> {
    fn clone(&self) -> Self {
        Self { stores: self.stores.clone(), ..*self }
    }
}

impl<S: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("inner", &self.stores.inner)
            .field("local", &self.stores.local)
            .field("instances", &self.instances)
            .field("failing", &self.stores.outages.is_failing())
            .finish_non_exhaustive()
    }
}

/// A call to the inner store of a [`Fallback`].
#[derive(Debug)]
pub struct FallbackCall<S, L> {
    fallback: Fallback<S, L>,
    op: OwnedOp,
    epoch: u64,
}

impl<S, L> WrapperCall<S> for FallbackCall<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    type Error = Infallible;

    fn finish(self, answer: Result<Decision, S::Error>) -> Result<Decision, Infallible> {
        let Self { fallback, op, epoch } = self;
        Ok(op.with(|op| fallback.finish(op, epoch, answer)))
    }
}

/// Replaces each quota by the share of one of `instances` processes, and calls `read`.
fn with_shares<T>(
    charges: &[Charge<'_>],
    instances: NonZeroU32,
    read: impl FnOnce(&[Charge<'_>]) -> T,
) -> T {
    let mut quotas = SmallVec::<[Quota; 8]>::new();
    for charge in charges {
        let need = need(charge, charges);
        quotas.extend(charge.quotas().iter().map(|quota| quota.share(instances, need)));
    }
    let mut rest = quotas.as_slice();
    let shared = charges.iter().map(|charge| {
        let (quotas, others) = rest.split_at(charge.quotas().len());
        rest = others;
        Charge { quotas, ..*charge }
    });
    read(&shared.collect::<SmallVec<[Charge<'_>; 4]>>())
}

/// Returns the units that all charges of the call need from the account of `charge`.
fn need(charge: &Charge<'_>, charges: &[Charge<'_>]) -> u64 {
    let same = |other: &&Charge<'_>| other.rule() == charge.rule() && other.key() == charge.key();
    let demands = || charges.iter().filter(same).map(Charge::demand);
    let cost: u64 = demands().map(|demand| u64::from(demand.cost)).sum();
    let headroom = demands().map(|demand| u64::from(demand.headroom)).max().unwrap_or(0);
    if cost == 0 { 0 } else { cost + headroom }
}
