//! The slots that this process holds, and the task that frees and renews them.
//!
//! The slots that a call takes are one entry on the server, with a number that no other call has. A
//! process sends how many slots of an entry are left, which never grows. Taking, freeing and renewing
//! slots are therefore idempotent, and calls on one account need no order.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    mem,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{ready, select},
    stream,
};
use redis::{Value, aio::ConnectionLike};
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::{Instant, interval, sleep},
};

use super::waiting::WaitingRequests;
use crate::{
    decision::{FreeSlots, Hold},
    log::warn,
    name::RuleName,
    observe::store_failed,
    quota::Quota,
    store::{
        nanos,
        redis::{
            RedisStore,
            cluster::slot,
            connection::runtime,
            error::RedisError,
            protocol::{
                AccountRequest, EncodedPlan, Request, reply::AccountReply, script::ScriptKind,
            },
        },
    },
};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;
/// The maximum number of entries that a call frees.
const MAX_FREED: usize = 1_024;
/// The maximum number of entries that a call renews.
const MAX_RENEWED: usize = 256;
/// The maximum number of calls that renew or free slots at the same time.
const MAX_CALLS: usize = 16;
/// The number of steps over which the renewals of a third of the time to live are spread.
const STEPS: u32 = 16;
/// The time in which freed slots are collected, so that one call frees them.
const COLLECT: Duration = Duration::from_millis(1);
/// The pause after a call that failed.
const RETRY: Duration = Duration::from_millis(250);

/// The slots that this process holds.
pub(crate) struct Slots {
    /// Stands for this process in marks, and is the first number.
    pub(crate) store: u64,
    /// The time for which a slot counts, unless it is renewed.
    ttl: Duration,
    created: Instant,
    test_clock: Option<Arc<AtomicU64>>,
    state: Mutex<SlotsState>,
    seed: RandomState,
    /// Wakes the task, to free slots.
    wake: Notify,
    /// Wakes the task, to call requests that wait.
    pub(super) waits: Notify,
}

#[derive(Default)]
pub(super) struct SlotsState {
    /// The number of calls that took slots.
    calls: u64,
    /// The held slots, by the number of their call.
    held: HashMap<u64, RunningSlots>,
    /// The number of slots that this process holds or takes, by the [id](Slots::id) of the account.
    units: HashMap<u64, u64>,
    /// Slots that the server may still count, by their key and the number of their call.
    freed: BTreeMap<(Arc<str>, u64), FreedSlots>,
    /// The requests that wait, by the [id](Slots::id) of the account.
    pub(super) waiting: HashMap<u64, WaitingRequests>,
    /// The mean time in nanoseconds for which this process held slots of a rule.
    pub(super) hold_times: HashMap<RuleName, u64>,
    /// The number of takes without an answer.
    taking: usize,
    /// The task that renews and frees slots, while it is needed.
    task: Option<JoinHandle<()>>,
}

/// The slots of a call, which are one entry on the server.
struct RunningSlots {
    /// The key of the entry.
    set: Arc<str>,
    /// The [id](Slots::id) of the account.
    id: u64,
    /// The number of slots that are not freed.
    left: u32,
    rule: RuleName,
    /// The instant from which requests hold them. They may still be denied by other servers.
    started_at: Option<u64>,
    renewed_at: u64,
    /// Closed when the slots are lost.
    lost: Arc<Semaphore>,
}

#[derive(Clone, Copy)]
struct FreedSlots {
    /// The number of slots that the entry may have on the server.
    before: u32,
    left: u32,
    /// The instant from which the server does not count them in any case.
    ends_at: u64,
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
            wake: Notify::new(),
            waits: Notify::new(),
        }
    }

    /// Returns the nanoseconds of a clock that does not step back.
    fn now(&self) -> u64 {
        let real = || nanos(self.created.elapsed());
        self.test_clock.as_ref().map_or_else(real, |clock| clock.load(Relaxed))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SlotsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a hash of the key of a sorted set.
    pub(super) fn id(&self, set: &str) -> u64 {
        self.seed.hash_one(set)
    }

    /// Lets the task end if it is not needed.
    pub(super) fn end_if_idle(&self, state: &SlotsState) {
        if state.is_idle() {
            self.wake.notify_one();
        }
    }

    /// Returns the end of an entry that the server makes now.
    fn end(&self) -> u64 {
        self.now().saturating_add(nanos(self.ttl))
    }

    pub(crate) fn ttl_micros(&self) -> u64 {
        nanos(self.ttl) / 1_000
    }
}

impl SlotsState {
    /// Counts slots of an account as held or taken. Returns their number before.
    fn add(&mut self, id: u64, units: u64) -> u64 {
        let all = self.units.entry(id).or_default();
        *all += units;
        *all - units
    }

    /// Counts slots of an account no more.
    fn remove(&mut self, id: u64, units: u64) {
        let Entry::Occupied(mut all) = self.units.entry(id) else { return };
        *all.get_mut() = all.get().saturating_sub(units);
        if *all.get() == 0 {
            all.remove();
        }
    }

    /// Returns `true` if this process neither holds, takes nor frees slots, and no request waits.
    fn is_idle(&self) -> bool {
        let is_used = self.taking > 0 || !self.held.is_empty() || !self.freed.is_empty();
        !is_used && self.waiting.is_empty()
    }

    /// Returns the number of freed slots in a set that the server may still count.
    pub(super) fn to_free(&self, set: &Arc<str>) -> u64 {
        let all = self.freed.range((set.clone(), 0)..=(set.clone(), u64::MAX));
        all.map(|(_, freed)| u64::from(freed.before - freed.left)).sum()
    }

    /// Records that the server knows how many slots of a call are left.
    fn told(&mut self, set: &Arc<str>, number: u64, left: u32) {
        let at = (set.clone(), number);
        let Some(freed) = self.freed.get_mut(&at) else { return };
        freed.before = freed.before.min(left);
        if freed.before == freed.left {
            self.freed.remove(&at);
        }
    }
}

impl FreeSlots for Slots {
    /// Frees slots of a call, unless they were lost.
    fn free(&self, number: u64, _: u64, units: u64) {
        let (now, ends_at) = (self.now(), self.end());
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&number) else { return };
        let before = held.left;
        held.left = held.left.saturating_sub(units.try_into().unwrap_or(u32::MAX));
        let (set, id, rule, left) = (held.set.clone(), held.id, held.rule, held.left);
        let time = held.started_at.map(|start| now.saturating_sub(start));
        if left == 0 {
            state.held.remove(&number);
        }
        state.remove(id, units);
        let freed = FreedSlots { before, left, ends_at };
        let known = state.freed.entry((set.clone(), number)).or_insert(freed);
        (known.left, known.ends_at) = (left, ends_at);
        let calls = state.freed_after(time, rule, &set, id);
        drop(state);
        // A waker may run any code, so the lock is released first.
        drop(calls);
        self.wake.notify_one();
    }

    fn start(&self, number: u64) {
        let now = self.now();
        let mut state = self.state();
        if let Some(held) = state.held.get_mut(&number) {
            held.started_at.get_or_insert(now);
        }
    }
}

/// The slots of one quota in a call.
pub(crate) struct SlotTake {
    /// The index of the account in the request, and that of the quota.
    at: (usize, usize),
    /// The key of the slots.
    pub(crate) set: Arc<str>,
    /// The [id](Slots::id) of the account.
    id: u64,
    rule: RuleName,
    /// The slots of the account that this process holds or takes already.
    pub(crate) own: u64,
    pub(crate) number: u64,
    /// The slots that each caller takes.
    pub(crate) cost: u32,
    /// `true` if the slots are free at the head of the response.
    until_head: bool,
    /// The milliseconds for which the mark of a denied request counts, or 0 if it does not wait.
    pub(crate) waits: u64,
    /// The number of callers that take slots.
    callers: u32,
    pub(crate) freed: Vec<(u64, u32)>,
}

impl SlotTake {
    /// Returns the slots of a number of callers.
    fn units(&self, callers: u32) -> u64 {
        u64::from(callers) * u64::from(self.cost)
    }
}

/// The slots of a call. Without an answer, they are freed, because the server may count them.
pub(crate) struct SlotCall {
    slots: Arc<Slots>,
    pub(crate) takes: SmallVec<[SlotTake; 1]>,
}

impl Slots {
    /// Starts to take slots for equal requests of several callers.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request, callers: usize) -> SlotCall {
        let mut call = SlotCall { slots: self.clone(), takes: SmallVec::new() };
        for (account_index, account) in request.accounts.iter().enumerate() {
            for (quota_index, (quota, ask)) in account.slots() {
                let cost = if ask.cost > MAX_COST { too_many(ask.cost) } else { ask.cost };
                // No more callers than fit.
                let most = raised(quota).checked_div(cost).unwrap_or(0);
                let callers = u32::try_from(callers).map_or(most, |callers| callers.min(most));
                let (set, rule) = (set(account, quota_index), account.rule);
                let (id, units) = (self.id(&set), u64::from(cost) * u64::from(callers));
                let mut state = self.state();
                let own = state.add(id, units);
                state.taking += 1;
                let (number, freed) = (self.store.wrapping_add(state.calls), state.freed(&set));
                let waits = if account.report_only || callers == 0 { 0 } else { ask.max_wait };
                let waits = waits * state.mark_millis(rule);
                state.calls += 1;
                drop(state);
                let (at, until_head) = ((account_index, quota_index), quota.sheds());
                call.takes.push(SlotTake {
                    at,
                    set,
                    id,
                    rule,
                    own,
                    number,
                    cost,
                    until_head,
                    waits,
                    callers,
                    freed,
                });
            }
        }
        call
    }
}

/// Returns the key of the slots of a quota, which is in the cluster slot of its account.
pub(super) fn set(account: &AccountRequest, quota_index: usize) -> Arc<str> {
    format!("{}:s{quota_index}", account.address).into()
}

/// Returns the most slots that a quota allows.
pub(super) fn raised(quota: &Quota) -> u32 {
    quota.burst().saturating_add(quota.soft())
}

impl SlotsState {
    /// Returns the calls of a key with freed slots that the server may still count, and how many of
    /// each are left.
    fn freed(&self, set: &Arc<str>) -> Vec<(u64, u32)> {
        let all = self.freed.range((set.clone(), 0)..=(set.clone(), u64::MAX));
        all.take(MAX_FREED).map(|((_, number), freed)| (*number, freed.left)).collect()
    }
}

impl SlotCall {
    /// Returns the slots of one quota.
    pub(crate) fn of(&self, account: usize, quota_index: usize) -> Option<(&Slots, &SlotTake)> {
        let take = self.takes.iter().find(|take| take.at == (account, quota_index))?;
        Some((&*self.slots, take))
    }

    /// Records the answer, with the number of callers that took the slots of each account. Returns
    /// the slots of each of them.
    pub(crate) fn answered(mut self, accounts: &[AccountReply]) -> Vec<Vec<Hold>> {
        let (mut holds, now) = (Vec::new(), self.slots.now());
        for take in mem::take(&mut self.takes) {
            let mut state = self.slots.state();
            state.taking -= 1;
            for (number, left) in &take.freed {
                state.told(&take.set, *number, *left);
            }
            let charges = accounts[take.at.0].charges.try_into().unwrap_or(u32::MAX);
            let (charges, lost) = (take.callers.min(charges), Arc::new(Semaphore::new(0)));
            state.remove(take.id, take.units(take.callers - charges));
            for caller in 0..charges as usize {
                let hold = Hold::new(self.slots.clone(), take.number, 0, take.cost);
                holds.resize_with(holds.len().max(caller + 1), Vec::new);
                holds[caller].push(hold.until_head(take.until_head).with_loss(lost.clone()));
            }
            let (set, id, left, rule) = (take.set, take.id, charges * take.cost, take.rule);
            let held =
                RunningSlots { set, id, left, rule, started_at: None, renewed_at: now, lost };
            if left > 0 {
                state.held.insert(take.number, held);
            }
            self.slots.end_if_idle(&state);
        }
        holds
    }
}

impl Drop for SlotCall {
    fn drop(&mut self) {
        let ends_at = self.slots.end();
        for take in &self.takes {
            let mut state = self.slots.state();
            state.taking -= 1;
            state.remove(take.id, take.units(take.callers));
            let before = take.callers * take.cost;
            let freed = FreedSlots { before, left: 0, ends_at };
            state.freed.insert((take.set.clone(), take.number), freed);
            drop(state);
            self.slots.wake.notify_one();
        }
    }
}

/// Logs that a request is denied, and returns the slots that it takes.
#[cold]
fn too_many(cost: u32) -> u32 {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Relaxed) {
        warn!(
            "a request for {cost} slots is denied, because a request takes at most {MAX_COST} on Redis; \
             lower its cost (logged once)"
        );
    }
    0
}

/// The slots of a call: their key, its number, and how many are left.
type CallSlots = (Arc<str>, u64, u32);

/// A change of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotChange {
    Free,
    Renew,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Sets the time to live of [slots](crate::Quota::concurrent). Defaults to 10 s.
    ///
    /// A process renews the slots that it holds every third of this time. The slots of a process
    /// that ends without freeing them, or that cannot reach the server, are free after this time. A
    /// process that was paused for longer has lost its slots, and its requests run on: at most the
    /// limit and the requests of paused processes run.
    ///
    /// All processes that share accounts need the same time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is less than 1 s or more than one day.
    #[track_caller]
    #[must_use]
    pub fn slot_ttl(self, time: Duration) -> Self {
        assert!(
            (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time),
            "redis: slot_ttl is {time:?}; give 1 s to one day, such as 10 s; slots of a lost \
             process are not free before"
        );
        self.with_slot_ttl(time)
    }

    /// Returns a store on the same accounts, which holds slots as another process.
    pub(crate) fn with_slot_ttl(mut self, time: Duration) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.slots = Arc::new(Slots::new(time, settings.test_clock.clone()));
        self
    }

    /// Starts the task of this process if it takes slots and the task does not run.
    pub(in crate::store::redis) fn start_renewing(&self) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let mut state = slots.state();
        // A runtime that shuts down drops the task, which then starts again with the next call.
        let runs = state.task.as_ref().is_some_and(|task| !task.is_finished());
        if !runs && !state.is_idle() && slots.test_clock.is_none() {
            let store = self.clone();
            state.task = Some(runtime()?.spawn(async move {
                let mut end = TaskEnd { slots: store.settings.slots.clone(), is_idle: false };
                let (freeing, renewing) = (pin!(store.keep_freeing()), pin!(store.keep_renewing()));
                let calling = pin!(store.keep_calling());
                select(select(freeing, renewing), calling).await;
                end.is_idle = true;
            }));
        }
        Ok(())
    }

    /// Frees slots when they were freed, until this process holds none.
    async fn keep_freeing(&self) {
        let slots = &self.settings.slots;
        loop {
            slots.wake.notified().await;
            sleep(COLLECT).await;
            while self.free_slots().await.is_err() {
                sleep(RETRY).await;
            }
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews all held slots in each third of their time to live, until this process holds none. What
    /// failed in one step is tried again in the next.
    async fn keep_renewing(&self) {
        let slots = &self.settings.slots;
        let mut ticks = interval(slots.ttl / (3 * STEPS));
        for step in (0..STEPS).cycle() {
            ticks.tick().await;
            drop(self.renew_slots(Some(step)).await);
            if slots.ends() {
                return;
            }
        }
    }

    /// Frees all freed slots that the server may still count.
    pub(crate) async fn free_slots(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Free, self.settings.slots.to_free()).await
    }

    /// Renews the held slots that are due in a step, or all of them.
    pub(crate) async fn renew_slots(&self, step: Option<u32>) -> Result<(), RedisError> {
        self.change_all(SlotChange::Renew, self.settings.slots.to_renew(step)).await
    }

    /// Renews or frees slots, in calls of a bounded size. On a cluster, a call has one hash slot. An
    /// error of one call does not end the others.
    async fn change_all(
        &self,
        change: SlotChange,
        mut found: Vec<CallSlots>,
    ) -> Result<(), RedisError> {
        let max = if change == SlotChange::Renew { MAX_RENEWED } else { MAX_FREED };
        let sharded = self.settings.sharded;
        let shard = |(set, ..): &CallSlots| if sharded { slot(set.as_bytes()) } else { 0 };
        found.sort_by_cached_key(|it| (shard(it), it.clone()));
        let calls = found.chunk_by(|last, next| shard(last) == shard(next));
        let calls = calls.flat_map(|calls| calls.chunks(max));
        let calls: Vec<_> = calls.map(<[_]>::to_vec).collect();
        let calls = stream::iter(calls).map(|call| self.change_slots(change, call));
        let calls = calls.buffer_unordered(MAX_CALLS);
        calls.fold(Ok(()), |all, result| ready(all.and(result))).await
    }

    async fn change_slots(
        &self,
        change: SlotChange,
        requests: Vec<CallSlots>,
    ) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let head = EncodedPlan::default().int::<1>(u64::from(change == SlotChange::Renew));
        let head = head.int::<7>(slots.ttl_micros());
        let (mut keys, mut args) = (Vec::new(), vec![head.0]);
        for group in requests.chunk_by(|(one, ..), (other, ..)| one == other) {
            let list = group.iter().map(|(_, number, left)| (*number, *left));
            keys.push(&*group[0].0);
            args.push(EncodedPlan::default().slot_list(list).0);
        }
        let script = self.script(ScriptKind::Renew, []);
        let counted = self.run(script, &keys, args).await.and_then(|reply| match reply {
            Value::BulkString(counted) if counted.len() == requests.len() => Ok(counted),
            _ => self.checked(Err(RedisError::invalid_reply("not one byte for each call"))),
        });
        let counted = counted.inspect_err(|error| store_failed(error.kind().as_str()))?;
        slots.changed(change, requests, &counted);
        Ok(())
    }
}

/// The end of the task. If its runtime shuts down, requests that wait on another one start it again.
struct TaskEnd {
    slots: Arc<Slots>,
    is_idle: bool,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        if !self.is_idle {
            self.slots.state().task = None;
            self.slots.call_all();
        }
    }
}

impl Slots {
    /// Returns `true` if this process neither holds nor frees slots. The task then ends.
    fn ends(&self) -> bool {
        let mut state = self.state();
        let ends = state.is_idle();
        if ends {
            state.task = None;
        }
        ends
    }

    /// Returns the freed slots that the server may still count.
    fn to_free(&self) -> Vec<CallSlots> {
        let (now, mut state) = (self.now(), self.state());
        state.freed.retain(|_, freed| freed.ends_at > now);
        let all = state.freed.iter();
        all.map(|((set, number), freed)| (set.clone(), *number, freed.left)).collect()
    }

    /// Returns the held slots to renew in a step, or all: those whose numbers have their turn and
    /// that were not taken in the last step, and those that have missed it. Slots with near numbers
    /// have their turn together.
    fn to_renew(&self, step: Option<u32>) -> Vec<CallSlots> {
        let (now, period, state) = (self.now(), nanos(self.ttl) / 3, self.state());
        let due = state.held.iter().filter(|(number, held)| {
            let turn = number.wrapping_sub(self.store) / MAX_RENEWED as u64 % u64::from(STEPS);
            let age = now.saturating_sub(held.renewed_at);
            step.is_none_or(|step| {
                age > period || turn == u64::from(step) && age > period / u64::from(STEPS)
            })
        });
        due.map(|(number, held)| (held.set.clone(), *number, held.left)).collect()
    }

    /// Records the answer of the server, with `1` for each call whose slots were renewed.
    fn changed(&self, change: SlotChange, calls: Vec<CallSlots>, counted: &[u8]) {
        let (now, mut state, mut lost) = (self.now(), self.state(), Vec::new());
        for ((set, number, left), counts) in calls.into_iter().zip(counted) {
            state.told(&set, number, left);
            let held = state.held.get_mut(&number).filter(|_| change == SlotChange::Renew);
            let Some(held) = held else { continue };
            if *counts == b'1' {
                held.renewed_at = now;
                continue;
            }
            let held = state.held.remove(&number);
            held.iter().for_each(|held| state.remove(held.id, held.left.into()));
            lost.extend(held);
        }
        drop(state);
        lost.into_iter().for_each(|held| held.lost.close());
    }
}
