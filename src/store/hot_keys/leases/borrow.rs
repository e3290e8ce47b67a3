//! Operations that borrow units from the store.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
};

use smallvec::SmallVec;
use tokio::sync::watch;

use super::{
    HotKey, Later, Leases, SPAN,
    allowances::Allowance,
    for_cost_of,
    hot_call::HotCall,
    lease::{Lease, earliest},
};
use crate::{
    decision::{Decision, Outcome},
    store::{
        Answer, BoxFuture, Charge, ChargedQuota, Context, Op, OwnedCharges, Store,
        context::OwnedContext,
    },
};

/// An operation that borrows units for several calls. Its end wakes the waiting calls.
pub(super) struct Borrow<S: Store + 'static> {
    pub(super) leases: Arc<Leases<S>>,
    pub(super) key: HotKey,
    /// The tags of the accounts.
    pub(super) tags: SmallVec<[u64; 2]>,
    /// The number of calls for which units are borrowed.
    pub(super) calls: u32,
    pub(super) allowance: Option<Allowance>,
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
        Answer::Later(Box::pin(Detached(Some(operation))))
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
            Ok(denial) => match self.deny(charges, denial) {
                Some(denial) => Answer::Now(Ok(denial)),
                None => self.run(charges, context),
            },
        }
    }

    /// Admits the call. Keeps the remaining units as a lease, or returns them to the store.
    fn keep_units(&mut self, charges: &[Charge<'_>], taken: Decision) -> Decision {
        let time = self.requested_at..self.leases.table.now();
        let lease = Lease::new(charges, &self.tags, self.calls, &taken, time);
        let Some(mut lease) = lease.filter(|_| taken.cause().is_cacheable()) else {
            // The next decision will probably lack the same data.
            self.limit(0, SPAN);
            let rest = for_calls(charges, self.calls - 1);
            self.leases.inner.undo(&rest, &taken, None);
            return taken;
        };
        lease.spend(charges, earliest(lease.requested_at));
        let decision = lease
            .decision(lease.received_at)
            .with_source(lease.taken.source());
        lease.allowance = self.allowance.take();
        // The next lease is gathered as well, unless the store has enough units for it.
        self.scarce &= available_calls(charges, &taken).now < self.calls;
        self.keep(lease);
        decision
    }

    /// Keeps a lease until it is used, unused or old. Returns its units if the accounts have changed.
    fn keep(&self, lease: Lease) {
        let received_at = lease.received_at;
        let mut unused = Some(Box::new(lease));
        self.update(|call, now| {
            if self.scarce {
                call.limited_until = now + SPAN;
            }
            if self.leases.table.changes(&self.tags) == self.changes {
                mem::swap(&mut call.lease, &mut unused);
            }
        });
        if let Some(lease) = unused {
            lease.return_units(&*self.leases.inner, received_at);
        }
        self.leases.return_unused(self.key, self.requested_at);
    }

    /// Returns the denial of the call, or `None` to borrow fewer units.
    fn deny(&mut self, charges: &[Charge<'_>], denial: Decision) -> Option<Decision> {
        let AvailableCalls { now: left, soon } = available_calls(charges, &denial);
        if self.scarce && self.calls <= soon {
            // Single units would cost a round trip each, so calls are denied until a whole lease is
            // available.
            return Some(denial);
        }
        if soon > 1 {
            self.limit(soon, SPAN);
        } else if left == 0 {
            let waits = denial.outcomes().iter().map(Outcome::retry_ns);
            self.limit(soon, waits.max().unwrap_or(SPAN));
        }
        if left > 0 && self.calls > 1 && !denial.is_blocked() {
            // Other processes take units at the same time.
            self.calls = if self.partial {
                1
            } else {
                left.min(self.calls - 1)
            };
            self.partial = true;
            return None;
        }
        Some(denial_of_one(charges, denial))
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
    let all = Charge::all_quotas(charges).zip(decision.outcomes());
    let known = all
        .clone()
        .filter(|(_, outcome)| outcome.is_known() || outcome.is_denied());
    let left = known.map(|(charged, outcome)| outcome.remaining() / charged.charge.cost);
    let denied = all.filter(|(_, outcome)| outcome.is_denied());
    let refilled = denied.map(|(charged, outcome)| refilled_calls(charged, outcome));
    AvailableCalls {
        now: left.min().unwrap_or(0),
        soon: refilled.min().unwrap_or(0),
    }
}

/// Returns the number of calls for which 100 ms refill units of a quota.
fn refilled_calls(charged: ChargedQuota<'_>, outcome: &Outcome) -> u32 {
    if outcome.interval().is_none() {
        return 0;
    }
    let each = charged.quota.interval_nanos() * u64::from(charged.charge.cost);
    u32::try_from(SPAN / 2 / each).unwrap_or(u32::MAX)
}

/// Returns the denial of one call, from that of several calls.
fn denial_of_one(charges: &[Charge<'_>], denial: Decision) -> Decision {
    let mut one = denial.clone();
    for (charged, outcome) in Charge::all_quotas(charges).zip(&mut one.outcomes) {
        *outcome = for_cost_of(charged.charge, outcome);
    }
    // The units left may be enough for one call.
    if one.outcomes().iter().any(Outcome::is_denied) {
        one
    } else {
        denial
    }
}

/// A future that completes in the background if it is dropped.
struct Detached<T: 'static>(Option<BoxFuture<T>>);

impl<T: 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            panic!("a borrow operation was polled after it completed");
        };
        let output = ready!(future.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T: 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            Answer::Later(future).detach(drop);
        }
    }
}
