//! Operations that borrow units from the store.

use std::{cell::Cell, mem, sync::Arc};

use smallvec::SmallVec;
use tokio::sync::watch;

use super::{
    HotKey, Later, Leases, SPAN, for_cost_of, hot_call::HotCall, lease::Lease, shares::Share,
};
use crate::{
    decision::{Decision, Outcome},
    store::{Answer, BoxFuture, Charge, Context, Op, OwnedCharges, Store, context::OwnedContext},
};

/// An operation that borrows units for several calls. Its end wakes the waiting calls.
pub(super) struct Borrow<S: Store + 'static> {
    pub(super) leases: Arc<Leases<S>>,
    pub(super) key: HotKey,
    /// The tags of the accounts.
    pub(super) tags: SmallVec<[u64; 2]>,
    /// The number of calls for which units are borrowed.
    pub(super) calls: u32,
    pub(super) share: Option<Share>,
    /// The instant of the last call to the store.
    pub(super) requested_at: u64,
    /// The changes of the accounts that were counted before.
    pub(super) changes: u64,
    /// `true` if the store recently had too few units.
    pub(super) scarce: bool,
    /// `true` if the store had fewer units than requested.
    pub(super) partial: bool,
    pub(super) _end: watch::Sender<()>,
}

impl<S: Store + Send + Sync + 'static> Borrow<S> {
    /// Borrows units. The operation continues if the caller is dropped.
    pub(super) fn run(mut self, charges: &[Charge<'_>], context: &Context<'_>) -> Answer<Later<S>> {
        self.requested_at = self.leases.table.now();
        let all = for_calls(charges, self.calls);
        let later = match self.leases.inner.call(Op::Take(&all), context) {
            Answer::Now(answer) => return self.decide(charges, context, answer),
            Answer::Later(later) => later,
        };
        let charges = OwnedCharges::from(charges);
        let context = OwnedContext::from(context);
        let operation: Later<S> = Box::pin(async move {
            let answer = later.await;
            charges
                .with(|charges| self.decide(charges, &context.get(), answer))
                .await
        });
        let mut operation = Detached(operation, Cell::new(false));
        Answer::Later(Box::pin(async move {
            let decision = operation.0.as_mut().await;
            operation.1.set(true);
            decision
        }))
    }

    /// Decides after an answer, or borrows fewer units.
    fn decide(
        mut self,
        charges: &[Charge<'_>],
        context: &Context<'_>,
        answer: Result<Decision, S::Error>,
    ) -> Answer<Later<S>> {
        match answer {
            Err(error) => {
                self.limit(0, SPAN);
                Answer::Now(Err(error))
            }
            Ok(taken) if taken.is_allowed() => Answer::Now(Ok(self.keep_units(charges, taken))),
            Ok(denial) => match self.handle_denied(charges, denial) {
                Some(denial) => Answer::Now(Ok(denial)),
                None => self.run(charges, context),
            },
        }
    }

    /// Admits the call. Keeps the remaining units as a lease, or returns them to the store.
    fn keep_units(&mut self, charges: &[Charge<'_>], taken: Decision) -> Decision {
        let instants = [self.requested_at, self.leases.table.now()];
        let lease = Lease::new(charges, &self.tags, self.calls, &taken, instants);
        let Some(mut lease) = lease.filter(|_| taken.cause().is_cacheable()) else {
            // The next decision will probably lack the same data.
            self.limit(0, SPAN);
            let rest = for_calls(charges, self.calls - 1);
            self.leases.inner.undo(&rest, &taken, None);
            return taken;
        };
        lease.spend(charges, lease.requested_at.saturating_sub(1_000));
        let decision = lease
            .decision(lease.received_at)
            .with_source(lease.taken.source());
        lease.share = self.share.take();
        let mut unused = Some(Box::new(lease));
        // The next lease is gathered as well, unless the store has enough units for it.
        let is_scarce = self.scarce && available_calls(charges, &taken).now < self.calls;
        self.update(|call, now| {
            if is_scarce {
                call.limited_until = now + SPAN;
            }
            if self.leases.table.changes(&self.tags) == self.changes {
                mem::swap(&mut call.lease, &mut unused);
            }
        });
        if let Some(lease) = unused {
            lease.return_units(&*self.leases.inner, instants[1]);
        }
        self.leases.return_unused(self.key, self.requested_at);
        decision
    }

    /// Returns the denial of the call, or `None` to borrow fewer units.
    ///
    /// If the store recently had too few units, denies calls until a whole lease is available:
    /// single units would cost a round trip each.
    fn handle_denied(&mut self, charges: &[Charge<'_>], denial: Decision) -> Option<Decision> {
        let AvailableCalls { now: left, soon } = available_calls(charges, &denial);
        let gathers = self.scarce && self.calls <= soon;
        if !gathers && (soon > 1 || left == 0) {
            let wait = denial
                .outcomes()
                .iter()
                .map(Outcome::retry_ns)
                .max()
                .unwrap_or(SPAN);
            self.limit(soon, if soon > 1 { SPAN } else { wait });
        }
        if left > 0 && !gathers && !denial.is_blocked() && self.calls > 1 {
            // Other processes take units at the same time.
            self.calls = if self.partial {
                1
            } else {
                left.min(self.calls - 1)
            };
            self.partial = true;
            return None;
        }
        let mut own = denial.clone();
        for (charged, outcome) in Charge::all_quotas(charges).zip(&mut own.outcomes) {
            *outcome = for_cost_of(charged.charge, outcome);
        }
        // The units left may be enough for one call.
        let is_denial = own.outcomes().iter().any(Outcome::is_denied) && !gathers;
        Some(if is_denial { own } else { denial })
    }

    /// Limits the next leases of the call to `max_calls` for `time`.
    fn limit(&self, max_calls: u32, time: u64) {
        self.update(|call, now| {
            (call.max_calls, call.limited_until) = (max_calls, now + time.min(SPAN));
        });
    }

    fn update(&self, change: impl FnOnce(&mut HotCall, u64)) {
        let table = &self.leases.table;
        let now = table.now();
        let mut entries = table.set(self.key.tag).entries.lock();
        if let Some(call) = entries.of(self.key).next() {
            change(call, now);
        }
    }
}

/// Returns charges that cost `calls` times as much.
fn for_calls<'a>(charges: &[Charge<'a>], calls: u32) -> SmallVec<[Charge<'a>; 4]> {
    let all = charges
        .iter()
        .map(|charge| charge.with_cost(charge.cost.saturating_mul(calls)));
    all.collect()
}

/// The numbers of calls that a decision leaves units for.
struct AvailableCalls {
    /// The calls for which units are left.
    now: u32,
    /// The calls for which 100 ms refill units.
    soon: u32,
}

fn available_calls(charges: &[Charge<'_>], decision: &Decision) -> AvailableCalls {
    let mut now = None;
    let mut soon = None;
    for (charged, outcome) in Charge::all_quotas(charges).zip(decision.outcomes()) {
        let cost = charged.charge.cost;
        if outcome.is_known() || outcome.is_denied() {
            let left = outcome.remaining() / cost;
            now = Some(now.unwrap_or(left).min(left));
        }
        if outcome.is_denied() {
            let mut refilled = 0;
            if outcome.interval().is_some() {
                let each = charged.quota.interval_nanos() * u64::from(cost);
                refilled = u32::try_from(SPAN / 2 / each).unwrap_or(u32::MAX);
            }
            soon = Some(soon.unwrap_or(refilled).min(refilled));
        }
    }
    AvailableCalls {
        now: now.unwrap_or(0),
        soon: soon.unwrap_or(0),
    }
}

/// A future, and `true` if it has completed. Completes in the background if it is dropped.
struct Detached<T: 'static>(BoxFuture<T>, Cell<bool>);

impl<T: 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if !self.1.get() {
            let future = mem::replace(&mut self.0, Box::pin(std::future::pending()));
            Answer::Later(future).detach(drop);
        }
    }
}
