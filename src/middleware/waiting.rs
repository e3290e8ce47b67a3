//! Requests that wait: for the turn of their charge, or for a slot.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    RateLimitLayer,
    admission::{Admission, Asked, Next, Passage},
    config::PenaltySet,
    queue::{LastDecision, QueuedRequest},
};
use crate::{
    decision::Decision,
    head::RequestHead,
    reject::Reject,
    rule::{Attempts, Candidates, Rules, longest_wait},
    store::{CannotFail, Charge, Store},
};

/// Decisions on requests that wait. `B` is the type of response bodies.
impl<K, S, R> RateLimitLayer<K, S, R>
where
    K: Rules,
    S: Store<Error: CannotFail>,
{
    /// Decides on a request that may queue. It is `queued` if it has waited before.
    #[inline(never)]
    pub(super) fn decide_queueing<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        all: Candidates<'_, '_>,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let charges = all.charges;
        // A wait for several slots would keep others from slots that are free.
        let takes_several = charges.iter().any(Charge::takes_several_slots);
        // The request holds a place in the queue from here on, because a charge that finds the
        // queue full afterwards could not always be undone.
        let mut queued = match queued {
            None if !takes_several => self.settings.enter_queue(charges),
            queued => queued,
        };
        let waited = match &mut queued {
            Some(queued) if !takes_several => queued.begin_call(),
            // Without a place in the queue, the request does not wait: nothing of `max_wait` is left.
            _ => Duration::MAX,
        };
        let striking = if queued.is_some() || takes_several {
            PenaltySet::ALL
        } else {
            // The denial may be due to a queue that others have filled.
            self.settings.penalties_despite_full_queue(charges)
        };
        let all = Candidates {
            charges: &after_wait(charges, waited),
            ..all
        };
        let asked = Asked::now(striking, queued);
        self.attempt(head, all, Attempts::default(), asked)
    }

    /// Continues a request after its wait.
    pub(super) fn end_wait<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        mut queued: Box<QueuedRequest<S>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let asks_again = !queued.is_charged() && queued.may_ask();
        let Some(last) = queued.last.take_if(|_| !asks_again) else {
            return self.admit_again(head, queued);
        };
        let LastDecision {
            mut decision,
            charges,
        } = *last;
        charges.with(|charges| {
            if decision.is_allowed() {
                return self.run_request(head, &mut decision, charges, None, Passage::AfterWait);
            }
            // The layer may have been switched off during the wait.
            if let Err(bypass) = self.settings.check_bypass(head) {
                return self.bypass(head, bypass);
            }
            let striking = self.settings.penalties_after_wait();
            self.deny_request(head, &mut decision, charges, striking)
        })
    }

    /// Decides on a request that has waited for a slot. The quotas may have changed.
    fn admit_again<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        queued: Box<QueuedRequest<S>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        self.charges(
            head,
            |all| self.decide_queueing(head, all, Some(queued)),
            |bypass| self.bypass(head, bypass),
        )
    }

    /// Lets a denied request wait for a slot, if it has a place in a queue of the store.
    pub(super) fn wait_for_slot(
        &self,
        mut queued: Box<QueuedRequest<S>>,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) -> Option<Box<QueuedRequest<S>>> {
        let until = queued.next_call()?;
        queued.observe(&self.settings.metrics, decision, charges);
        let last = LastDecision::boxed(decision.clone(), charges);
        queued.begin_wait(until, last).ok()
    }

    /// Lets a request wait for the turn of its charge. If it cannot, undoes the charge.
    #[cold]
    pub(super) fn wait_for_turn<B: 'static>(
        &self,
        head: &RequestHead<'_>,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S>
    where
        R: Reject<B>,
    {
        let decision = mem::replace(decision, Decision::deny());
        let last = LastDecision::boxed(decision, charges);
        match self.begin_turn(head, charges, queued, last) {
            Ok(queued) => Admission::Waiting(queued),
            Err(last) => {
                last.undo(&*self.store);
                let mut denied = last.decision.into_denied();
                self.deny_request(head, &mut denied, charges, PenaltySet::NONE)
            }
        }
    }

    /// Begins the wait for the turn of a charge.
    ///
    /// # Errors
    ///
    /// Fails with the decision if the queue is full or closed, or if the deadline of the request is before
    /// its turn.
    fn begin_turn(
        &self,
        head: &RequestHead<'_>,
        charges: &[Charge<'_>],
        queued: Option<Box<QueuedRequest<S>>>,
        last: Box<LastDecision>,
    ) -> Result<Box<QueuedRequest<S>>, Box<LastDecision>> {
        // A store may queue a charge that does not ask for it.
        let Some(mut queued) = queued.or_else(|| self.settings.enter_queue(charges)) else {
            return Err(last);
        };
        // The store call has taken a part of the time until the deadline.
        let waited = queued.entered.elapsed();
        if waited.saturating_add(last.decision.wait()) > longest_wait(head, Duration::MAX) {
            return Err(last);
        }
        queued.observe(&self.settings.metrics, &last.decision, charges);
        queued.begin_turn(&self.store, last)
    }
}

/// Returns the charges of a request that has waited for this time.
fn after_wait<'a>(charges: &[Charge<'a>], waited: Duration) -> SmallVec<[Charge<'a>; 4]> {
    let mut charges = SmallVec::<[Charge<'a>; 4]>::from_slice(charges);
    for charge in &mut charges {
        charge.max_wait = charge.max_wait.saturating_sub(waited);
    }
    charges
}
