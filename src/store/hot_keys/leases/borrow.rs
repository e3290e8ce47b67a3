//! The operation that borrows units for several calls from the inner store.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::{runtime::Handle, time::Instant};

use super::{
    Leases,
    lease::Lease,
    sizing::SPAN,
    table::{BorrowRequest, BorrowResult, CallKey},
};
use crate::{
    algorithm::Demand,
    decision::{Decision, NEVER, Outcome},
    store::{
        Answer, BoxFuture, Charge, OwnedCharges, Store,
        wrappers::{recompute, take_since},
    },
};

/// A borrow operation. Dropping an unfinished operation lets other calls borrow.
pub(super) struct Borrow<S: Store> {
    leases: Arc<Leases<S>>,
    call: CallKey,
    request: BorrowRequest,
    /// The start of the caller's request.
    start: Instant,
    requested_at: u64,
    changes: u64,
    /// `true` if the store had fewer units than requested.
    partial: bool,
}

impl<S> Borrow<S>
where
    S: Store + Send + Sync + 'static,
{
    pub(super) fn new(
        leases: &Arc<Leases<S>>,
        call: CallKey,
        request: BorrowRequest,
        start: Instant,
    ) -> Self {
        let (leases, changes) = (leases.clone(), leases.table.changes(&call));
        Self { leases, call, request, start, requested_at: 0, changes, partial: false }
    }

    /// Borrows units. The operation continues if the caller is dropped.
    pub(super) fn borrow(mut self, charges: &[Charge<'_>]) -> Answer<Detached<S::Error>> {
        let mut later = match self.send(charges) {
            Answer::Now(answer) => return Answer::Now(answer),
            Answer::Later(later) => later,
        };
        let charges = OwnedCharges::from(charges);
        Answer::Later(Detached::new(async move {
            loop {
                let answer = later.await;
                later = match charges.with(|charges| self.handle_answer(charges, answer)) {
                    Answer::Now(answer) => return answer,
                    Answer::Later(again) => again,
                }
            }
        }))
    }

    fn send(&mut self, charges: &[Charge<'_>]) -> Answer<S::Future> {
        self.requested_at = self.leases.table.now();
        match with_calls(charges, self.request.calls, |chunk| {
            take_since(&*self.leases.inner, self.start, chunk)
        }) {
            Answer::Now(answer) => self.handle_answer(charges, answer),
            later => later,
        }
    }

    /// Returns the decision, or sends another request.
    fn handle_answer(
        &mut self,
        charges: &[Charge<'_>],
        answer: Result<Decision, S::Error>,
    ) -> Answer<S::Future> {
        match answer {
            Ok(decision) if decision.is_allowed() => {
                Answer::Now(Ok(self.handle_allowed(charges, decision)))
            }
            Ok(denial) => self.handle_denied(charges, denial),
            Err(error) => {
                self.finish(BorrowResult::Failed);
                Answer::Now(Err(error))
            }
        }
    }

    /// Admits the call. Keeps the remaining units as a lease, or returns them to the store.
    fn handle_allowed(&mut self, charges: &[Charge<'_>], taken: Decision) -> Decision {
        let instants = (self.requested_at, self.leases.table.now());
        let of_store = taken.source().is_of_store();
        let lease = Lease::new(charges, &self.call.accounts, self.request.calls, &taken, instants);
        if let Some(mut lease) = lease.filter(|_| of_store) {
            let decision = lease.admit_first(charges);
            lease.share = mem::take(&mut self.request.share);
            if self.finish(BorrowResult::Lease(Box::new(lease))) {
                self.leases.start_sweeper();
            }
            return decision;
        }
        self.finish(BorrowResult::Failed);
        if of_store {
            // The store will not report enough data next time, either.
            self.leases.disable();
        }
        if self.request.calls > 1 {
            with_calls(charges, self.request.calls - 1, |rest| {
                self.leases.inner.undo(rest, &taken, None);
            });
        }
        taken
    }

    /// Handles the denial of a borrow request.
    ///
    /// Borrows fewer units if some are left. Otherwise, denies calls until a whole lease is
    /// available: single units would cost a round trip each.
    fn handle_denied(&mut self, charges: &[Charge<'_>], denial: Decision) -> Answer<S::Future> {
        let (left, soon) = (calls_left(charges, &denial), calls_in(charges, &denial, SPAN / 2));
        let gathers = self.request.scarce && self.request.calls <= soon;
        if soon > 1 || left == 0 {
            let time = if soon > 1 { SPAN } else { longest_wait(&denial) };
            self.leases.table.set_scarce(&self.call, soon, time);
        }
        if left > 0 && !gathers && !denial.is_blocked() && self.request.calls > 1 {
            // Other processes take units at the same time.
            let rest = left.min(self.request.calls - 1);
            self.request.calls = if self.partial { 1 } else { rest };
            self.partial = true;
            return self.send(charges);
        }
        self.finish(BorrowResult::Denied);
        let own = if gathers { None } else { for_one_call(charges, &denial) };
        Answer::Now(Ok(own.unwrap_or(denial)))
    }
}

impl<S: Store> Borrow<S> {
    /// Ends the operation. Has no effect if it has ended.
    fn finish(&self, result: BorrowResult) -> bool {
        self.leases.table.finish_borrow(&self.call, self.request.id, self.changes, result)
    }
}

impl<S: Store> Drop for Borrow<S> {
    fn drop(&mut self) {
        self.finish(BorrowResult::Failed);
    }
}

/// Passes charges to `read` that cost `calls` times as much.
fn with_calls<T>(charges: &[Charge<'_>], calls: u32, read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
    let all = charges.iter().map(|charge| charge.with_cost(charge.cost().saturating_mul(calls)));
    read(&all.collect::<SmallVec<[_; 4]>>())
}

/// Returns each outcome with its charge.
fn outcomes<'a>(
    charges: &'a [Charge<'a>],
    decision: &'a Decision,
) -> impl Iterator<Item = (&'a Charge<'a>, &'a Outcome)> {
    let each = charges.iter().flat_map(|it| std::iter::repeat_n(it, it.quotas().len()));
    each.zip(decision.outcomes())
}

/// Returns the number of calls for which enough units are left.
fn calls_left(charges: &[Charge<'_>], denial: &Decision) -> u32 {
    let known = outcomes(charges, denial).filter(|(_, it)| it.is_known() || it.is_denied());
    known.map(|(charge, it)| it.remaining() / charge.cost().max(1)).min().unwrap_or(0)
}

/// Returns the number of calls whose units are refilled within `time`.
fn calls_in(charges: &[Charge<'_>], denial: &Decision, time: u64) -> u32 {
    let calls = |(charge, outcome): (&Charge<'_>, &Outcome)| {
        let each = outcome.interval()?.as_nanos().saturating_mul(charge.cost().into());
        u32::try_from(u128::from(time).checked_div(each)?).ok()
    };
    let denied = outcomes(charges, denial).filter(|(_, outcome)| outcome.is_denied());
    denied.map(|it| calls(it).unwrap_or(0)).min().unwrap_or(0)
}

fn longest_wait(denial: &Decision) -> u64 {
    denial.outcomes().iter().map(Outcome::retry_ns).max().unwrap_or(NEVER)
}

/// Converts the denial of several calls to the denial of one call.
///
/// Returns `None` if the units left are enough for one call.
fn for_one_call(charges: &[Charge<'_>], denial: &Decision) -> Option<Decision> {
    let mut own = Decision::new(false, denial.instant()).with_source(denial.source());
    for (charge, outcome) in outcomes(charges, denial) {
        let mut outcome = *outcome;
        if outcome.interval().is_some() {
            outcome = recompute(&outcome, charge, Demand::units(charge.cost()));
        } else if outcome.is_known() && charge.cost() <= outcome.remaining() {
            outcome.set_retry_ns(0);
        }
        own.push(outcome);
    }
    own.outcomes().iter().any(Outcome::is_denied).then_some(own)
}

/// An answer that completes in the background if it is dropped.
pub(super) struct Detached<E: 'static>(Option<BoxFuture<Result<Decision, E>>>);

impl<E: 'static> Detached<E> {
    fn new(answer: impl Future<Output = Result<Decision, E>> + Send + 'static) -> Self {
        Self(Some(Box::pin(answer)))
    }
}

impl<E: 'static> Future for Detached<E> {
    type Output = Result<Decision, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.0 else {
            panic!("`Detached` polled after completion");
        };
        let answer = ready!(answer.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(answer)
    }
}

impl<E: 'static> Drop for Detached<E> {
    fn drop(&mut self) {
        if let (Some(answer), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(async move { drop(answer.await) }));
        }
    }
}
