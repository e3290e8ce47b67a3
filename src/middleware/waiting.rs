//! Requests that wait: for the turn of their charge, or for a slot.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    RateLimitLayer,
    admission::{Admission, Asked, Next},
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
    /// Decides on a request that may queue.
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
        // Otherwise, a denial may be due to a queue that others have filled.
        let is_due_to_store = queued.is_some() || takes_several;
        let striking = if is_due_to_store {
            PenaltySet::ALL
        } else {
            self.settings.penalties_despite_full_queue(charges)
        };
        let mut waiting: SmallVec<[Charge<'_>; 4]> = SmallVec::from_slice(charges);
        for charge in &mut waiting {
            *charge = charge.with_max_wait(charge.max_wait.saturating_sub(waited));
        }
        let all = Candidates {
            charges: &waiting,
            ..all
        };
        self.attempt(head, all, Attempts::default(), Asked::now(striking), queued)
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
        let is_charged = queued.is_charged();
        if !is_charged && queued.may_ask() {
            return self.admit_again(head, queued);
        }
        let Some(last) = queued.last.take() else {
            return self.admit_again(head, queued);
        };
        let LastDecision {
            mut decision,
            charges,
        } = *last;
        if is_charged {
            return charges.with(|charges| self.respond(head, &mut decision, charges, None, true));
        }
        // That the layer ends all waits is no fault of the client.
        let striking = if queued.is_closed() {
            PenaltySet::NONE
        } else {
            PenaltySet::ALL
        };
        // The layer may have been switched off during the wait.
        match self.settings.check_bypass(head) {
            Ok(()) => {
                charges.with(|charges| self.deny_request(head, &mut decision, charges, striking))
            }
            Err(bypass) => self.bypass(head, bypass),
        }
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
        let last = Box::new(LastDecision {
            decision: decision.clone(),
            charges: charges.into(),
        });
        queued.begin_wait(until, last).ok()
    }

    /// Lets a request wait for the turn of its charge.
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
        let in_time = |queued: &QueuedRequest<S>| {
            let waited = queued.entered.elapsed().saturating_add(decision.wait());
            waited <= longest_wait(head, Duration::MAX)
        };
        // A store may queue a charge that does not ask for it.
        let queued = queued.or_else(|| self.settings.enter_queue(charges));
        let queued = queued.filter(|queued| in_time(queued));
        let decision = mem::replace(decision, Decision::deny());
        let last = Box::new(LastDecision {
            decision,
            charges: charges.into(),
        });
        let undone = match queued {
            Some(mut queued) => {
                queued.observe(&self.settings.metrics, &last.decision, charges);
                match queued.begin_turn(&self.store, last) {
                    Ok(queued) => return Admission::Waiting(queued),
                    Err(last) => last,
                }
            }
            // The queue is full or closed, or the store call took part of the deadline.
            None => last,
        };
        undone.undo(&*self.store);
        self.deny_request(
            head,
            &mut undone.decision.into_denied(),
            charges,
            PenaltySet::NONE,
        )
    }
}
