//! Requests of this process that wait for slots, in a queue for each account.
//!
//! A request asks the server again when this process frees a slot, with a call that frees it there.
//! Other processes free slots as well, so the first request of a queue also asks by itself, once for each
//! mean hold time: the mean of the times for which this process held slots of the rule. A request that is
//! denied slots marks them on the server. Soon after, the next slots that are free are left to its process,
//! until that asks again, which it then does more often.
//! Processes with fewer slots still take them.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use futures_util::future::select;
use redis::aio::ConnectionLike;
use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until};

use super::{
    RedisStore,
    protocol::{AccountRequest, QuotaRequest, Request},
    slots::{Slots, SlotsState, set},
    waits::{MAX_INTERVAL, WaitingRequests, Waits},
};
use crate::{
    algorithm::concurrent::missing,
    decision::{Decision, Outcome, Slot, Source},
    name::RuleName,
    store::{Charge, OwnedCharges, Waiter, Wake, waiter::Rank},
};

/// Slots of one quota that a request needs.
struct NeededSlots<'a> {
    account: &'a AccountRequest,
    quota_request: &'a QuotaRequest,
}

/// Returns the slots that a request cannot do without.
fn needed_slots(request: &Request) -> impl Iterator<Item = NeededSlots<'_>> {
    let accounts = request.accounts.iter();
    let deciding = accounts.filter(|account| !account.report_only);
    let all = deciding.flat_map(|account| {
        account.slots().map(move |(_, quota_request)| NeededSlots {
            account,
            quota_request,
        })
    });
    all.filter(|needed| needed.quota_request.demand.cost > 0)
}

impl NeededSlots<'_> {
    /// Returns the key of the sorted set.
    fn set(&self) -> Arc<str> {
        set(self.account, self.quota_request)
    }

    fn rank(&self, waiter: Option<&Waiter>) -> Rank {
        Rank::new(waiter, self.quota_request.demand.headroom)
    }

    fn is_of(&self, outcome: &Outcome) -> bool {
        self.account.rule == outcome.rule() && self.quota_request.index == outcome.quota_index()
    }

    /// Returns `true` if the request fits once enough slots are free. Otherwise, the server denies it.
    fn may_fit(&self) -> bool {
        self.quota_request.demand.need() <= self.quota_request.quota.raised_limit()
    }

    /// Returns the number of held slots by a decision.
    fn held(&self, decision: &Decision) -> Option<u64> {
        let mut outcomes = decision.outcomes.iter();
        outcomes
            .find(|outcome| self.is_of(outcome))
            .and_then(Outcome::held)
    }

    /// Returns the denial of a request for which these slots are expected to be free after a time.
    fn denial(&self, request: &Request, wait: Duration) -> Decision {
        let mut decision = Decision::new(false, 0).with_source(Source::DenyCache);
        for named in &request.named {
            let account = &request.accounts[named.account];
            let mut outcome =
                Outcome::unknown(account.rule, named.quota_index, Some(Duration::ZERO));
            if self.is_of(&outcome) {
                let limit = self.quota_request.quota.limit();
                outcome = Outcome::slots(account.rule, named.quota_index, limit, limit.into())
                    .with_estimated_retry_after(wait);
            }
            decision
                .outcomes
                .push(outcome.with_report_only(account.report_only));
        }
        decision
    }
}

/// Returns the longest wait of a rule, if its charge may wait.
fn max_wait(charges: &[Charge<'_>], rule: RuleName) -> Option<Duration> {
    charges
        .iter()
        .find(|charge| charge.rule == rule && charge.queues())
        .map(|charge| charge.max_wait)
}

/// A call for slots by a request that may wait.
///
/// If the call fails, all requests that wait ask at once: one after another, they would wait for as many
/// timeouts. The same holds if the call is dropped without an answer after more time than calls were
/// answered in, because a timeout has probably ended it. If it is dropped earlier, its request has left,
/// and only the next one asks.
pub(super) struct Asking {
    slots: Arc<Slots>,
    request: Arc<Request>,
    charges: OwnedCharges,
    waiter: Waiter,
    /// For each needed quota, how often this process had freed slots.
    frees: SmallVec<[u64; 1]>,
    started: Instant,
    pub(super) has_failed: bool,
    is_answered: bool,
}

impl Asking {
    /// Lets a denied request wait, if it may wait for all that denies it. Otherwise, it leaves its queue.
    fn wait_or_leave(&self, decision: &Decision) {
        let mut denying = decision.outcomes.iter().filter(|outcome| outcome.denies());
        let may_wait = denying
            .clone()
            .all(|outcome| outcome.is_estimated() && self.max_wait(outcome.rule()).is_some());
        if may_wait
            && let Some(first) = denying.next()
            && let Some(needed) = needed_slots(&self.request).find(|needed| needed.is_of(first))
            && let Some(max_wait) = self.max_wait(first.rule())
        {
            self.slots.join(&needed, &self.waiter, max_wait);
        } else {
            self.waiter.leave();
        }
    }

    fn max_wait(&self, rule: RuleName) -> Option<Duration> {
        self.charges.with(|charges| max_wait(charges, rule))
    }

    /// Removes an admitted request from the queue of slots that it takes.
    fn leave_admitted(&self) {
        for needed in needed_slots(&self.request) {
            let id = self.slots.id(&needed.set());
            let place = self.slots.change(|state, wakes| {
                let place = self.waiter.take_place(|queue| queue == id);
                if let Some(waiting) = state.waits.get_mut(id).filter(|_| place.is_some()) {
                    wakes.extend(waiting.queue.remove(&self.waiter));
                }
                place
            });
            drop(place);
        }
    }

    /// Notes the answer for the slots of a queue, by the index of the needed quota.
    fn note_answer(
        &self,
        index: usize,
        decision: &Decision,
        waiting: &mut WaitingRequests,
        wakes: &mut Vec<Wake>,
    ) {
        waiting.answered_in = waiting.answered_in.max(self.started.elapsed());
        if !decision.is_allowed() && self.frees[index] != waiting.frees {
            // This process has freed slots since the call started. The denial may have counted them.
            waiting.wake_first(wakes);
        }
    }

    /// Notes that the call for slots of a queue has no answer.
    fn end_unanswered(&self, waiting: &mut WaitingRequests, wakes: &mut Vec<Wake>) {
        // If the next call has no answer either, it counts as a failure.
        let usual = mem::take(&mut waiting.answered_in);
        waiting.failing |= self.has_failed || self.started.elapsed() >= usual;
        if waiting.failing {
            waiting.wake_all(wakes);
        } else {
            waiting.wake_first(wakes);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.slots.change(|state, wakes| {
            for needed in needed_slots(&self.request) {
                let id = self.slots.id(&needed.set());
                let Some(waiting) = state.waits.get_mut(id) else {
                    continue;
                };
                waiting.asking -= 1;
                if !self.is_answered {
                    self.end_unanswered(waiting, wakes);
                }
                state.waits.remove_unused(id);
            }
            self.slots.end_if_idle(state);
        });
    }
}

impl Slots {
    /// Denies a request without a call, if other requests of this process wait for its slots. It then
    /// waits as well, if it may.
    pub(super) fn deny_behind_others(
        self: &Arc<Self>,
        request: &Request,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
    ) -> Option<Decision> {
        let state = self.state();
        if state.waits.is_empty() {
            return None;
        }
        let mut needed = needed_slots(request);
        let full = needed.find(|needed| self.is_behind(&state, needed, waiter))?;
        let rule = full.account.rule;
        let wait = state.waits.time_to_free(rule, &full.quota_request.quota, 1);
        drop(state);
        if let Some(waiter) = waiter
            && let Some(max_wait) = max_wait(charges, rule)
        {
            self.join(&full, waiter, max_wait);
            self.wake_if_first(&full, waiter);
        }
        Some(full.denial(request, wait))
    }

    /// Returns `true` if other requests wait for slots before a request.
    fn is_behind(
        &self,
        state: &SlotsState,
        needed: &NeededSlots<'_>,
        waiter: Option<&Waiter>,
    ) -> bool {
        let id = self.id(&needed.set());
        let is_woken = waiter.is_some_and(|waiter| waiter.is_woken(id));
        if is_woken || !needed.may_fit() {
            return false;
        }
        let queue = state.waits.get(id).filter(|waiting| !waiting.failing);
        queue.is_some_and(|waiting| waiting.queue.is_before(needed.rank(waiter)))
    }

    /// Starts the call of a request that may wait.
    pub(super) fn ask(
        self: &Arc<Self>,
        request: &Arc<Request>,
        charges: &[Charge<'_>],
        waiter: &Waiter,
    ) -> Asking {
        let mut state = self.state();
        let mut frees = SmallVec::new();
        for needed in needed_slots(request) {
            let id = self.id(&needed.set());
            let waiting = state.waits.queue(id, needed.account.rule);
            waiting.asking += 1;
            frees.push(waiting.frees);
        }
        drop(state);
        Asking {
            slots: self.clone(),
            request: request.clone(),
            charges: charges.into(),
            waiter: waiter.clone(),
            frees,
            started: Instant::now(),
            has_failed: false,
            is_answered: false,
        }
    }

    /// Adds the estimated waits to a denial, and lets the request wait if it may. Wakes the requests
    /// for which there is room.
    pub(super) fn decided(
        &self,
        request: &Request,
        mut asking: Option<&mut Asking>,
        decision: &mut Decision,
    ) {
        decision.slot.iter().for_each(Slot::start);
        if let Some(asking) = &mut asking {
            if decision.is_allowed() {
                asking.leave_admitted();
            } else {
                asking.wait_or_leave(decision);
            }
            asking.is_answered = true;
        }
        self.change(|state, wakes| {
            estimate_waits(&state.waits, request, decision);
            if !state.waits.is_empty() {
                self.wake_for_answer(state, wakes, request, asking.as_deref(), decision);
            }
        });
    }

    /// Wakes the requests for which an answer shows room.
    fn wake_for_answer(
        &self,
        state: &mut SlotsState,
        wakes: &mut Vec<Wake>,
        request: &Request,
        asking: Option<&Asking>,
        decision: &Decision,
    ) {
        for (index, needed) in needed_slots(request).enumerate() {
            let Some(held) = needed.held(decision) else {
                continue;
            };
            let set = needed.set();
            let interval = state.waits.interval(needed.account.rule);
            // These slots were freed after the call was sent.
            let limit = needed.quota_request.quota.raised_limit() + state.count_freed(&set);
            let Some(waiting) = state.waits.get_mut(self.id(&set)) else {
                continue;
            };
            if waiting.answered(interval, decision) {
                self.waits_changed.notify_one();
            }
            if let Some(asking) = asking {
                asking.note_answer(index, decision, waiting, wakes);
            }
            waiting.wake_for(limit.saturating_sub(held), wakes);
        }
    }

    /// Adds a request to the queue of an account. It leaves any other queue.
    fn join(self: &Arc<Self>, needed: &NeededSlots<'_>, waiter: &Waiter, max_wait: Duration) {
        let id = self.id(&needed.set());
        let rule = needed.account.rule;
        let rank = needed.rank(Some(waiter));
        waiter.leave_unless(|other| other == id);
        let place = self.change(|state, wakes| {
            let interval = state.waits.interval(rule);
            let waiting = state.waits.queue(id, rule);
            if waiting.queue.waiting.is_empty() {
                waiting.due = Instant::now() + interval;
                self.waits_changed.notify_one();
            }
            waiting.queue.limit = needed.quota_request.quota.raised_limit();
            let place = waiter.take_place(|_| true);
            wakes.extend(waiting.queue.remove(waiter));
            let slots = self.clone();
            let wake = waiter.wait(id, max_wait, move || slots.leave(id, rank));
            let _ = waiting.queue.waiting.insert(rank, Some(wake));
            place
        });
        drop(place);
    }

    /// Wakes a request that has joined a queue without a call, if those before it have left.
    fn wake_if_first(&self, needed: &NeededSlots<'_>, waiter: &Waiter) {
        let id = self.id(&needed.set());
        let rank = needed.rank(Some(waiter));
        self.change(|state, wakes| {
            let waiting = state.waits.get_mut(id);
            if let Some(waiting) = waiting.filter(|waiting| !waiting.queue.is_before(rank)) {
                waiting.wake_first(wakes);
            }
        });
    }

    /// Removes a request from its queue. The next request may then be woken.
    fn leave(&self, id: u64, rank: Rank) {
        self.change(|state, wakes| {
            let Some(waiting) = state.waits.get_mut(id) else {
                return;
            };
            match waiting.queue.waiting.remove(&rank) {
                // It was woken, and takes no slot.
                Some(None) => waiting.wake_first(wakes),
                left => wakes.extend(left.flatten()),
            }
            state.waits.remove_unused(id);
            self.end_if_idle(state);
        });
    }

    /// Wakes the first request of each queue that is due at an instant. Returns the next instant at
    /// which one is.
    fn wake_due(&self, now: Instant) -> Option<Instant> {
        self.change(|state, wakes| state.waits.wake_due(now, wakes))
    }

    /// Lets the first request of each queue ask, and thereby start the task again.
    pub(super) fn wake_all(&self) {
        self.wake_due(Instant::now() + MAX_INTERVAL);
    }
}

/// Adds the estimated waits to a denial.
fn estimate_waits(waits: &Waits, request: &Request, decision: &mut Decision) {
    for needed in needed_slots(request) {
        let mut outcomes = decision.outcomes.iter_mut();
        let outcome = outcomes.find(|outcome| needed.is_of(outcome));
        if let Some(outcome) = outcome.filter(|outcome| outcome.is_estimated())
            && let Some(held) = outcome.held()
        {
            let quota = &needed.quota_request.quota;
            let missing = missing(held, quota, needed.quota_request.demand);
            let wait = waits.time_to_free(needed.account.rule, quota, missing);
            *outcome = outcome.with_estimated_retry_after(wait);
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Wakes the first request of each queue in time.
    pub(super) async fn keep_calling(&self) {
        let slots = &self.settings.slots;
        loop {
            let changed = pin!(slots.waits_changed.notified());
            match slots.wake_due(Instant::now()) {
                Some(due) => _ = select(changed, pin!(sleep_until(due))).await,
                None => changed.await,
            }
        }
    }
}
