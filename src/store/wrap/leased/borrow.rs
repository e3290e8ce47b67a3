//! A call that borrows, until what it borrowed is in hand or it is refused.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::{
    Leases,
    lease::Lease,
    table::{Caller, Landing, Loan},
};
use crate::{
    algorithm::Ask,
    decision::{Decision, NEVER, Outcome},
    store::{Answer, BoxFuture, Charge, OwnedCharges, Store, wrap::repriced::repriced},
};

/// Who is refused what a lease takes, which the store will have after so long, waits for it: at the
/// limit, one trip for many instead of one for each unit that comes back.
const GATHER: u64 = 100_000_000;
/// What was wanted, what there is, and this call alone.
const TRIPS: u32 = 3;

/// A borrowing. Dropped before it has landed, it lets others borrow.
pub(super) struct Ticket<S: Store> {
    leases: Arc<Leases<S>>,
    caller: Caller,
    loan: Loan,
    trips: u32,
    asked: u64,
    changes: u64,
    /// Where there was less than wanted: so many calls come back in a short time.
    few: Option<u32>,
    landed: bool,
}

impl<S> Ticket<S>
where
    S: Store + Send + Sync + 'static,
{
    pub(super) fn new(leases: &Arc<Leases<S>>, caller: Caller, loan: Loan) -> Self {
        let (leases, changes) = (leases.clone(), leases.table.changes(&caller));
        Self { leases, caller, loan, trips: 0, asked: 0, changes, few: None, landed: false }
    }

    /// Borrows for the call. It goes on where whoever asked goes away: what comes is in hand for
    /// others.
    pub(super) fn borrow(mut self, charges: &[Charge<'_>]) -> Answer<Errand<S::Error>> {
        let mut later = match self.ask(charges) {
            Answer::Now(answer) => return Answer::Now(answer),
            Answer::Later(later) => later,
        };
        let charges = OwnedCharges::from(charges);
        Answer::Later(Errand::new(async move {
            loop {
                let answer = later.await;
                later = match charges.with(|charges| self.answered(charges, answer)) {
                    Answer::Now(answer) => return answer,
                    Answer::Later(again) => again,
                }
            }
        }))
    }

    fn ask(&mut self, charges: &[Charge<'_>]) -> Answer<S::Future> {
        (self.asked, self.trips) = (self.leases.table.now(), self.trips + 1);
        match times(charges, self.loan.calls, |chunk| self.leases.inner.take(chunk)) {
            Answer::Now(answer) => self.answered(charges, answer),
            later => later,
        }
    }

    /// What is to be said, or asked again.
    fn answered(
        &mut self,
        charges: &[Charge<'_>],
        answer: Result<Decision, S::Error>,
    ) -> Answer<S::Future> {
        match answer {
            Ok(decision) if decision.is_allowed() => Answer::Now(Ok(self.lent(charges, decision))),
            Ok(refusal) => self.refused(charges, refusal),
            Err(error) => {
                self.land(Landing::Failed);
                Answer::Now(Err(error))
            }
        }
    }

    /// The call itself is admitted. What is left of the others is in hand, or given back.
    fn lent(&mut self, charges: &[Charge<'_>], taken: Decision) -> Decision {
        let times = (self.asked, self.leases.table.now());
        let of_store = taken.source().is_of_store();
        let lease = Lease::new(charges, &self.caller.accounts, self.loan.calls, &taken, times);
        if let Some(mut lease) = lease.filter(|_| of_store) {
            let decision = lease.admit_first(charges);
            (lease.cut, lease.share) = (self.trips > 1, mem::take(&mut self.loan.share));
            let few = self.few;
            if self.land(Landing::Lease { lease: Box::new(lease), few }) {
                self.leases.watch();
            }
            return decision;
        }
        self.land(Landing::Failed);
        if of_store {
            // nor will it tell enough next time
            self.leases.pass_all();
        }
        if self.loan.calls > 1 {
            self::times(charges, self.loan.calls - 1, |rest| {
                self.leases.inner.undo(rest, &taken, None);
            });
        }
        taken
    }

    /// Waits for what was wanted where that comes back in a moment, takes what there is, or refuses.
    fn refused(&mut self, charges: &[Charge<'_>], refusal: Decision) -> Answer<S::Future> {
        let (left, soon) = (calls_left(charges, &refusal), calls_in(charges, &refusal, GATHER));
        let gathers = longest(&refusal) <= GATHER && (left == 0 || soon > 0 && self.loan.scarce);
        if gathers || refusal.is_blocked() || self.loan.calls == 1 {
            self.land(Landing::Refused);
            return Answer::Now(Ok(refusal));
        }
        if left > 0 {
            self.few = Some(soon).filter(|soon| *soon > 1);
            // others take it too
            let again = left.min(self.loan.calls - 1);
            self.loan.calls = if self.trips + 1 < TRIPS { again } else { 1 };
            return self.ask(charges);
        }
        let own = of_one(charges, &refusal).unwrap_or(refusal);
        self.land(Landing::Scarce { few: soon, time: longest(&own) });
        Answer::Now(Ok(own))
    }

    fn land(&mut self, landing: Landing) -> bool {
        self.landed = true;
        self.leases.table.land(&self.caller, self.loan.flight, self.changes, landing)
    }
}

impl<S: Store> Drop for Ticket<S> {
    fn drop(&mut self) {
        if !self.landed {
            self.leases.table.land(&self.caller, self.loan.flight, self.changes, Landing::Failed);
        }
    }
}

/// Lends the charges of so many calls at once.
fn times<T>(charges: &[Charge<'_>], calls: u32, read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
    let all = charges.iter().map(|charge| charge.cost(charge.units().saturating_mul(calls)));
    read(&all.collect::<SmallVec<[_; 4]>>())
}

/// Every outcome with its charge.
fn told<'a>(
    charges: &'a [Charge<'a>],
    decision: &'a Decision,
) -> impl Iterator<Item = (&'a Charge<'a>, &'a Outcome)> {
    let each = charges.iter().flat_map(|it| std::iter::repeat_n(it, it.quotas().len()));
    each.zip(decision.outcomes())
}

/// How many calls would pass instead.
fn calls_left(charges: &[Charge<'_>], refusal: &Decision) -> u32 {
    let known = told(charges, refusal).filter(|(_, it)| it.is_known() || it.is_denied());
    known.map(|(charge, it)| it.remaining() / charge.units().max(1)).min().unwrap_or(0)
}

/// How many calls come back in a time, under the quotas that refuse.
fn calls_in(charges: &[Charge<'_>], refusal: &Decision, time: u64) -> u32 {
    let calls = |(charge, outcome): (&Charge<'_>, &Outcome)| {
        let each = outcome.interval()?.as_nanos().saturating_mul(charge.units().into());
        u32::try_from(u128::from(time).checked_div(each)?).ok()
    };
    let denied = told(charges, refusal).filter(|(_, outcome)| outcome.is_denied());
    denied.map(|it| calls(it).unwrap_or(0)).min().unwrap_or(0)
}

fn longest(refusal: &Decision) -> u64 {
    refusal.outcomes().iter().map(Outcome::retry).max().unwrap_or(NEVER)
}

/// What the refusal of many calls says to one; nothing if it does not refuse it.
fn of_one(charges: &[Charge<'_>], refusal: &Decision) -> Option<Decision> {
    let mut own = Decision::new(false, refusal.instant()).from_source(refusal.source());
    for (charge, outcome) in told(charges, refusal) {
        let mut outcome = *outcome;
        if outcome.interval().is_some() {
            outcome = repriced(&outcome, charge, Ask::units(charge.units()));
        } else if outcome.is_known() && charge.units() <= outcome.remaining() {
            outcome.set_retry(0);
        }
        own.push(outcome);
    }
    own.outcomes().iter().any(Outcome::is_denied).then_some(own)
}

/// An answer that is seen to its end, be it that nobody waits for it any more.
pub(super) struct Errand<E: 'static>(Option<BoxFuture<Result<Decision, E>>>);

impl<E: 'static> Errand<E> {
    fn new(answer: impl Future<Output = Result<Decision, E>> + Send + 'static) -> Self {
        Self(Some(Box::pin(answer)))
    }
}

impl<E: 'static> Future for Errand<E> {
    type Output = Result<Decision, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.0 else {
            panic!("an answer was polled after it had resolved");
        };
        let answer = ready!(answer.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(answer)
    }
}

impl<E: 'static> Drop for Errand<E> {
    fn drop(&mut self) {
        if let (Some(answer), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(async move { drop(answer.await) }));
        }
    }
}
