//! The slots that this process holds.
//!
//! Each slot is an entry of its own on the server, and has a number that no other slot of this
//! process has. Taking, freeing and renewing a slot are therefore idempotent, and calls on one
//! account need no order, but for one case: a take without an answer is on its way over a connection that
//! was replaced, and the server reads it after the free. The slot then counts for one time to live,
//! although no request holds it.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::Instant,
};

use super::{
    protocol::{
        AccountRequest, MAX_COST, QuotaRequest, Request, RequestSlots, SlotTake,
        reply::AccountReply,
    },
    waits::Waits,
};
use crate::{
    decision::{FreeSlots, Hold},
    log::{log_once, warn},
    name::RuleName,
    store::{Wake, nanos, subtract},
};

/// The maximum number of slots that a call frees.
pub(super) const MAX_FREED: u32 = 1_024;
/// The maximum number of slots that a call renews.
pub(super) const MAX_RENEWED: u32 = 256;
/// The number of steps over which the renewals of a third of the time to live are spread.
pub(super) const STEPS: u32 = 16;

/// The slots that this process holds.
pub(crate) struct Slots {
    /// The first half of the members of all slots.
    pub(crate) store: u64,
    /// The time for which a slot counts, unless it is renewed.
    pub(super) ttl: Duration,
    created: Instant,
    pub(super) test_clock: Option<Arc<AtomicU64>>,
    state: Mutex<SlotsState>,
    seed: RandomState,
    /// Wakes the task, to free slots.
    pub(super) wake_to_free: Notify,
    /// Wakes the task that wakes waiting requests in time, when the next instant has changed.
    pub(super) waits_changed: Notify,
}

/// The slots of each request have consecutive numbers. The first number stands for the request.
#[derive(Default)]
pub(super) struct SlotsState {
    /// The number of the next slot.
    next: u64,
    held: HashMap<u64, RunningSlots>,
    /// The number of slots that this process holds, by the [id](Slots::id) of the account.
    units: HashMap<u64, u64>,
    /// Slots that the server may still count, with the instant from which it does not in any case.
    freed: BTreeMap<RequestSlots, u64>,
    /// The requests that wait, by the [id](Slots::id) of the account.
    pub(super) waits: Waits,
    /// The number of takes without an answer.
    taking: usize,
    /// The task that renews and frees slots, while it is needed.
    pub(super) task: Option<JoinHandle<()>>,
}

struct RunningSlots {
    slots: RequestSlots,
    /// The [id](Slots::id) of the account.
    id: u64,
    rule: RuleName,
    /// The instant from which a request holds them. It may still be denied by other servers.
    started_at: Option<u64>,
    /// The instant at which the call that took or renewed them was sent. They end later than one time to
    /// live after it.
    renewed_at: u64,
    /// Closed when the slots are lost.
    lost: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new(ttl: Duration, test_clock: Option<Arc<AtomicU64>>) -> Self {
        Self {
            store: RandomState::new().hash_one("store"),
            ttl,
            created: Instant::now(),
            test_clock,
            state: Mutex::default(),
            seed: RandomState::new(),
            wake_to_free: Notify::new(),
            waits_changed: Notify::new(),
        }
    }

    /// Returns the nanoseconds of a clock that does not step back.
    pub(super) fn now(&self) -> u64 {
        let real = || nanos(self.created.elapsed());
        self.test_clock
            .as_ref()
            .map_or_else(real, |clock| clock.load(Relaxed))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SlotsState> {
        self.state.lock()
    }

    /// Changes the state. The wakes are made once it is unlocked: a waker may run any code.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SlotsState, &mut Vec<Wake>) -> T) -> T {
        let mut wakes = Vec::new();
        let changed = change(&mut self.state(), &mut wakes);
        drop(wakes);
        changed
    }

    /// Returns a hash of the key of a sorted set.
    pub(super) fn id(&self, set: &str) -> u64 {
        self.seed.hash_one(set)
    }

    /// Lets the task end if it is not needed.
    pub(super) fn end_if_idle(&self, state: &SlotsState) {
        if state.is_idle() {
            self.wake_to_free.notify_one();
        }
    }

    /// Returns the end of an entry that the server makes now.
    fn end(&self) -> u64 {
        self.now().saturating_add(nanos(self.ttl))
    }

    pub(crate) fn ttl_micros(&self) -> u64 {
        nanos(self.ttl) / 1_000
    }

    /// Returns as how many of the 4,096 callers of a call a caller counts, so that the call takes at most
    /// 1,024 slots.
    pub(crate) fn weight(request: &Request) -> usize {
        let slots = request.accounts.iter().flat_map(AccountRequest::slots);
        let large = slots
            .filter(|(_, quota_request)| quota_request.quota.raised_limit() > MAX_FREED.into());
        let cost = large.map(|(_, quota_request)| quota_request.demand.cost.min(MAX_COST));
        (4 * cost.max().unwrap_or(0)).max(1) as usize
    }

    /// Numbers the slots that equal requests of several callers take.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request, callers: usize) -> SlotCall {
        let sent_at = self.now();
        let mut takes = SmallVec::new();
        for (at, account) in request.accounts.iter().enumerate() {
            for (index, quota_request) in account.slots() {
                let callers = fitting(quota_request, callers);
                let take = self.number(account, quota_request, callers);
                takes.push(QuotaSlots {
                    id: self.id(&take.set),
                    take,
                    account: at,
                    quota: index,
                    rule: account.rule,
                    until_head: quota_request.quota.sheds(),
                    callers,
                });
            }
        }
        SlotCall {
            slots: self.clone(),
            sent_at,
            takes,
        }
    }

    /// Numbers the slots of one quota that a number of callers take.
    fn number(
        &self,
        account: &AccountRequest,
        quota_request: &QuotaRequest,
        callers: u32,
    ) -> SlotTake {
        let set = set(account, quota_request);
        let id = self.id(&set);
        let cost = allowed_cost(quota_request.demand.cost);
        let waits = quota_request.demand.max_wait > 0 && !account.report_only && callers > 0;
        let mut state = self.state();
        let first = state.next;
        state.next += u64::from(cost) * u64::from(callers);
        state.taking += 1;
        let mark_millis = if waits {
            state.waits.mark_millis(account.rule)
        } else {
            0
        };
        SlotTake {
            store: self.store,
            first,
            cost,
            ttl_micros: self.ttl_micros(),
            own: state.units.get(&id).copied().unwrap_or(0),
            mark_millis,
            freed: state.freed_in(&set),
            set,
        }
    }

    /// Returns `true` if this process needs no task: it holds, takes and frees no slots, and no request
    /// waits for one. The task then ends.
    pub(super) fn ends(&self) -> bool {
        let mut state = self.state();
        let ends = state.is_idle();
        if ends {
            state.task = None;
        }
        ends
    }

    /// Returns the freed slots that the server may still count.
    pub(super) fn to_free(&self) -> Vec<RequestSlots> {
        let now = self.now();
        let mut state = self.state();
        state.freed.retain(|_, ends_at| *ends_at > now);
        state.freed.keys().cloned().collect()
    }

    /// Returns the held slots to renew in a step, or all.
    pub(super) fn to_renew(&self, step: Option<u32>) -> Vec<RequestSlots> {
        let now = self.now();
        let state = self.state();
        let due = state.held.iter().filter(|(first, held)| {
            let age = now.saturating_sub(held.renewed_at);
            step.is_none_or(|step| self.is_due(step, **first, age))
        });
        due.map(|(_, held)| held.slots.clone()).collect()
    }

    /// Returns `true` if slots are renewed in a step: those whose numbers have their turn and that were
    /// not taken in the last step, and those that have missed it. Slots with near numbers have their
    /// turn together.
    fn is_due(&self, step: u32, first: u64, age: u64) -> bool {
        let period = nanos(self.ttl) / 3;
        let turn = first / u64::from(MAX_RENEWED) % u64::from(STEPS);
        let has_turn = turn == u64::from(step) && age > period / u64::from(STEPS);
        has_turn || age > period
    }

    /// Records that the server no longer counts slots.
    pub(super) fn removed(&self, requests: &[RequestSlots]) {
        let mut state = self.state();
        for slots in requests {
            state.freed.remove(slots);
        }
    }

    /// Records a renewal that was sent at an instant, with `1` for each request whose slots count.
    pub(super) fn renewed(&self, requests: &[RequestSlots], counted: &[u8], sent_at: u64) {
        let mut lost = Vec::new();
        let mut state = self.state();
        for (RequestSlots { first, .. }, counts) in requests.iter().zip(counted) {
            match state.held.get_mut(first) {
                Some(held) if *counts == b'1' => held.renewed_at = sent_at,
                _ => lost.extend(state.remove_held(*first)),
            }
        }
        drop(state);
        lost.iter().for_each(|held| held.lost.close());
    }
}

impl SlotsState {
    /// Records that a request holds slots.
    fn hold(&mut self, held: RunningSlots) {
        *self.units.entry(held.id).or_default() += u64::from(held.slots.units);
        self.held.insert(held.slots.first, held);
    }

    /// Records that a request no longer holds slots. Returns `None` if they were lost.
    fn remove_held(&mut self, first: u64) -> Option<RunningSlots> {
        let held = self.held.remove(&first)?;
        subtract(&mut self.units, held.id, held.slots.units.into());
        Some(held)
    }

    /// Returns `true` if this process neither holds, takes nor frees slots, and no request waits.
    pub(super) fn is_idle(&self) -> bool {
        let is_used = self.taking > 0 || !self.held.is_empty() || !self.freed.is_empty();
        !is_used && self.waits.is_empty()
    }

    /// Notes the answer of a call for slots, whose marks and frees it has made.
    fn note_answer(&mut self, taken: &QuotaSlots, account: &AccountReply) {
        self.taking -= 1;
        for slots in &taken.take.freed {
            self.freed.remove(slots);
        }
        if taken.take.mark_millis > 0
            && let Some(waiting) = self.waits.get_mut(taken.id)
        {
            waiting.mark(account.is_marked);
        }
    }

    /// Returns the freed slots in a set that the server may still count, oldest first.
    fn freed_of(&self, set: &Arc<str>) -> impl Iterator<Item = &RequestSlots> {
        let first = RequestSlots::new(set, 0, 0);
        let last = RequestSlots::new(set, u64::MAX, u32::MAX);
        self.freed.range(first..=last).map(|(slots, _)| slots)
    }

    /// Returns the number of freed slots in a set that the server may still count.
    pub(super) fn count_freed(&self, set: &Arc<str>) -> u64 {
        self.freed_of(set).map(|slots| u64::from(slots.units)).sum()
    }

    /// Returns the freed slots in a set, as many as one call frees.
    fn freed_in(&self, set: &Arc<str>) -> Vec<RequestSlots> {
        let mut room = MAX_FREED;
        let freed = self.freed_of(set).map_while(|slots| {
            room = room.checked_sub(slots.units)?;
            Some(slots.clone())
        });
        freed.collect()
    }
}

impl FreeSlots for Slots {
    /// Frees the slots from the number `first` on, unless they were lost.
    fn free(&self, first: u64, _: u64, _: u64) {
        let now = self.now();
        let ends_at = self.end();
        self.change(|state, wakes| {
            let Some(held) = state.remove_held(first) else {
                return;
            };
            if let Some(start) = held.started_at {
                let time = now.saturating_sub(start);
                state.waits.record_hold(held.rule, time);
            }
            let set = held.slots.set.clone();
            state.freed.insert(held.slots, ends_at);
            if !state.waits.is_empty() {
                let room = state.count_freed(&set);
                state.waits.freed(held.id, room, wakes);
            }
        });
        self.wake_to_free.notify_one();
    }

    fn start(&self, first: u64) {
        let now = self.now();
        if let Some(held) = self.state().held.get_mut(&first) {
            held.started_at = Some(now);
        }
    }
}

/// The slots of one quota in a call. The callers of equal requests have consecutive slots.
struct QuotaSlots {
    take: SlotTake,
    /// The index of the account in the request.
    account: usize,
    /// The index of the quota in the account.
    quota: usize,
    /// The [id](Slots::id) of the account.
    id: u64,
    rule: RuleName,
    /// `true` if the slots are free at the head of the response.
    until_head: bool,
    /// The number of callers that take slots.
    callers: u32,
}

impl QuotaSlots {
    /// Returns the slots that a caller of the call holds, which was sent at an instant.
    fn held(&self, slots: RequestSlots, sent_at: u64, lost: Arc<Semaphore>) -> RunningSlots {
        RunningSlots {
            slots,
            id: self.id,
            rule: self.rule,
            started_at: None,
            renewed_at: sent_at,
            lost,
        }
    }

    /// Returns the slots of each caller.
    fn slots(&self) -> impl Iterator<Item = RequestSlots> {
        let SlotTake {
            set, first, cost, ..
        } = &self.take;
        let callers = 0..u64::from(self.callers);
        callers.map(move |caller| RequestSlots::new(set, first + caller * u64::from(*cost), *cost))
    }
}

/// The slots of a call. Without an answer, they are freed, because the server may count them.
pub(crate) struct SlotCall {
    slots: Arc<Slots>,
    sent_at: u64,
    takes: SmallVec<[QuotaSlots; 1]>,
}

/// Returns the key of the sorted set of a quota, which is in the hash slot of its account.
pub(super) fn set(account: &AccountRequest, quota_request: &QuotaRequest) -> Arc<str> {
    account.quota_key(":s", quota_request.address).into()
}

impl SlotCall {
    /// Returns the slots of one quota, by the indices of its account and of itself.
    pub(crate) fn of(&self, account: usize, quota: usize) -> Option<&SlotTake> {
        let mut all = self.takes.iter();
        let found = all.find(|slots| slots.account == account && slots.quota == quota)?;
        Some(&found.take)
    }

    /// Returns `true` if the call may take slots.
    pub(crate) fn takes_any(&self) -> bool {
        !self.takes.is_empty()
    }

    /// Records the answer, with the number of callers that took the slots of each account. Returns
    /// the slots of each of them.
    ///
    /// If the answer is later than one time to live, they may have ended, and begin as lost.
    pub(crate) fn answered(mut self, accounts: &[AccountReply]) -> Vec<Vec<Hold>> {
        let ends_at = self.slots.end();
        let are_lost = self.slots.now().saturating_sub(self.sent_at) >= nanos(self.slots.ttl);
        let mut holds = Vec::new();
        for taken in mem::take(&mut self.takes) {
            let account = &accounts[taken.account];
            let mut state = self.slots.state();
            state.note_answer(&taken, account);
            for (caller, slots) in taken.slots().take(account.charges).enumerate() {
                let lost = Arc::new(Semaphore::new(0));
                let hold = Hold::new(self.slots.clone(), slots.first, 0, slots.units);
                if are_lost {
                    lost.close();
                    state.freed.insert(slots, ends_at);
                } else {
                    state.hold(taken.held(slots, self.sent_at, lost.clone()));
                }
                holds.resize_with(holds.len().max(caller + 1), Vec::new);
                holds[caller].push(hold.until_head(taken.until_head).with_loss(lost));
            }
            // Also frees those that are lost.
            if are_lost {
                self.slots.wake_to_free.notify_one();
            }
            self.slots.end_if_idle(&state);
        }
        holds
    }
}

impl Drop for SlotCall {
    fn drop(&mut self) {
        let ends_at = self.slots.end();
        for taken in &self.takes {
            let mut state = self.slots.state();
            state.taking -= 1;
            state
                .freed
                .extend(taken.slots().map(|slots| (slots, ends_at)));
            drop(state);
            self.slots.wake_to_free.notify_one();
        }
    }
}

/// Returns the slots that a request of a cost takes: none if they are too many, which is then denied.
fn allowed_cost(cost: u32) -> u32 {
    if cost <= MAX_COST {
        return cost;
    }
    log_once!(warn!(
        "a request for {cost} slots is denied, because a request takes at most {MAX_COST} on Redis; \
         lower its cost (logged once)"
    ));
    0
}

/// Returns the number of callers whose slots fit into the limit, of those that ask.
fn fitting(quota_request: &QuotaRequest, callers: usize) -> u32 {
    let cost = allowed_cost(quota_request.demand.cost);
    let most = quota_request.quota.raised_limit().checked_div(cost.into());
    let fitting = most.unwrap_or(0).min(callers as u64);
    u32::try_from(fitting).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_counts_from_the_instant_at_which_it_was_sent() {
        let clock = Arc::new(AtomicU64::new(5_000_000_000));
        let slots = Slots::new(Duration::from_secs(9), Some(clock));
        let requests = vec![RequestSlots::new(&"set".into(), 0, 1)];
        let held = RunningSlots {
            slots: requests[0].clone(),
            id: 7,
            rule: RuleName::default(),
            started_at: None,
            renewed_at: 0,
            lost: Arc::new(Semaphore::new(0)),
        };
        slots.state().hold(held);
        // A third of the time to live is less than the 4 s for which the answer was on its way.
        slots.renewed(&requests, b"1", 1_000_000_000);
        assert_eq!(
            slots.to_renew(Some(9)),
            requests,
            "it is due although it is not its turn"
        );
        slots.renewed(&requests, b"1", 4_000_000_000);
        assert_eq!(slots.to_renew(Some(9)), []);
    }
}
