//! The slots that this process holds, and the task that frees and renews them.
//!
//! Each slot is an entry of its own on the server, and has a number that no other slot of this
//! process has. Taking, freeing and renewing a slot are therefore idempotent, and calls on one
//! account need no order.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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
    future::{Either, ready, select, try_join_all},
    stream::{self, FuturesUnordered},
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
    store::{
        BoxFuture, nanos,
        redis::{
            RedisStore,
            cluster::slot,
            connection::runtime,
            error::{RedisError, code},
            protocol::{
                AccountRequest, EncodedPlan, QuotaRequest, Request, reply::AccountReply,
                script::ScriptKind,
            },
        },
        subtract,
    },
};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;
/// The maximum number of slots that a call frees.
const MAX_FREED: u32 = 1_024;
/// The maximum number of slots that a call renews.
const MAX_RENEWED: u32 = 256;
/// The maximum number of calls of a pass at the same time.
const MAX_CALLS: usize = 16;
/// The number of steps over which the renewals of a third of the time to live are spread.
const STEPS: u32 = 16;
/// The time in which freed slots are collected, so that one call frees them.
const COLLECT: Duration = Duration::from_millis(1);
/// The pause after a call that failed.
const RETRY: Duration = Duration::from_millis(250);

/// The slots that this process holds.
pub(crate) struct Slots {
    /// The first half of the members of all slots.
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

/// The slots of each request have consecutive numbers. The first number stands for the request.
#[derive(Default)]
pub(super) struct SlotsState {
    /// The number of the next slot.
    next: u64,
    held: HashMap<u64, RunningSlots>,
    /// The number of slots that this process holds, by the [id](Slots::id) of the account.
    units: HashMap<u64, u64>,
    /// Slots that the server may still count, by the key of their sorted set.
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

struct RunningSlots {
    /// The key of the sorted set.
    set: Arc<str>,
    /// The [id](Slots::id) of the account.
    id: u64,
    units: u32,
    rule: RuleName,
    /// The instant from which a request holds them. It may still be denied by other servers.
    started_at: Option<u64>,
    /// The instant at which the call that took or renewed them was sent. They end later than one time to
    /// live after it.
    renewed_at: u64,
    /// Closed when the slots are lost.
    lost: Arc<Semaphore>,
}

#[derive(Clone, Copy)]
struct FreedSlots {
    units: u32,
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

    /// Returns the share of a caller in the 4,096 callers of a call, so that the call takes at most
    /// 1,024 slots.
    pub(crate) fn weight(request: &Request) -> usize {
        let slots = request.accounts.iter().flat_map(AccountRequest::slots);
        let large = slots.filter(|(_, part)| part.quota.raised_limit() > MAX_FREED.into());
        let cost = large.map(|(_, part)| 4 * part.demand.cost.min(MAX_COST)).max().unwrap_or(1);
        cost.max(1) as usize
    }

    /// Numbers the slots that equal requests of several callers take.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request, callers: usize) -> SlotCall {
        let slots = self.clone();
        let sent_at = self.now();
        let mut call = SlotCall { slots, sent_at, takes: SmallVec::new() };
        for (account_index, account) in request.accounts.iter().enumerate() {
            for (index, part) in account.slots() {
                let QuotaRequest { quota, demand: ask, .. } = part;
                let cost = if ask.cost > MAX_COST { too_many(ask.cost) } else { ask.cost };
                // No more callers than fit.
                let most = quota.raised_limit().checked_div(cost.into()).unwrap_or(0);
                let callers = u32::try_from(most.min(callers as u64)).unwrap_or(u32::MAX);
                let set = set(account, part);
                let rule = account.rule;
                let id = self.id(&set);
                let units = u64::from(cost) * u64::from(callers);
                let mut state = self.state();
                let own = state.units.get(&id).copied().unwrap_or(0);
                state.taking += 1;
                let first = state.next;
                let freed = state.freed(&set);
                let waits = if account.report_only || callers == 0 { 0 } else { ask.max_wait };
                let waits = waits * state.mark_millis(rule);
                state.next += units;
                drop(state);
                let at = (account_index, index);
                let until_head = quota.sheds();
                call.takes.push(SlotTake {
                    at,
                    set,
                    id,
                    rule,
                    own,
                    first,
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
    fn to_free(&self) -> Vec<RequestSlots> {
        let now = self.now();
        let mut state = self.state();
        state.freed.retain(|_, freed| freed.ends_at > now);
        let all = state.freed.iter();
        all.map(|((set, first), freed)| (set.clone(), *first, freed.units)).collect()
    }

    /// Returns the held slots to renew in a step, or all: those whose numbers have their turn and
    /// that were not taken in the last step, and those that have missed it. Slots with near numbers
    /// have their turn together.
    fn to_renew(&self, step: Option<u32>) -> Vec<RequestSlots> {
        let now = self.now();
        let period = nanos(self.ttl) / 3;
        let state = self.state();
        let due = state.held.iter().filter(|(first, held)| {
            let turn = **first / u64::from(MAX_RENEWED) % u64::from(STEPS);
            let age = now.saturating_sub(held.renewed_at);
            step.is_none_or(|step| {
                age > period || turn == u64::from(step) && age > period / u64::from(STEPS)
            })
        });
        due.map(|(first, held)| (held.set.clone(), *first, held.units)).collect()
    }

    /// Records that the server no longer counts slots.
    fn removed(&self, requests: Vec<RequestSlots>) {
        let mut state = self.state();
        for (set, first, _) in requests {
            state.freed.remove(&(set, first));
        }
    }

    /// Records a renewal that was sent at an instant, with `1` for each request whose slots count.
    fn renewed(&self, requests: Vec<RequestSlots>, counted: &[u8], sent_at: u64) {
        let mut state = self.state();
        let mut lost = Vec::new();
        for ((_, first, _), counts) in requests.into_iter().zip(counted) {
            match state.held.get_mut(&first) {
                Some(held) if *counts == b'1' => held.renewed_at = sent_at,
                _ => {
                    let held = state.held.remove(&first);
                    held.iter()
                        .for_each(|held| subtract(&mut state.units, held.id, held.units.into()));
                    lost.extend(held);
                }
            }
        }
        drop(state);
        lost.into_iter().for_each(|held| held.lost.close());
    }
}

impl SlotsState {
    /// Counts slots of an account as held.
    fn add(&mut self, id: u64, units: u64) {
        if units > 0 {
            *self.units.entry(id).or_default() += units;
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
        all.map(|(_, freed)| u64::from(freed.units)).sum()
    }

    /// Returns the freed slots in a set that the server may still count, oldest first.
    fn freed(&self, set: &Arc<str>) -> Vec<(u64, u32)> {
        let mut room = MAX_FREED;
        let all = self.freed.range((set.clone(), 0)..=(set.clone(), u64::MAX));
        all.map_while(|((_, first), FreedSlots { units, .. })| {
            room = room.checked_sub(*units)?;
            Some((*first, *units))
        })
        .collect()
    }
}

impl FreeSlots for Slots {
    /// Frees the slots from the number `first` on, unless they were lost.
    fn free(&self, first: u64, _: u64, _: u64) {
        let now = self.now();
        let ends_at = self.end();
        let mut state = self.state();
        let Some(held) = state.held.remove(&first) else { return };
        let RunningSlots { set, id, units, rule, started_at, .. } = held;
        subtract(&mut state.units, id, units.into());
        state.freed.insert((set.clone(), first), FreedSlots { units, ends_at });
        let time = started_at.map(|start| now.saturating_sub(start));
        let calls = state.freed_after(time, rule, &set, id);
        drop(state);
        // A waker may run any code, so the lock is released first.
        drop(calls);
        self.wake.notify_one();
    }

    fn start(&self, first: u64) {
        let now = self.now();
        self.state().held.get_mut(&first).into_iter().for_each(|held| held.started_at = Some(now));
    }
}

/// The slots of one quota in a call. The callers of equal requests have consecutive slots.
pub(crate) struct SlotTake {
    /// The index of the account in the request, and that of the quota.
    at: (usize, usize),
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    /// The [id](Slots::id) of the account.
    id: u64,
    rule: RuleName,
    /// The slots of the account that this process holds.
    pub(crate) own: u64,
    /// The number of the first slot of the first caller.
    pub(crate) first: u64,
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

    /// Returns the number of the first slot of each caller.
    fn firsts(&self) -> impl Iterator<Item = u64> {
        let first = self.first;
        let cost = u64::from(self.cost);
        (0..u64::from(self.callers)).map(move |caller| first + caller * cost)
    }
}

/// The slots of a call. Without an answer, they are freed, because the server may count them.
pub(crate) struct SlotCall {
    slots: Arc<Slots>,
    sent_at: u64,
    pub(crate) takes: SmallVec<[SlotTake; 1]>,
}

/// Returns the key of the sorted set of a quota, which is in the cluster slot of its account.
pub(super) fn set(account: &AccountRequest, part: &QuotaRequest) -> Arc<str> {
    account.part_key(":s", part.address).into()
}

impl SlotCall {
    /// Returns the slots of one quota, by the indices of its account and of itself.
    pub(crate) fn of(&self, account: usize, quota: usize) -> Option<(&Slots, &SlotTake)> {
        let take = self.takes.iter().find(|take| take.at == (account, quota))?;
        Some((&*self.slots, take))
    }

    /// Records the answer, with the number of callers that took the slots of each account. Returns
    /// the slots of each of them.
    ///
    /// If the answer is later than one time to live, they may have ended, and begin as lost.
    pub(crate) fn answered(mut self, accounts: &[AccountReply]) -> Vec<Vec<Hold>> {
        let mut holds = Vec::new();
        let sent_at = self.sent_at;
        let ends_at = self.slots.end();
        let are_lost = self.slots.now().saturating_sub(sent_at) >= nanos(self.slots.ttl);
        for take in mem::take(&mut self.takes) {
            let mut state = self.slots.state();
            state.taking -= 1;
            for (first, _) in &take.freed {
                state.freed.remove(&(take.set.clone(), *first));
            }
            let charges = accounts[take.at.0].charges;
            let admitted =
                u32::try_from(charges).map_or(take.callers, |charges| charges.min(take.callers));
            state.add(take.id, if are_lost { 0 } else { take.units(admitted) });
            for (caller, first) in take.firsts().take(charges).enumerate() {
                let set = take.set.clone();
                let units = take.cost;
                let lost = Arc::new(Semaphore::new(0));
                if are_lost {
                    lost.close();
                    state.freed.insert((set, first), FreedSlots { units, ends_at });
                } else {
                    let held = RunningSlots {
                        set,
                        id: take.id,
                        units,
                        rule: take.rule,
                        started_at: None,
                        renewed_at: sent_at,
                        lost: lost.clone(),
                    };
                    state.held.insert(first, held);
                }
                let hold = Hold::new(self.slots.clone(), first, 0, units);
                holds.resize_with(holds.len().max(caller + 1), Vec::new);
                holds[caller].push(hold.until_head(take.until_head).with_loss(lost));
            }
            // Also frees those that are lost.
            if are_lost {
                self.slots.wake.notify_one();
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
            let freed = FreedSlots { units: take.cost, ends_at };
            state.freed.extend(take.firsts().map(|first| ((take.set.clone(), first), freed)));
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

/// The slots of one request: the key of their set, the first number, and how many.
type RequestSlots = (Arc<str>, u64, u32);

/// The passes that renew slots, or those that free them: at most one on each server of a cluster, so that
/// a server that does not reply delays no others.
#[derive(Default)]
struct Passes {
    /// The address of each server on which a pass is running, or `None` outside of a cluster.
    servers: HashSet<Option<String>>,
    running: FuturesUnordered<BoxFuture<Option<String>>>,
}

impl Passes {
    /// Runs the passes until an event.
    async fn run_until(&mut self, event: impl Future) {
        let mut event = pin!(event);
        loop {
            match select(event.as_mut(), self.running.next()).await {
                Either::Left(_) => return,
                Either::Right((Some(server), _)) => _ = self.servers.remove(&server),
                Either::Right((None, event)) => {
                    event.await;
                    return;
                }
            }
        }
    }
}

/// A change of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotChange {
    Free,
    Renew,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
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
                let freeing = pin!(store.keep_freeing());
                let renewing = pin!(store.keep_renewing());
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
        let mut passes = Passes::default();
        let mut skipped = 0;
        loop {
            passes.run_until(slots.wake.notified()).await;
            // A look takes a small part of this time, however many slots it skips.
            passes.run_until(sleep(COLLECT * (1 + skipped / 256))).await;
            skipped = self.start_passes(SlotChange::Free, slots.to_free(), &mut passes);
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews all held slots in each third of their time to live, until this process holds none. What
    /// failed in one step is tried again in the next.
    async fn keep_renewing(&self) {
        let slots = &self.settings.slots;
        let mut passes = Passes::default();
        let mut ticks = interval(slots.ttl / (3 * STEPS));
        for step in (0..STEPS).cycle() {
            passes.run_until(ticks.tick()).await;
            self.start_passes(SlotChange::Renew, slots.to_renew(Some(step)), &mut passes);
            if slots.ends() {
                return;
            }
        }
    }

    /// Starts to renew or free slots on each server on which no such pass is running. Returns the
    /// number of requests on the other servers.
    fn start_passes(
        &self,
        change: SlotChange,
        found: Vec<RequestSlots>,
        passes: &mut Passes,
    ) -> u32 {
        let mut servers = HashMap::<_, Vec<_>>::new();
        let mut skipped = 0;
        for slots in found {
            let server = self.cluster_link().and_then(|link| link.server(slot(slots.0.as_bytes())));
            if passes.servers.contains(&server) {
                skipped += 1;
            } else {
                servers.entry(server).or_default().push(slots);
            }
        }
        for (server, found) in servers {
            let store = self.clone();
            passes.servers.insert(server.clone());
            passes.running.push(Box::pin(async move {
                let result = store.change_all(change, found).await;
                if change == SlotChange::Free {
                    if result.is_err() {
                        sleep(RETRY).await;
                    }
                    // Others may have been freed on this server.
                    store.settings.slots.wake.notify_one();
                }
                server
            }));
        }
        skipped
    }

    /// Frees all freed slots that the server may still count.
    #[cfg(feature = "testing")]
    pub(crate) async fn free_slots(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Free, self.settings.slots.to_free()).await
    }

    /// Renews all held slots.
    #[cfg(feature = "testing")]
    pub(crate) async fn renew_slots(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Renew, self.settings.slots.to_renew(None)).await
    }

    /// Renews or frees slots, in calls of a bounded size. On a cluster, a script has one hash slot. An
    /// error of one call does not end the others.
    async fn change_all(
        &self,
        change: SlotChange,
        mut found: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let max = if change == SlotChange::Renew { MAX_RENEWED } else { MAX_FREED };
        let splits = self.settings.sharded && change == SlotChange::Renew;
        let shard = |(set, ..): &RequestSlots| if splits { slot(set.as_bytes()) } else { 0 };
        found.sort_by_cached_key(|member| (shard(member), member.clone()));
        let mut units = 0;
        let calls = found.chunk_by(|last, next| {
            units += last.2;
            let fits = units + next.2 <= max && shard(last) == shard(next);
            units = if fits { units } else { 0 };
            fits
        });
        let calls: Vec<_> = calls.map(<[_]>::to_vec).collect();
        let calls = stream::iter(calls).map(|call| self.change_slots(change, call));
        let calls = calls.buffer_unordered(MAX_CALLS);
        calls.fold(Ok(()), |all, result| ready(all.and(result))).await
    }

    async fn change_slots(
        &self,
        change: SlotChange,
        requests: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let changed = match change {
            SlotChange::Free => self.remove(&requests).await.map(|()| slots.removed(requests)),
            SlotChange::Renew => {
                let sent_at = slots.now();
                let counted = self.renew(&requests).await;
                counted.map(|counted| slots.renewed(requests, &counted, sent_at))
            }
        };
        changed.inspect_err(|error| store_failed(error.kind().as_str()))
    }

    /// Removes slots. This needs no script, which takes the server several times as long.
    async fn remove(&self, requests: &[RequestSlots]) -> Result<(), RedisError> {
        let store = self.settings.slots.store;
        let removals = by_set(requests).map(async |group| {
            let mut command = redis::cmd("ZREM");
            command.arg(&*group[0].0);
            for (_, first, units) in group {
                for number in *first..first + u64::from(*units) {
                    command.arg(EncodedPlan::default().int::<8>(store).int::<8>(number).0);
                }
            }
            match self.send(&command).await {
                // A value of another type has no slots. The next take replaces it.
                Err(error) if code(&error) == Some("WRONGTYPE") => Ok(()),
                reply => reply.map(drop),
            }
        });
        Ok(try_join_all(removals).await.map(drop)?)
    }

    /// Renews slots. Returns `1` for each request whose slots count.
    async fn renew(&self, requests: &[RequestSlots]) -> Result<Vec<u8>, RedisError> {
        let slots = &self.settings.slots;
        let head = EncodedPlan::default().int::<7>(slots.ttl_micros()).int::<8>(slots.store);
        let mut keys = Vec::new();
        let mut args = vec![head.0];
        for group in by_set(requests) {
            let list = group.iter().map(|(_, first, units)| (*first, *units));
            keys.push(&*group[0].0);
            args.push(EncodedPlan::default().slot_list(list).0);
        }
        let script = self.script(ScriptKind::Renew, []);
        match self.run(script, &keys, args).await? {
            Value::BulkString(counted) if counted.len() == requests.len() => Ok(counted),
            _ => self.checked(Err(RedisError::invalid_reply("not one byte for each request"))),
        }
    }
}

/// Returns the requests of each set, which are neighbours.
fn by_set(requests: &[RequestSlots]) -> impl Iterator<Item = &[RequestSlots]> {
    requests.chunk_by(|(one, ..), (other, ..)| one == other)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_counts_from_the_instant_at_which_it_was_sent() {
        let clock = Arc::new(AtomicU64::new(5_000_000_000));
        let slots = Slots::new(Duration::from_secs(9), Some(clock));
        let requests: Vec<RequestSlots> = vec![("set".into(), 0, 1)];
        let held = RunningSlots {
            set: "set".into(),
            id: 7,
            units: 1,
            rule: RuleName::default(),
            started_at: None,
            renewed_at: 0,
            lost: Arc::new(Semaphore::new(0)),
        };
        slots.state().held.insert(0, held);
        // A third of the time to live is less than the 4 s for which the answer was on its way.
        slots.renewed(requests.clone(), b"1", 1_000_000_000);
        assert_eq!(slots.to_renew(Some(9)), requests, "it is due although it is not its turn");
        slots.renewed(requests, b"1", 4_000_000_000);
        assert_eq!(slots.to_renew(Some(9)), []);
    }
}
