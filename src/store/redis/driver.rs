//! Decisions that wait at the same time and share one call.
//!
//! While few calls are in flight, each decision is sent immediately in its own call. Under load,
//! decisions wait for a batch. A batch is sent when an earlier batch is answered, when the batch is
//! full, or [`BATCH_INTERVAL`] after an earlier batch.
//!
//! On a cluster, only decisions whose accounts are in one slot can share a call.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;
use redis::aio::ConnectionLike;
use smallvec::SmallVec;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::{
    observe::store_failed,
    store::redis::{
        RedisStore,
        batch::{Batch, Caller, MAX_SIZE},
        connection::{TIMEOUT, runtime},
        error::{RedisError, RedisErrorKind},
        protocol::{Request, RequestKind, ScriptOp, reply::Reply},
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
        let mut batch = Batch::new(self.kind);
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
        if batch.is_empty() {
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
