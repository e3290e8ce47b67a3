//! Requests of this process that wait for slots, in a queue for each account.
//!
//! A request asks the server again when this process frees a slot, with a call that frees it there.
//! Other processes free slots as well, so the first request of a queue also asks once in the mean
//! time for which a slot is held. A request that is denied slots marks them on the server. Soon after, the
//! next slots that are free are left to its process, until that asks again, which it then does more often.
//! Processes with fewer slots still take them.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use futures_util::future::select;
use redis::aio::ConnectionLike;
use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until};

use super::{
    RedisStore,
    protocol::{AccountRequest, MAX_COST, QuotaRequest, Request},
    slots::{Slots, set},
    waits::MAX_INTERVAL,
};
use crate::{
    algorithm::{Demand, concurrent::missing},
    decision::{Decision, Outcome, Slot, Source},
    name::RuleName,
    quota::Quota,
    store::{Charge, Waiter, waiter::Rank},
};

/// Slots of one quota that a request needs.
#[derive(Clone, Copy)]
struct Needed<'a> {
    account: &'a AccountRequest,
    part: &'a QuotaRequest,
    quota: &'a Quota,
    ask: &'a Demand,
}

fn needed(request: &Request) -> impl Iterator<Item = Needed<'_>> {
    let all = request
        .accounts
        .iter()
        .filter(|account| !account.report_only);
    let all = all.flat_map(|account| {
        account.slots().map(move |(_, part)| Needed {
            account,
            part,
            quota: &part.quota,
            ask: &part.demand,
        })
    });
    all.filter(|needed| needed.ask.cost > 0)
}

impl Needed<'_> {
    /// Returns the key of the sorted set.
    fn set(&self) -> Arc<str> {
        set(self.account, self.part)
    }

    fn is_of(&self, outcome: &Outcome) -> bool {
        self.account.rule == outcome.rule() && self.part.index == outcome.quota_index()
    }
}

/// Returns the longest wait of a rule, if its charge may wait.
fn max_wait(charges: &[Charge<'_>], rule: RuleName) -> Option<Duration> {
    charges
        .iter()
        .find(|charge| charge.rule == rule && charge.queues())
        .map(|charge| charge.max_wait)
}

/// A call for slots by a request that may wait. If it fails or times out, all that wait ask at once,
/// because one after another they would wait for as many timeouts. A request that leaves during its
/// call is like a timeout, but usually earlier than answers come. Then only the next one asks.
pub(super) struct Asking {
    slots: Arc<Slots>,
    request: Arc<Request>,
    /// For each needed quota, how often this process had freed slots.
    frees: SmallVec<[u64; 1]>,
    started: Instant,
    pub(super) has_failed: bool,
    is_answered: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut calls = Vec::new();
        let mut state = self.slots.state();
        for needed in needed(&self.request) {
            let id = self.slots.id(&needed.set());
            let Some(waiting) = state.waits.get_mut(id) else {
                continue;
            };
            waiting.asking -= 1;
            if !self.is_answered {
                // If the next call has no answer either, it counts as a failure.
                let usual = mem::take(&mut waiting.answered_in);
                waiting.failing |= self.has_failed || self.started.elapsed() >= usual;
                if waiting.failing {
                    calls.extend(waiting.queue.waiting.values_mut().filter_map(Option::take));
                }
                waiting.call_first(&mut calls);
            }
            state.waits.remove_unused(id);
        }
        self.slots.end_if_idle(&state);
        drop(state);
        drop(calls);
    }
}

impl Slots {
    /// Denies a request without a call, if other requests of this process wait for its slots. It then
    /// waits as well, if it may.
    pub(super) fn queue(
        self: &Arc<Self>,
        request: &Request,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
    ) -> Option<Decision> {
        let state = self.state();
        if state.waits.is_empty() {
            return None;
        }
        let is_behind = |needed: &Needed<'_>| {
            let Needed { quota, ask, .. } = *needed;
            let id = self.id(&needed.set());
            let rank = Rank::new(waiter, ask.headroom);
            let queue = state.waits.get(id).filter(|waiting| !waiting.failing);
            let is_called = waiter.is_some_and(|waiter| waiter.is_called(id));
            // The server denies a request that never fits.
            let may_fit = ask.need() <= quota.raised_limit() && ask.cost <= MAX_COST;
            !is_called && may_fit && queue.is_some_and(|waiting| waiting.queue.is_before(rank))
        };
        let full = needed(request).find(is_behind)?;
        let Needed { account, quota, .. } = full;
        let wait = state.waits.time_to_free(account.rule, quota);
        drop(state);
        let mut decision = Decision::new(false, 0).with_source(Source::DenyCache);
        for named in &request.named {
            let AccountRequest {
                rule, report_only, ..
            } = request.accounts[named.account];
            let unknown = Outcome::unknown(rule, named.quota_index, Some(Duration::ZERO));
            let outcome = if full.is_of(&unknown) {
                Outcome::slots(rule, named.quota_index, quota.limit(), quota.limit().into())
                    .with_estimated_retry_after(wait)
            } else {
                unknown
            };
            decision
                .outcomes
                .push(outcome.with_report_only(report_only));
        }
        self.join(&full, charges, waiter, true);
        Some(decision)
    }

    /// Starts the call of a request that may wait.
    pub(super) fn ask(self: &Arc<Self>, request: &Arc<Request>) -> Asking {
        let mut state = self.state();
        let mut frees = SmallVec::new();
        for needed in needed(request) {
            let waiting = state
                .waits
                .queue(self.id(&needed.set()), needed.account.rule);
            waiting.asking += 1;
            frees.push(waiting.frees);
        }
        drop(state);
        let slots = self.clone();
        let request = request.clone();
        let started = Instant::now();
        Asking {
            slots,
            request,
            frees,
            started,
            has_failed: false,
            is_answered: false,
        }
    }

    /// Adds the estimated waits to a denial, and lets the request wait if it may. Calls the requests
    /// for which there is room.
    pub(super) fn decided(
        self: &Arc<Self>,
        request: &Request,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
        asking: Option<&mut Asking>,
        decision: &mut Decision,
    ) {
        let allowed = decision.is_allowed();
        decision.slot.iter().for_each(Slot::start);
        let waits = |outcome: &Outcome| {
            outcome.is_estimated() && max_wait(charges, outcome.rule()).is_some()
        };
        let mut denying = decision.outcomes.iter().filter(|outcome| outcome.denies());
        let first = denying.clone().next().filter(|_| denying.all(waits));
        let joined = needed(request).find(|needed| first.is_some_and(|first| needed.is_of(first)));
        match (joined, waiter) {
            (Some(joined), _) => self.join(&joined, charges, waiter, false),
            (None, Some(waiter)) if !allowed => waiter.leave(),
            _ => {}
        }
        let (mut frees, time) = asking.map_or_else(Default::default, |asking| {
            asking.is_answered = true;
            (asking.frees.clone(), asking.started.elapsed())
        });
        frees.reverse();
        let mut calls = Vec::new();
        let mut places = Vec::new();
        let mut state = self.state();
        for needed in needed(request) {
            let frees = frees.pop();
            let outcome = decision
                .outcomes
                .iter_mut()
                .find(|outcome| needed.is_of(outcome));
            let Needed {
                account,
                quota,
                ask,
                ..
            } = needed;
            let Some((outcome, held)) =
                outcome.and_then(|outcome| outcome.held().map(|held| (outcome, held)))
            else {
                continue;
            };
            if outcome.is_estimated() {
                let missing = missing(held, quota, *ask).try_into().unwrap_or(u32::MAX);
                let wait = state
                    .waits
                    .time_to_free(account.rule, quota)
                    .saturating_mul(missing);
                *outcome = outcome.with_estimated_retry_after(wait);
            }
            if state.waits.is_empty() {
                continue;
            }
            let set = needed.set();
            let id = self.id(&set);
            let interval = state.waits.interval(account.rule);
            // These slots were freed after the call was sent.
            let room = (quota.raised_limit() + state.to_free(&set)).saturating_sub(held);
            let Some(waiting) = state.waits.get_mut(id) else {
                continue;
            };
            if let Some(waiter) = waiter.filter(|_| allowed)
                && let Some(place) = waiter.take_place(|queue| queue == id)
            {
                calls.extend(waiting.queue.remove(waiter));
                places.push(place);
            }
            waiting.interval = interval;
            let due = Instant::now() + waiting.pause();
            if due < waiting.due {
                self.waits.notify_one();
            }
            // Slots that this process takes again do not replace the question for more of them, or
            // its share would never grow.
            waiting.due = if allowed { due.min(waiting.due) } else { due };
            waiting.failing = false;
            waiting.answered_in = waiting.answered_in.max(time);
            // The server may count slots no more that were freed after it decided.
            let was_freed = !allowed && frees.is_some_and(|frees| frees != waiting.frees);
            if was_freed {
                waiting.call_first(&mut calls);
            }
            waiting.call_for(room, &mut calls);
        }
        drop(state);
        drop(calls);
    }

    /// Adds a request to the queue of an account, if it may wait. It leaves any other queue. If it asks
    /// for the first time and is the first, because those before it have left, it is called.
    fn join(
        self: &Arc<Self>,
        at: &Needed<'_>,
        charges: &[Charge<'_>],
        waiter: Option<&Waiter>,
        is_new: bool,
    ) {
        let Needed {
            account,
            quota,
            ask,
            ..
        } = *at;
        let Some(waiter) = waiter else { return };
        let Some(max_wait) = max_wait(charges, account.rule) else {
            return;
        };
        let id = self.id(&at.set());
        let rank = Rank::new(Some(waiter), ask.headroom);
        waiter.leave_unless(|other| other == id);
        let mut calls = Vec::new();
        let mut state = self.state();
        let interval = state.waits.interval(account.rule);
        let waiting = state.waits.queue(id, account.rule);
        if waiting.queue.waiting.is_empty() {
            waiting.due = Instant::now() + interval;
            self.waits.notify_one();
        }
        waiting.queue.limit = quota.raised_limit();
        let place = waiter.take_place(|_| true);
        let left = waiting.queue.remove(waiter);
        let slots = self.clone();
        let call = waiter.wait(id, max_wait, move || slots.leave(id, rank));
        let _ = waiting.queue.waiting.insert(rank, Some(call));
        if is_new && !waiting.queue.is_before(rank) {
            waiting.call_first(&mut calls);
        }
        drop(state);
        drop((left, calls, place));
    }

    /// Removes a request from its queue. The next request may then be called.
    fn leave(&self, id: u64, rank: Rank) {
        let mut calls = Vec::new();
        let mut state = self.state();
        let Some(waiting) = state.waits.get_mut(id) else {
            return;
        };
        let left = waiting.queue.waiting.remove(&rank);
        if matches!(left, Some(None)) {
            // It was called, and takes no slot.
            waiting.call_first(&mut calls);
        }
        state.waits.remove_unused(id);
        self.end_if_idle(&state);
        drop(state);
        drop((left, calls));
    }

    /// Calls the first request of each queue that is due at an instant. Returns the next instant at
    /// which one is.
    fn call_due(&self, now: Instant) -> Option<Instant> {
        let mut calls = Vec::new();
        let mut state = self.state();
        let next = state.waits.call_due(now, &mut calls);
        drop(state);
        drop(calls);
        next
    }

    /// Lets the first request of each queue ask, and thereby start the task again.
    pub(super) fn call_all(&self) {
        self.call_due(Instant::now() + MAX_INTERVAL);
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Calls the first request of each queue in time.
    pub(super) async fn keep_calling(&self) {
        let slots = &self.settings.slots;
        loop {
            let changed = pin!(slots.waits.notified());
            match slots.call_due(Instant::now()) {
                Some(due) => _ = select(changed, pin!(sleep_until(due))).await,
                None => changed.await,
            }
        }
    }
}
