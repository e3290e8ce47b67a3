//! Decisions that wait at the same time and share one call.
//!
//! While few calls are in flight, each decision is sent immediately in its own call. Under load,
//! decisions wait for a batch. A batch is sent when an earlier batch is answered, when the batch is
//! full, or [`BATCH_INTERVAL`] after an earlier batch.
//!
//! On a cluster, only decisions whose accounts are in one slot can share a call.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;
use redis::aio::ConnectionLike;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::{
    observe::store_failed,
    store::redis::{
        RedisStore,
        connection::{TIMEOUT, runtime},
        error::{RedisError, RedisErrorKind},
        protocol::{
            AccountRequest, Change, Layout, Request, RequestKind, ScriptOp,
            reply::Reply,
            script::{ScriptKind, letter},
        },
        slots::{SlotCall, Slots},
    },
};

/// The maximum number of direct calls in flight. Further requests wait for a batch.
const MAX_DIRECT: usize = 16;
/// The maximum number of calls with equal requests that started in the last [`BATCH_INTERVAL`].
/// Further ones wait, and share the next call.
const MAX_EQUAL: usize = 2;
/// The maximum number of batches in flight. Exceptions are a full batch, and a batch that starts
/// [`BATCH_INTERVAL`] after the previous batch.
const MAX_IN_FLIGHT: usize = 2;
/// The time after which another call may start, even at [`MAX_EQUAL`] or [`MAX_IN_FLIGHT`]. On a
/// slow link, requests would otherwise wait for one round trip before their own.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time after which other batches no longer wait until a batch is sent, because its runtime may be
/// blocked.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest wait for a batch. The server is judged long before, so the runtime of the batch is blocked.
const LONGEST: Duration = Duration::from_secs(10);

/// The queues of a store: for each slot of a cluster, one for each [kind](RequestKind) of requests.
///
/// A call cannot have accounts of different slots.
pub(crate) struct Queues(Box<[OnceLock<[Arc<CallQueue>; 3]>]>);

impl Queues {
    pub(crate) fn new(count: u16) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Returns the queue of the slot.
    pub(super) fn get(&self, slot: u16, kind: RequestKind) -> &Arc<CallQueue> {
        let new = |kind| Arc::new(CallQueue { kind, state: Mutex::default() });
        let kinds = [RequestKind::Plain, RequestKind::Slots, RequestKind::Other];
        &self.0[usize::from(slot)].get_or_init(|| kinds.map(new))[kind as usize]
    }
}

/// The queue of waiting requests, and the calls in flight.
pub(crate) struct CallQueue {
    kind: RequestKind,
    state: Mutex<CallQueueState>,
}

#[derive(Default)]
struct CallQueueState {
    /// The requests that wait or are in flight, once for equal ones.
    asked: HashMap<Arc<Request>, Asked, RandomState>,
    /// The requests that may join the next batch, in the order of their first callers.
    ready: VecDeque<Arc<Request>>,
    calls: Vec<RunningCall>,
    /// The number of calls that have been started so far.
    calls_started: u64,
    /// `true` while a task spawns batches.
    spawning: bool,
}

/// The callers with equal requests.
#[derive(Default)]
struct Asked {
    waiting: SmallVec<[Caller; 1]>,
    /// The number of calls in flight that started in the last [`BATCH_INTERVAL`], at most
    /// [`MAX_EQUAL`].
    in_flight: usize,
    is_ready: bool,
}

/// A call in progress.
struct RunningCall {
    id: u64,
    /// Empty if equal requests no longer wait for the call.
    requests: Vec<Arc<Request>>,
    started: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The call of one request.
    Direct,
    /// The batch is not sent yet, so new requests can join.
    Collecting,
    InFlight,
    /// The batch is answered, and its callers may send new requests.
    Replying,
}

/// A waiting caller with its request.
pub(crate) struct Caller {
    pub(crate) request: Arc<Request>,
    /// Closed once the caller is dropped.
    pub(crate) tx: oneshot::Sender<Result<Reply, RedisError>>,
    /// The runtime of the caller.
    pub(crate) runtime: Handle,
}

impl CallQueue {
    /// Starts a direct call and returns its number, or `None` if the request must wait.
    pub(crate) fn start_direct(&self, request: &Arc<Request>) -> Option<u64> {
        let (now, mut state) = (Instant::now(), self.state());
        state.release_old(now);
        let has_batches = state.calls.iter().any(|call| call.phase != Phase::Direct);
        if has_batches || !state.ready.is_empty() || state.calls.len() >= MAX_DIRECT {
            return None;
        }
        let asked = state.asked.entry(request.clone()).or_default();
        if asked.in_flight > 0 {
            return None;
        }
        asked.in_flight += 1;
        Some(state.start(request.clone(), Phase::Direct, now))
    }

    /// Adds a caller.
    pub(crate) fn push(&self, caller: Caller) {
        let mut state = self.state();
        let request = caller.request.clone();
        let waiting = &mut state.asked.entry(request.clone()).or_default().waiting;
        if waiting.len() == waiting.capacity() {
            // Removes dropped callers to make room.
            waiting.retain(|caller| !caller.tx.is_closed());
            waiting.reserve(waiting.len() + 1);
        }
        waiting.push(caller);
        state.make_ready(request);
    }

    /// Starts a batch if one is due. Returns its number and its first caller.
    ///
    /// No other batch starts until [`spawning`](CallQueueState::spawning) is `false`.
    pub(crate) fn next_batch(&self, now: Instant) -> Option<(Caller, u64)> {
        let mut state = self.state();
        while state.is_batch_due(now) {
            let (request, asked) = state.pop_ready()?;
            asked.waiting.retain(|caller| !caller.tx.is_closed());
            if !asked.waiting.is_empty() {
                let first = asked.waiting.remove(0);
                state.spawning = true;
                return Some((first, state.start(request, Phase::Collecting, now)));
            }
            state.release([request]);
        }
        None
    }

    /// Fills a batch with `first` and the waiting callers.
    pub(super) fn collect(&self, id: u64, first: Caller) -> Batch {
        let mut batch = Batch { kind: self.kind, ..Batch::default() };
        let mut guard = self.state();
        let (state, mut joined) = (&mut *guard, Vec::new());
        let mut request = first.request.clone();
        let mut callers: SmallVec<[_; 1]> = [first].into_iter().collect();
        loop {
            let room = batch.room(&request).saturating_sub(callers.len());
            if let Some(asked) = state.asked.get_mut(&request) {
                let joining = asked.waiting.len().min(room);
                callers.extend(asked.waiting.drain(..joining));
            }
            callers.retain(|caller| !caller.tx.is_closed());
            batch.add(mem::take(&mut callers));
            state.make_ready(request);
            let fits = state.ready.front().is_some_and(|next| batch.room(next) > 0);
            let next = if fits { state.pop_ready() } else { None };
            let Some((next, _)) = next else { break };
            joined.push(next.clone());
            request = next;
        }
        if let Some(call) = state.calls.iter_mut().find(|call| call.id == id) {
            call.phase = Phase::InFlight;
            call.requests.append(&mut joined);
        } else {
            // The batch was given up.
            state.release(joined);
        }
        batch
    }

    /// Marks a batch as answered, so that the next batch may be sent.
    pub(crate) fn replying(&self, id: u64) {
        let mut state = self.state();
        if let Some(call) = state.calls.iter_mut().find(|call| call.id == id) {
            call.phase = Phase::Replying;
            let requests = mem::take(&mut call.requests);
            state.release(requests);
        }
    }

    /// Removes a call.
    pub(crate) fn end(&self, id: u64) {
        let mut state = self.state();
        if let Some(at) = state.calls.iter().position(|call| call.id == id) {
            let call = state.calls.remove(at);
            state.release(call.requests);
        }
    }

    /// Returns `true` if the request waits for the next batch.
    fn is_ready(&self, request: &Arc<Request>) -> bool {
        self.state().asked.get(request).is_some_and(|asked| asked.is_ready)
    }

    fn state(&self) -> MutexGuard<'_, CallQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallQueueState {
    /// Adds a call. Returns its number.
    fn start(&mut self, request: Arc<Request>, phase: Phase, started: Instant) -> u64 {
        self.calls_started += 1;
        let (id, requests) = (self.calls_started, vec![request]);
        self.calls.push(RunningCall { id, requests, started, phase });
        id
    }

    /// Returns `true` if another batch may start. See [`MAX_IN_FLIGHT`].
    fn is_batch_due(&mut self, now: Instant) -> bool {
        self.release_old(now);
        if self.spawning || self.ready.is_empty() {
            return false;
        }
        let count = |phase| self.calls.iter().filter(|call| call.phase == phase).count();
        let (collecting, in_flight) = (count(Phase::Collecting), count(Phase::InFlight));
        let last = self.calls.iter().rfind(|call| call.phase != Phase::Direct);
        let is_next = last.is_some_and(|batch| now >= batch.started + BATCH_INTERVAL);
        let has_room = collecting == 0 && (in_flight < MAX_IN_FLIGHT || is_next);
        has_room || self.ready.len() >= MAX_SIZE * (collecting + 1)
    }

    /// Lets equal requests no longer wait for calls that started [`BATCH_INTERVAL`] ago, and any
    /// requests for a batch that has not been sent for [`STALL_TIMEOUT`].
    fn release_old(&mut self, now: Instant) {
        let mut old: SmallVec<[_; 4]> = SmallVec::new();
        for call in &mut self.calls {
            let collecting = call.phase == Phase::Collecting;
            if now >= call.started + if collecting { STALL_TIMEOUT } else { BATCH_INTERVAL } {
                call.phase = if collecting { Phase::InFlight } else { call.phase };
                old.extend(call.requests.drain(..));
            }
        }
        // The task of a runtime that is no longer driven may never end.
        self.calls.retain(|call| call.phase == Phase::Direct || now < call.started + TIMEOUT);
        self.release(old);
    }

    /// Lets a request join the next batch, if callers wait and not too many calls are in flight.
    fn make_ready(&mut self, request: Arc<Request>) {
        if let Some(asked) = self.asked.get_mut(&request)
            && !asked.is_ready
            && !asked.waiting.is_empty()
            && asked.in_flight < MAX_EQUAL
        {
            asked.is_ready = true;
            self.ready.push_back(request);
        }
    }

    /// Removes the first ready request, whose callers join a call.
    fn pop_ready(&mut self) -> Option<(Arc<Request>, &mut Asked)> {
        let request = self.ready.pop_front()?;
        let asked = self.asked.get_mut(&request)?;
        asked.is_ready = false;
        asked.in_flight += 1;
        Some((request, asked))
    }

    /// Ends a call for each of the requests.
    fn release(&mut self, requests: impl IntoIterator<Item = Arc<Request>>) {
        for request in requests {
            let Some(asked) = self.asked.get_mut(&request) else { continue };
            asked.in_flight = asked.in_flight.saturating_sub(1);
            if asked.in_flight == 0 && asked.waiting.is_empty() && !asked.is_ready {
                self.asked.remove(&request);
            } else {
                self.make_ready(request);
            }
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Charges `request`, whose accounts are in one slot, in its own call or in a batch.
    pub(crate) async fn take_queued(&self, request: &Arc<Request>) -> Result<Reply, RedisError> {
        if !self.settings.coalesces {
            return Box::pin(self.execute(request, ScriptOp::Take)).await;
        }
        let slot = request.accounts.first().map_or(0, |it| it.slot(self.settings.sharded));
        let queue = self.settings.queues.get(slot, request.kind());
        if let Some(id) = queue.start_direct(request) {
            let _call = QueuedCall { store: self.clone(), queue: queue.clone(), id };
            // Boxed, so that the futures of waiting callers stay small.
            return Box::pin(self.execute(request, ScriptOp::Take)).await;
        }
        match self.take_in_batch(queue, request.clone()).await {
            // The server has rejected the whole batch and charged nothing. If it has no memory,
            // denials still need none. While a slot moves, an account may be on either server.
            Err(error)
                if matches!(error.kind(), RedisErrorKind::Memory | RedisErrorKind::Cluster) =>
            {
                Box::pin(self.execute(request, ScriptOp::Take)).await
            }
            reply => reply.inspect_err(|error| store_failed(error.kind().as_str())),
        }
    }

    async fn take_in_batch(
        &self,
        queue: &Arc<CallQueue>,
        request: Arc<Request>,
    ) -> Result<Reply, RedisError> {
        let (tx, mut rx) = oneshot::channel();
        queue.push(Caller { request: request.clone(), tx, runtime: runtime()? });
        let (start, mut wait) = (Instant::now(), BATCH_INTERVAL);
        loop {
            // The task of the next batch may have ended, or its runtime may be blocked.
            self.spawn_batches(queue);
            match timeout(wait, &mut rx).await {
                Ok(Ok(reply)) => return reply,
                Ok(Err(_)) => {
                    let text = "the task of the batch ended";
                    return Err(RedisError::new(RedisErrorKind::Other, text));
                }
                Err(_) if start.elapsed() < LONGEST => {
                    let is_ready = queue.is_ready(&request);
                    wait = if is_ready { BATCH_INTERVAL } else { STALL_TIMEOUT };
                }
                Err(_) => return Err(RedisError::new(RedisErrorKind::Timeout, "no reply in time")),
            }
        }
    }

    /// Spawns all batches that are due, each on the runtime of its first caller.
    fn spawn_batches(&self, queue: &Arc<CallQueue>) {
        while let Some((first, id)) = queue.next_batch(Instant::now()) {
            let runtime = first.runtime.clone();
            let call = QueuedCall { store: self.clone(), queue: queue.clone(), id };
            // A runtime that shuts down drops the task, which spawns the next batch.
            drop(runtime.spawn(call.run_batch(first)));
            queue.state().spawning = false;
        }
    }

    async fn call_batch(&self, batch: &Batch) -> Result<SmallVec<[Reply; 1]>, RedisError> {
        let script = match batch.kind {
            RequestKind::Plain => self.script(ScriptKind::Plain, *b"g"),
            RequestKind::Slots => self.script(ScriptKind::Slots, batch.letters()),
            // All algorithms, so that there is one such script.
            RequestKind::Other => self.script(ScriptKind::Groups, *b"gtfslc"),
        };
        let slots = batch.groups();
        let slots: SmallVec<_> =
            slots.map(|(request, callers)| self.settings.slots.begin(request, callers)).collect();
        let (keys, args) = batch.encode(&slots);
        let replies = self.call_script(script, &keys, args, batch.groups(), slots).await?;
        self.count_losses(&replies);
        Ok(replies)
    }
}

/// A call in its queue. On drop, it leaves the queue, and the batches that waited for it start.
struct QueuedCall<C: ConnectionLike + Clone + Send + Sync + 'static> {
    store: RedisStore<C>,
    queue: Arc<CallQueue>,
    id: u64,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> QueuedCall<C> {
    async fn run_batch(self, first: Caller) {
        // Lets requests that arrive at the same moment join the batch.
        yield_now().await;
        let batch = self.queue.collect(self.id, first);
        if batch.groups.is_empty() {
            return;
        }
        // No caller waits longer than this timeout.
        let Ok(reply) = timeout(LONGEST, self.store.call_batch(&batch)).await else { return };
        self.queue.replying(self.id);
        self.store.spawn_batches(&self.queue);
        batch.reply(reply);
        // Keeps the callers together, so that their next requests join one batch.
        yield_now().await;
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for QueuedCall<C> {
    fn drop(&mut self) {
        self.queue.end(self.id);
        self.store.spawn_batches(&self.queue);
    }
}

/// The maximum [size](Batch::size_of) of a batch. A larger request has a batch of its own.
pub(crate) const MAX_SIZE: usize = 64;
/// The maximum number of callers in a batch, including those with equal requests.
const MAX_CALLERS: usize = 4_096;
/// The number of accounts that a small request with only plain quotas may have.
const SMALL: usize = 4;

/// The callers that share one call.
#[derive(Default)]
pub(crate) struct Batch {
    kind: RequestKind,
    /// The callers with equal requests, in the order of their first requests.
    groups: Vec<SmallVec<[Caller; 1]>>,
    callers: usize,
    size: usize,
}

impl Batch {
    /// Returns the share of a group of requests in the time of a batch.
    fn size_of(&self, request: &Request) -> usize {
        if self.kind == RequestKind::Plain {
            request.accounts.len().div_ceil(SMALL)
        } else {
            request.quotas().count().max(1)
        }
    }

    /// Returns the number of callers with this request that still fit into the batch.
    pub(crate) fn room(&self, request: &Request) -> usize {
        let size = self.size + self.size_of(request);
        let fits = size <= MAX_SIZE || self.groups.is_empty();
        if fits { MAX_CALLERS.saturating_sub(self.callers) / Slots::weight(request) } else { 0 }
    }

    /// Adds callers with equal requests.
    pub(crate) fn add(&mut self, callers: SmallVec<[Caller; 1]>) {
        let Some(first) = callers.first() else { return };
        self.callers += callers.len() * Slots::weight(&first.request);
        self.size += self.size_of(&first.request);
        self.groups.push(callers);
    }

    /// Returns the request of each group, with the number of callers.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Request, usize)> {
        self.groups.iter().map(|callers| (&*callers[0].request, callers.len()))
    }

    /// Returns the letters of the algorithms of all quotas.
    fn letters(&self) -> impl Iterator<Item = u8> {
        self.groups().flat_map(|(request, _)| request.quotas()).map(letter)
    }

    /// Returns the keys and the arguments of the script.
    pub(crate) fn encode(&self, slots: &[SlotCall]) -> (Vec<Cow<'_, str>>, Vec<Vec<u8>>) {
        let mut keys = KeyList::default();
        let mut plans = PlanList::default();
        let mut layout = Layout::default();
        for ((request, callers), slots) in self.groups().zip(slots) {
            layout.group(callers, request.accounts.len());
            for (at, account) in request.accounts.iter().enumerate() {
                let key = keys.index(Cow::Borrowed(&account.address));
                let plan = if account.is_plain() {
                    plans.shared(account)
                } else {
                    let slots = |quota| slots.of(at, quota);
                    let index = |key| keys.index(Cow::Owned(key));
                    plans.add(account.plan(request.now, |_, _| Some(Change::Charge), slots, index))
                };
                layout.account(key, plan);
            }
        }
        plans.bytes.push(layout.0);
        (keys.keys, plans.bytes)
    }

    /// Sends each caller its reply. The slots of a caller that has left are freed.
    pub(crate) fn reply(self, replies: Result<SmallVec<[Reply; 1]>, RedisError>) {
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                let callers = self.groups.into_iter().flatten();
                return callers.for_each(|caller| drop(caller.tx.send(Err(error.clone()))));
            }
        };
        for (callers, mut reply) in self.groups.into_iter().zip(replies) {
            for (position, caller) in callers.into_iter().enumerate() {
                drop(caller.tx.send(Ok(reply.of(position, &caller.request))));
            }
        }
    }
}

/// The distinct keys of a call.
#[derive(Default)]
struct KeyList<'a> {
    keys: Vec<Cow<'a, str>>,
    indices: HashMap<Cow<'a, str>, usize>,
}

impl<'a> KeyList<'a> {
    /// Returns the index of a key, counted from 1 as in Lua.
    fn index(&mut self, key: Cow<'a, str>) -> usize {
        *self.indices.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            self.keys.len()
        })
    }
}

/// The plans of a call. Plain accounts with equal demands share a plan.
#[derive(Default)]
struct PlanList<'a> {
    bytes: Vec<Vec<u8>>,
    shared: Vec<SharedPlan<'a>>,
}

/// A plan of plain accounts.
struct SharedPlan<'a> {
    account: &'a AccountRequest,
    number: usize,
}

impl<'a> PlanList<'a> {
    /// Adds a plan, and returns its number, counted from 1 as in Lua.
    fn add(&mut self, plan: Vec<u8>) -> usize {
        self.bytes.push(plan);
        self.bytes.len()
    }

    /// Returns the number of the plan of a plain account.
    fn shared(&mut self, account: &'a AccountRequest) -> usize {
        for known in &self.shared {
            if known.account.quotas == account.quotas && known.account.known == account.known {
                return known.number;
            }
        }
        let number = self.add(account.plan(0, |_, _| Some(Change::Charge), |_| None, |_| 0));
        self.shared.push(SharedPlan { account, number });
        number
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;
    use tokio::{runtime::Handle, sync::oneshot};

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::{Algorithm, Quota, QuotaAddress},
        store::{Charge, redis::protocol::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    fn caller(charges: &[Charge<'_>]) -> Caller {
        let request = Arc::new(Request::new(charges, &Addresses::new()));
        Caller { request, tx: oneshot::channel().0, runtime: Handle::current() }
    }

    /// Creates a batch of requests, each with its number of callers.
    fn batch_of(requests: &[(usize, &[Charge<'_>])]) -> Batch {
        let mut batch = Batch { kind: RequestKind::Plain, ..Batch::default() };
        for (callers, charges) in requests {
            batch.add((0..*callers).map(|_| caller(charges)).collect());
        }
        batch
    }

    fn quota(units: u32) -> Quota {
        Quota::new(units, Duration::from_secs(10)).expect("a quota")
    }

    /// A quota of another period, which is another account.
    fn slow(units: u32) -> Quota {
        Quota::new(units, Duration::from_secs(20)).expect("a quota")
    }

    /// Creates a batch of two equal requests and one other request with two quotas.
    fn batch() -> Batch {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let (few, more) = ([quota(10)], [quota(10), slow(100)]);
        let one = Charge::new(RuleName::default(), &one, &few);
        let two = Charge::new(RuleName::default(), &two, &more).with_cost(2);
        batch_of(&[(2, &[one]), (1, &[two])])
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[0, 0]].concat()
    }

    /// Encodes the reply to a group with one account. `tats` are theoretical arrival times, in
    /// microseconds after `NOW`.
    fn group(allowed: u8, charges: u8, tats: &[u64]) -> Vec<u8> {
        let addresses = [quota(10), slow(100)].map(|quota| quota.address().number().to_le_bytes());
        let entry = |(tat, address): (&u64, &[u8; 4])| {
            [&[b'g', 13, 0][..], address, &instant(NOW + tat)].concat()
        };
        let quotas: Vec<_> = tats.iter().zip(&addresses).flat_map(entry).collect();
        let account = [&NOW.to_le_bytes()[..7], &quotas].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        [&[allowed, 0, charges, 0, 0][..], &length, &account].concat()
    }

    fn answer(groups: &[Vec<u8>]) -> Value {
        Value::BulkString([instant(NOW), groups.concat()].concat())
    }

    /// The number of keys and the arguments of a call.
    struct EncodedCall {
        keys: usize,
        args: Vec<Vec<u8>>,
    }

    fn encode(batch: &Batch) -> EncodedCall {
        let slots = Arc::new(Slots::new(Duration::from_secs(60), None));
        let calls: Vec<_> = batch.groups().map(|(request, _)| slots.begin(request, 0)).collect();
        let (keys, args) = batch.encode(&calls);
        EncodedCall { keys: keys.len(), args }
    }

    fn read(batch: &Batch, value: &Value) -> Option<SmallVec<[Reply; 1]>> {
        Reply::read(value, batch.groups()).ok()
    }

    #[tokio::test]
    async fn equal_requests_plans_and_accounts_are_sent_once() {
        let keys = ["one", "two"].map(Key::from);
        let (few, more) = ([quota(10)], [quota(10), slow(100)]);
        let one = Charge::new(RuleName::default(), &keys[0], &few);
        let two = Charge::new(RuleName::default(), &keys[1], &more);
        let batch = batch_of(&[(2, &[one]), (1, &[two]), (2, &[two, one])]);
        let call = encode(&batch);
        assert_eq!((call.keys, call.args.len()), (2, 3));
        // For each group: its callers, its accounts, and the key and the plan of each account.
        let first = [2, 1, 1, 1];
        let (second, third) = ([1, 1, 2, 2], [2, 2, 2, 2, 1, 1]);
        let numbers = [&first[..], &second, &third].concat();
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u16::to_le_bytes).collect();
        assert_eq!(call.args[2], bytes);
    }

    #[tokio::test]
    async fn a_call_is_bounded_by_its_accounts_and_its_callers() {
        let quotas = [quota(10)];
        let names = ["a", "b", "c", "d"].map(|name| RuleName::new(name).expect("a name"));
        // All callers have their own accounts, or all share theirs.
        for (distinct, callers, accounts) in [(true, 64, 256), (false, 4_096, 4)] {
            let (mut batch, mut added) =
                (Batch { kind: RequestKind::Plain, ..Batch::default() }, 0_u32);
            loop {
                let key = Key::from(if distinct { added } else { 0 });
                let charges = names.map(|name| Charge::new(name, &key, &quotas));
                let room = batch.room(&caller(&charges).request);
                if room == 0 {
                    break;
                }
                let joining = if distinct { 1 } else { room };
                batch.add((0..joining).map(|_| caller(&charges)).collect());
                added += u32::try_from(joining).expect("few");
            }
            assert_eq!((added, encode(&batch).keys), (callers, accounts));
        }
    }

    #[tokio::test]
    async fn inconsistent_replies_are_errors() {
        let (batch, second) = (batch(), 1_000_000);
        let two = || group(1, 1, &[2 * second, second / 5]);
        let fine = [group(2, 2, &[2 * second]), two()];
        let mut flagged = fine.clone();
        flagged[0][4] = 3;
        let read = |value: &Value| read(&batch, value);
        assert!(read(&answer(&fine)).is_some());
        assert!(read(&answer(&[group(0, 0, &[10 * second]), two()])).is_some());
        assert!(read(&answer(&[group(1, 1, &[second]), two()])).is_some());
        for (what, groups) in [
            ("no group", vec![]),
            ("one group of two", vec![fine[0].clone()]),
            ("three groups of two", vec![fine[0].clone(), two(), two()]),
            ("more allowed than sent", vec![group(3, 3, &[3 * second]), two()]),
            ("allowed but not charged", vec![group(2, 0, &[2 * second]), two()]),
            ("allowed but charged once", vec![group(2, 1, &[2 * second]), two()]),
            ("charged but not allowed", vec![group(0, 1, &[2 * second]), two()]),
            ("invalid flag", flagged.to_vec()),
        ] {
            assert!(read(&answer(&groups)).is_none(), "{what}");
        }
        let Value::BulkString(bytes) = answer(&fine) else { unreachable!() };
        for cut in 0..bytes.len() {
            assert!(read(&Value::BulkString(bytes[..cut].to_vec())).is_none(), "{cut}");
        }
        let longer = Value::BulkString([&bytes[..], &[0]].concat());
        assert!(read(&longer).is_none());
        assert!(read(&Value::Int(1)).is_none() && read(&Value::Nil).is_none());
    }

    /// Creates a batch of three equal requests with a quota of each algorithm, and its answer.
    fn general() -> (Batch, Vec<u8>) {
        let (one, window) = (Key::from("one"), Algorithm::SlidingWindow { buckets: 5 });
        let fixed =
            [Algorithm::fixed_window(), Algorithm::FixedWindow { carry_over: 0, paced: true }];
        let [bucket, log] = [Algorithm::TokenBucket, Algorithm::SlidingLog];
        let [fixed, paced] = fixed.map(|it| quota(10).with_algorithm(it));
        let [bucket, window, log] = [bucket, window, log].map(|it| quota(10).with_algorithm(it));
        let quotas = [fixed, paced, bucket, window, log];
        let mut batch = Batch::default();
        let charge = [Charge::new(RuleName::default(), &one, &quotas)];
        batch.add((0..3).map(|_| caller(&charge)).collect());
        let (now, two) = (instant(NOW), [2, 0, 0, 0, 0]);
        let start = [&instant(NOW - NOW % 10_000_000)[..], &two, &[0; 5]].concat();
        let entry = [&now[..], &two].concat();
        let states = [
            (b'f', start.clone()),
            (b'f', start),
            (b't', [&[8, 0, 0, 0, 0, 0][..], &now, &now].concat()),
            (b's', [&two[..], &entry].concat()),
            (b'l', [&two[..], &now, &entry].concat()),
        ];
        let entry = |(at, (letter, state)): (usize, &(u8, Vec<u8>))| {
            let address = QuotaAddress::at(&quotas, at).number().to_le_bytes();
            let length = u16::try_from(11 + state.len()).expect("short").to_le_bytes();
            let end = (NOW + 10_000_000).to_le_bytes();
            [&[*letter][..], &length, &address, &end[..7], state].concat()
        };
        let entries: Vec<_> = states.iter().enumerate().flat_map(entry).collect();
        let account = [&NOW.to_le_bytes()[..7], &entries].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        (batch, [&now[..], &[2, 0, 2, 0, 0], &length, &account].concat())
    }

    #[tokio::test]
    async fn random_bytes_never_panic() {
        let Value::BulkString(real) =
            answer(&[group(1, 1, &[1_000_000]), group(1, 1, &[2_000_000, 200_000])])
        else {
            unreachable!()
        };
        damage(&batch(), &real);
        let (batch, real) = general();
        damage(&batch, &real);
    }

    /// Each caller sees the units left after its own charge.
    #[tokio::test]
    async fn the_callers_of_a_group_are_answered_one_after_another() {
        let (batch, real) = general();
        let mut replies = read(&batch, &Value::BulkString(real)).expect("a reply");
        let request = batch.groups().next().expect("a group").0;
        for (position, allowed, left) in [(0, true, 9), (1, true, 8), (2, false, 8)] {
            let decision = replies[0].of(position, request).decision(request);
            assert_eq!(decision.is_allowed(), allowed);
            let remaining = decision.outcomes().iter().map(|outcome| outcome.remaining());
            let paced = |index| index == 1;
            assert!(remaining.enumerate().all(|(at, units)| units == left || paced(at)));
        }
    }

    fn damage(batch: &Batch, real: &[u8]) {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let mut parsed = 0;
        for _ in 0..50_000 {
            let mut bytes = real.to_vec();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                    2 => bytes.insert(at, random(256).to_le_bytes()[0]),
                    _ => drop(bytes.remove(at)),
                }
            }
            // Every reply that parses yields decisions.
            if let Some(mut replies) = read(batch, &Value::BulkString(bytes)) {
                parsed += 1;
                for ((request, callers), reply) in batch.groups().zip(&mut replies) {
                    for position in 0..callers {
                        let _ = reply.of(position, request).decision(request).remaining();
                    }
                }
            }
        }
        assert!(parsed > 1_000, "only {parsed} replies parsed");
    }
}
