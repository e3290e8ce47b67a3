//! Requests that wait: for the turn of their charge, or for a slot.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    admission::{Admission, Asked, Gate, Next, Passage, passage_of},
    config::PenaltySet,
    queue::{LastDecision, QueuedRequest},
};
use crate::{
    decision::Decision,
    reject::Reject,
    rule::{Attempts, Candidates, Rules, longest_wait},
    store::{CannotFail, Charge, Store},
};

impl<K, S, R, B> Gate<'_, K, S, R, B>
where
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<B>,
    B: 'static,
{
    /// Decides on a request that may queue. It is `queued` if it has waited before.
    #[inline(never)]
    pub(super) fn decide_queueing(
        self,
        all: Candidates<'_, '_>,
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        let charges = all.charges;
        // A wait for several slots would keep others from slots that are free.
        let takes_several = charges.iter().any(Charge::takes_several_slots);
        // The request holds a place in the queue from here on, because a charge that finds the
        // queue full afterwards could not always be undone.
        let mut queued = queued;
        // Without a place in the queue, the request does not wait: nothing of `max_wait` is left.
        let mut waited = Duration::MAX;
        if !takes_several {
            queued = queued.or_else(|| self.layer.settings.enter_queue(charges));
            if let Some(queued) = &mut queued {
                waited = queued.begin_call();
            }
        }
        let striking = if queued.is_some() || takes_several {
            PenaltySet::ALL
        } else {
            // The denial may be due to a queue that others have filled.
            self.layer.settings.penalties_despite_full_queue(charges)
        };
        let all = Candidates {
            charges: &after_wait(charges, waited),
            ..all
        };
        let asked = Asked::now(striking);
        self.attempt(all, Attempts::default(), asked, queued)
    }

    /// Continues a request after its wait.
    pub(super) fn end_wait(self, mut queued: Box<QueuedRequest<S>>) -> Next<B, S> {
        if !queued.is_charged() && queued.may_ask() {
            return self.admit_again(queued);
        }
        // Taken, so that the drop of `queued` does not undo the charge.
        let Some(last) = queued.last.take() else {
            return self.admit_again(queued);
        };
        let LastDecision {
            mut decision,
            charges,
        } = *last;
        charges.with(|charges| {
            if decision.is_allowed() {
                return self.run_request(&mut decision, charges, None, Passage::AfterWait);
            }
            // The layer may have been switched off during the wait.
            if let Err(bypass) = self.layer.settings.check_bypass(self.head) {
                return self.bypass(bypass);
            }
            let striking = self.layer.settings.penalties_after_wait();
            self.deny_request(&mut decision, charges, striking, Passage::AfterWait)
        })
    }

    /// Decides on a request that has waited for a slot. The quotas may have changed.
    fn admit_again(self, queued: Box<QueuedRequest<S>>) -> Next<B, S> {
        self.layer.with_charges(
            self.head,
            |all| self.decide_queueing(all, Some(queued)),
            |bypass| self.bypass(bypass),
        )
    }

    /// Lets a denied request wait for a slot, if it has a place in a queue of the store.
    pub(super) fn wait_for_slot(
        self,
        mut queued: Box<QueuedRequest<S>>,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) -> Option<Box<QueuedRequest<S>>> {
        let until = queued.begin_slot_wait()?;
        queued.observe(&self.layer.settings.metrics, decision, charges);
        let last = LastDecision::boxed(decision.clone(), charges);
        queued.begin_wait(until, last).ok()
    }

    /// Lets a request wait for the turn of its charge. If it cannot, undoes the charge.
    #[cold]
    pub(super) fn wait_for_turn(
        self,
        decision: &mut Decision,
        charges: &[Charge<'_>],
        queued: Option<Box<QueuedRequest<S>>>,
    ) -> Next<B, S> {
        let decision = mem::replace(decision, Decision::deny());
        let last = LastDecision::boxed(decision, charges);
        let passage = passage_of(queued.as_deref());
        match self.queue_for_turn(charges, queued, last) {
            Ok(queued) => Admission::Waiting(queued),
            Err(last) => {
                last.undo(&*self.layer.store);
                let mut denied = last.decision.into_denied();
                self.deny_request(&mut denied, charges, PenaltySet::NONE, passage)
            }
        }
    }

    /// Returns the request, which waits for the turn of its charge.
    ///
    /// # Errors
    ///
    /// Fails with the decision if the queue is full or closed, or if the deadline of the request is before
    /// its turn.
    fn queue_for_turn(
        self,
        charges: &[Charge<'_>],
        queued: Option<Box<QueuedRequest<S>>>,
        last: Box<LastDecision>,
    ) -> Result<Box<QueuedRequest<S>>, Box<LastDecision>> {
        // A store may queue a charge that does not ask for it.
        let Some(mut queued) = queued.or_else(|| self.layer.settings.enter_queue(charges)) else {
            return Err(last);
        };
        // The store call has taken a part of the time until the deadline.
        let waited = queued.entered.elapsed();
        if waited.saturating_add(last.decision.wait()) > longest_wait(self.head, Duration::MAX) {
            return Err(last);
        }
        queued.observe(&self.layer.settings.metrics, &last.decision, charges);
        queued.begin_turn(&self.layer.store, last)
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
