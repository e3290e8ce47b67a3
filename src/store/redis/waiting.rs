//! Requests of this process that wait for slots, in a queue for each account.
//!
//! A request asks the server again when this process frees a slot, with a call that frees it there.
//! Other processes free slots as well, so the first request of a queue also asks once in the mean
//! time for which a slot is held. A process that is denied slots marks them on the server. A process
//! that then frees them leaves one to the others, after as many as the limit.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::select;
use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep_until};

use super::{
    RedisStore,
    protocol::{AccountRequest, Request},
    slots::{Slots, SlotsState, raised, set},
};
use crate::{
    algorithm::{Demand, concurrent::missing},
    decision::{Decision, Outcome, Source},
    name::RuleName,
    quota::Quota,
    store::{Call, Charge, LeaveQueue, Order, SlotQueue, Turn, nanos},
};

/// The time until the first request of a queue asks again, if this process has held no slot of the
/// rule.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two looks at all queues.
const PAUSE: Duration = Duration::from_millis(5);
/// The weight of a new hold time in the mean is one divided by this number.
const WEIGHT: u64 = 8;

/// The requests that wait for slots of one account.
pub(super) struct WaitingRequests {
    queue: SlotQueue,
    /// The mean hold time, bounded.
    interval: Duration,
    /// The instant at which the first request asks again.
    due: Instant,
    /// `true` if another process waits as well.
    pub(super) contended: bool,
    /// The number of freed slots that were taken again since the last one was left.
    kept: u64,
    /// The slots that are left to other processes until the instant `due`.
    left: u64,
}

impl WaitingRequests {
    /// Calls the requests that fit into `room` slots, and at least the first `least`.
    fn call(&mut self, room: u64, least: usize, calls: &mut Vec<Call>) {
        let mut room = room.saturating_sub(self.left);
        for (position, waiting) in self.queue.waiting.values_mut().enumerate() {
            if position >= least && waiting.need > room {
                break;
            }
            calls.extend(waiting.call.take());
            room = room.saturating_sub(waiting.need);
        }
    }

    /// Records that `units` slots were freed. The server still counts `room` slots that are free.
    fn freed(&mut self, units: u64, room: u64, calls: &mut Vec<Call>) {
        self.kept += 1;
        if self.contended && self.left == 0 && self.kept > self.queue.limit {
            (self.kept, self.left, self.due) = (0, units, Instant::now() + self.interval);
        } else {
            self.call(room, 1, calls);
        }
    }
}

/// Slots of one quota that a request needs, with the index of the quota.
type Needed<'a> = (&'a AccountRequest, usize, &'a Quota, &'a Demand);

fn needed(request: &Request) -> impl Iterator<Item = Needed<'_>> {
    let all = request.accounts.iter().filter(|account| !account.report_only);
    let all = all.flat_map(|it| it.slots().map(move |(at, (quota, ask))| (it, at, quota, ask)));
    all.filter(|(.., ask)| ask.cost > 0)
}

fn is_of((account, quota_index, ..): &Needed<'_>, outcome: &Outcome) -> bool {
    (account.rule, *quota_index) == (outcome.rule(), outcome.quota_index())
}

/// Returns the charge of a rule with its turn, if it may wait.
fn waiting<'c>(charges: &[Charge<'c>], rule: RuleName) -> Option<(&'c Arc<Turn>, Duration)> {
    let charge = charges.iter().find(|it| it.rule() == rule && it.queues())?;
    Some((charge.turn()?, charge.max_wait()))
}

impl Slots {
    /// Denies a request without a call, if other requests of this process wait for its slots. It then
    /// waits as well, if it may.
    pub(super) fn queue(
        self: &Arc<Self>,
        request: &Request,
        charges: &[Charge<'_>],
    ) -> Option<Decision> {
        let (state, turn) = (self.state(), charges.iter().find_map(Charge::turn));
        if state.waiting.is_empty() {
            return None;
        }
        let is_behind = |(account, quota_index, _, ask): &Needed<'_>| {
            let (id, order) =
                (self.id(&set(account, *quota_index)), Turn::order(turn, ask.headroom));
            let is_called = turn.is_some_and(|turn| turn.is_called(id));
            !is_called && state.waiting.get(&id).is_some_and(|it| it.queue.is_before(order))
        };
        let full = needed(request).find(is_behind)?;
        let (account, _, quota, _) = full;
        let wait = state.time_to_free(account.rule, quota);
        drop(state);
        let mut decision = Decision::new(false, 0).with_source(Source::DenyCache);
        for named in &request.named {
            let AccountRequest { rule, report_only, .. } = request.accounts[named.account];
            let unknown = Outcome::unknown(rule, named.quota_index, Some(Duration::ZERO));
            let outcome = if is_of(&full, &unknown) {
                Outcome::slots(rule, named.quota_index, quota.burst(), quota.burst().into())
                    .with_expected_wait(wait)
            } else {
                unknown
            };
            decision.outcomes.push(outcome.with_report_only(report_only));
        }
        self.join(&full, charges, &mut Vec::new());
        Some(decision)
    }

    /// Adds the expected waits to a denial, and lets the request wait if it may. Calls the requests
    /// for which there is room.
    pub(super) fn decided(
        self: &Arc<Self>,
        request: &Request,
        charges: &[Charge<'_>],
        decision: &mut Decision,
    ) {
        let (allowed, turn) = (decision.is_allowed(), charges.iter().find_map(Charge::turn));
        let waits = |it: &Outcome| it.is_wait_unknown() && waiting(charges, it.rule()).is_some();
        let denying = |it: &&Outcome| it.is_denied() && !it.is_report_only();
        let mut denying = decision.outcomes.iter().filter(denying);
        let first = denying.clone().next().filter(|_| denying.all(waits));
        let joined = needed(request).find(|it| first.is_some_and(|first| is_of(it, first)));
        let mut calls = Vec::new();
        match (joined, turn) {
            (Some(joined), _) => self.join(&joined, charges, &mut calls),
            (None, Some(turn)) if !allowed => turn.leave_unless(|_| false),
            _ => {}
        }
        let mut state = self.state();
        for it in needed(request) {
            let outcome = decision.outcomes.iter_mut().find(|outcome| is_of(&it, outcome));
            let (account, quota_index, quota, ask) = it;
            let Some((outcome, held)) = outcome.and_then(|it| it.held().map(|held| (it, held)))
            else {
                continue;
            };
            if outcome.is_wait_unknown() {
                let missing = missing(held, quota, *ask).try_into().unwrap_or(u32::MAX);
                let wait = state.time_to_free(account.rule, quota).saturating_mul(missing);
                *outcome = outcome.with_expected_wait(wait);
            }
            if state.waiting.is_empty() || !allowed && !outcome.is_wait_unknown() {
                continue;
            }
            let (set, limit) = (set(account, quota_index), raised(quota).into());
            let (id, interval) = (self.id(&set), state.interval(account.rule));
            let room = if allowed { limit + state.to_free(&set) } else { 0 };
            let Some(queue) = state.waiting.get_mut(&id) else { continue };
            (queue.interval, queue.queue.limit) = (interval, limit);
            let now = Instant::now();
            queue.left = if now < queue.due { queue.left } else { 0 };
            queue.due = if queue.left > 0 { queue.due } else { now + interval };
            if let Some(turn) = turn.filter(|_| allowed) {
                queue.queue.leave(turn, id);
            }
            queue.call(room.saturating_sub(held), 0, &mut calls);
            if queue.queue.waiting.is_empty() {
                state.waiting.remove(&id);
            }
        }
        drop(state);
        drop(calls);
    }

    /// Adds a request to the queue of an account, if it may wait. It leaves any other queue.
    fn join(self: &Arc<Self>, at: &Needed<'_>, charges: &[Charge<'_>], calls: &mut Vec<Call>) {
        let (account, quota_index, quota, ask) = *at;
        let Some((turn, max_wait)) = waiting(charges, account.rule) else { return };
        let (set, limit) = (set(account, quota_index), raised(quota).into());
        let (id, order) = (self.id(&set), Turn::order(Some(turn), ask.headroom));
        turn.leave_unless(|other| other == id);
        let mut state = self.state();
        let (interval, freed) = (state.interval(account.rule), state.to_free(&set));
        let queue = state.waiting.entry(id).or_insert_with(|| {
            self.waits.notify_one();
            let queue = SlotQueue { limit, ..SlotQueue::default() };
            let due = Instant::now() + interval;
            WaitingRequests { queue, interval, due, contended: false, kept: 0, left: 0 }
        });
        queue.queue.join(turn, self.clone(), id, order, ask.need(), nanos(max_wait));
        // These slots were freed after the call was sent.
        queue.call(freed, 0, calls);
    }

    /// Calls the first request of each queue that is due. Returns the next instant at which one is.
    fn call_due(&self) -> Option<Instant> {
        let (now, mut calls, mut state) = (Instant::now(), Vec::new(), self.state());
        for queue in state.waiting.values_mut().filter(|queue| queue.due <= now) {
            (queue.left, queue.due) = (0, now + queue.interval);
            queue.call(0, 1, &mut calls);
        }
        let next = state.waiting.values().map(|queue| queue.due.max(now + PAUSE)).min();
        drop(state);
        drop(calls);
        next
    }
}

impl LeaveQueue for Slots {
    fn leave(&self, id: u64, order: Order) {
        let (mut calls, mut state) = (Vec::new(), self.state());
        let Some(queue) = state.waiting.get_mut(&id) else { return };
        let left = queue.queue.waiting.remove(&order);
        if left.as_ref().is_some_and(|left| left.call.is_none()) {
            queue.call(0, 1, &mut calls);
        }
        if queue.queue.waiting.is_empty() {
            state.waiting.remove(&id);
        }
        self.end_if_idle(&state);
        drop(state);
        drop((left, calls));
    }
}

impl SlotsState {
    /// Records that slots of a set, whose hash is `id`, were freed after a `time` in nanoseconds.
    /// Returns the calls of the requests that may take them.
    pub(super) fn freed_after(
        &mut self,
        time: u64,
        rule: RuleName,
        set: &Arc<str>,
        id: u64,
        units: u32,
    ) -> Vec<Call> {
        let (mean, mut calls) = (self.hold_times.entry(rule).or_insert(time), Vec::new());
        *mean = *mean - *mean / WEIGHT + time / WEIGHT;
        if !self.waiting.is_empty() {
            let room = self.to_free(set);
            let queue = self.waiting.get_mut(&id);
            queue.into_iter().for_each(|queue| queue.freed(units.into(), room, &mut calls));
        }
        calls
    }

    /// Returns the expected time until a slot is freed: the mean hold time, divided by the limit.
    fn time_to_free(&self, rule: RuleName, quota: &Quota) -> Duration {
        let mean = self.hold_times.get(&rule).copied().unwrap_or(0);
        Duration::from_nanos(mean) / quota.burst().max(1)
    }

    pub(super) fn interval(&self, rule: RuleName) -> Duration {
        let mean = self.hold_times.get(&rule).copied().map(Duration::from_nanos);
        mean.unwrap_or(FIRST_INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Calls the first request of each queue in time.
    pub(super) async fn keep_calling(&self) {
        let slots = &self.settings.slots;
        loop {
            let changed = pin!(slots.waits.notified());
            match slots.call_due() {
                Some(due) => _ = select(changed, pin!(sleep_until(due))).await,
                None => changed.await,
            }
        }
    }
}
