//! Decisions that wait at the same time and share one call.
//!
//! A request that arrives while no call is in flight makes its own call, unless others shared a call a
//! moment ago. Others wait for a task, which lets those of the same moment arrive, collects as many as
//! fit into a batch, calls the server and answers them. At its end, the next task starts. Further tasks
//! start while fewer than [`MAX_CALLS`] calls are in flight, or [`INTERVAL`] after the last one.
//!
//! On a cluster, only decisions whose accounts are in one hash slot can share a call.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use smallvec::{SmallVec, smallvec};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::store::redis::{
    RedisStore,
    batch::{Answered, Batch, Caller},
    cluster::HASH_SLOTS,
    connection::{LONGEST, TIMEOUT, runtime},
    error::{RedisError, RedisErrorKind},
    protocol::{Request, RequestKind, ScriptOp, reply::Reply},
};

/// The maximum number of calls in flight. Beyond it, a call starts after each [`INTERVAL`], and takes as
/// many requests as fit.
const MAX_CALLS: usize = 16;
/// The maximum number of calls in flight with equal requests. Further ones share the next call, which
/// starts when one of these ends, or after [`INTERVAL`].
const MAX_EQUAL: usize = 2;
/// The time after which a call no longer delays others. On a slow link, requests would otherwise wait
/// for one round trip before their own. The runtime of a call may also be blocked.
const INTERVAL: Duration = Duration::from_millis(5);

/// The queues of a store: for each hash slot of a cluster, one for each [kind](RequestKind) of requests.
///
/// A call cannot have accounts of different hash slots.
pub(crate) struct Queues(Box<[OnceLock<[Arc<CallQueue>; 3]>]>);

impl Queues {
    pub(crate) fn new(sharded: bool) -> Self {
        let count = if sharded { HASH_SLOTS } else { 1 };
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Returns the queue of the hash slot.
    pub(super) fn get(&self, hash_slot: u16, kind: RequestKind) -> &Arc<CallQueue> {
        let queues = self.0[usize::from(hash_slot)].get_or_init(|| {
            let kinds = [RequestKind::Plain, RequestKind::Slots, RequestKind::Other];
            kinds.map(|kind| {
                Arc::new(CallQueue {
                    kind,
                    state: Mutex::default(),
                })
            })
        });
        &queues[kind as usize]
    }
}

/// The requests that wait, and the calls in flight.
pub(crate) struct CallQueue {
    kind: RequestKind,
    state: Mutex<CallQueueState>,
}

#[derive(Default)]
struct CallQueueState {
    /// The callers that wait, by their request.
    waiting: HashMap<Arc<Request>, SmallVec<[Caller; 1]>, RandomState>,
    /// The requests that wait, in the order of their first callers.
    order: VecDeque<Arc<Request>>,
    /// The starts of the last calls in flight of each request.
    running: HashMap<Arc<Request>, SmallVec<[Instant; MAX_EQUAL]>, RandomState>,
    /// The starts of the calls in flight, in order.
    calls: Vec<Instant>,
    /// The instant at which the last task was spawned, until it has collected its callers.
    collecting: Option<Instant>,
    /// The end of the last call of several callers. Their next requests probably come together, too.
    shared: Option<Instant>,
}

/// The callers of a call, which is in flight from now on.
struct Collected {
    batch: Batch,
    requests: SmallVec<[Arc<Request>; 1]>,
    started: Instant,
}

impl CallQueue {
    /// Starts the call of a request if no other one waits or is in flight.
    fn start_alone(&self, request: &Arc<Request>) -> Option<Instant> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.forget_old(now);
        let is_first = state.calls.is_empty() && state.collecting.is_none();
        if !is_first || !state.order.is_empty() || state.shared.is_some() {
            return None;
        }
        state.start(request.clone(), now);
        state.calls.push(now);
        Some(now)
    }

    /// Adds a caller.
    fn push(&self, caller: Caller) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let callers = state.waiting.entry(caller.request.clone()).or_default();
        if callers.is_empty() {
            state.order.push_back(caller.request.clone());
        }
        if callers.len() == callers.capacity() {
            // Removes dropped callers to make room.
            callers.retain(|caller| !caller.tx.is_closed());
        }
        callers.push(caller);
    }

    /// Returns the runtime of the first caller if a task is due. It is to be spawned.
    fn start_task(&self) -> Option<Handle> {
        let mut state = self.state.lock();
        if state.order.is_empty() {
            return None;
        }
        let now = Instant::now();
        state.forget_old(now);
        let delays = state.calls.last().is_some_and(|last| is_recent(last, now));
        if state.collecting.is_some() || delays && state.calls.len() >= MAX_CALLS {
            return None;
        }
        let Some(first) = state.first_caller(now) else {
            state.forget_left();
            return None;
        };
        let runtime = first.runtime.clone();
        state.collecting = Some(now);
        Some(runtime)
    }

    /// Collects the callers of a call. Returns `None` if no request may join one.
    fn collect(&self) -> Option<Collected> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.collecting = None;
        let mut collected = Collected {
            batch: Batch::new(self.kind),
            requests: SmallVec::new(),
            started: now,
        };
        let later = state.fill(&mut collected);
        for request in later.into_iter().rev() {
            state.order.push_front(request);
        }
        if collected.requests.is_empty() {
            return None;
        }
        state.calls.push(now);
        Some(collected)
    }

    /// Notes that callers shared a call, whose answers they get now.
    fn note_shared(&self) {
        self.state.lock().shared = Some(Instant::now());
    }

    /// Ends a call.
    fn end(&self, started: Instant, requests: &[Arc<Request>]) {
        let mut state = self.state.lock();
        // Calls that started at one instant are equal here.
        if let Some(at) = state.calls.iter().position(|call| *call == started) {
            state.calls.remove(at);
        }
        for request in requests {
            state.end(request, started);
        }
    }

    /// Returns `true` if callers of the request wait for a task.
    fn has_waiting(&self, request: &Arc<Request>) -> bool {
        self.state.lock().waiting.contains_key(request)
    }
}

impl CallQueueState {
    /// Forgets what no longer delays others, and calls of runtimes that may never be driven again.
    fn forget_old(&mut self, now: Instant) {
        self.calls.retain(|started| now < *started + TIMEOUT);
        self.collecting = self.collecting.filter(|spawned| is_recent(spawned, now));
        self.shared = self.shared.filter(|ended| is_recent(ended, now));
    }

    /// Forgets requests whose callers have all left.
    fn forget_left(&mut self) {
        let waiting = &mut self.waiting;
        self.order.retain(|request| {
            let mut callers = waiting.get(request).into_iter().flatten();
            let stays = callers.any(|caller| !caller.tx.is_closed());
            if !stays {
                waiting.remove(request);
            }
            stays
        });
    }

    /// Moves requests that wait to a call, as many as fit. Returns those in between that wait on, in
    /// order.
    fn fill(&mut self, call: &mut Collected) -> Vec<Arc<Request>> {
        let mut later = Vec::new();
        while let Some(request) = self.order.pop_front() {
            let room = call.batch.room(&request);
            if room == 0 {
                later.push(request);
                break;
            }
            if self.must_wait(&request, call.started) {
                later.push(request);
                continue;
            }
            let callers = self.take_callers(&request, room);
            if self.waiting.contains_key(&request) {
                later.push(request.clone());
            }
            if !callers.is_empty() {
                call.batch.add(callers);
                self.start(request.clone(), call.started);
                call.requests.push(request);
            }
        }
        later
    }

    /// Removes the first callers of a request, and those that have left.
    fn take_callers(&mut self, request: &Arc<Request>, room: usize) -> SmallVec<[Caller; 1]> {
        let mut callers = self.waiting.remove(request).unwrap_or_default();
        callers.retain(|caller| !caller.tx.is_closed());
        if callers.len() > room {
            let left = callers.drain(room..).collect();
            self.waiting.insert(request.clone(), left);
        }
        callers
    }

    /// Returns the first caller whose request may join a call.
    fn first_caller(&self, now: Instant) -> Option<&Caller> {
        let requests = self
            .order
            .iter()
            .filter(|request| !self.must_wait(request, now));
        let mut callers = requests
            .filter_map(|request| self.waiting.get(request))
            .flatten();
        callers.find(|caller| !caller.tx.is_closed())
    }

    /// Returns `true` if the request waits for a call of equal ones.
    fn must_wait(&self, request: &Arc<Request>, now: Instant) -> bool {
        let Some(starts) = self.running.get(request) else {
            return false;
        };
        let recent = starts.iter().filter(|started| is_recent(started, now));
        recent.count() >= MAX_EQUAL
    }

    /// Notes that a call of the request starts.
    fn start(&mut self, request: Arc<Request>, now: Instant) {
        let starts = self.running.entry(request).or_default();
        starts.retain(|started| is_recent(started, now));
        starts.push(now);
    }

    /// Notes that a call of the request has ended.
    fn end(&mut self, request: &Arc<Request>, started: Instant) {
        let Some(starts) = self.running.get_mut(request) else {
            return;
        };
        if let Some(at) = starts.iter().position(|start| *start == started) {
            starts.remove(at);
        }
        if starts.is_empty() {
            self.running.remove(request);
        }
    }
}

/// Returns `true` if a call that started at this instant still delays others.
fn is_recent(started: &Instant, now: Instant) -> bool {
    now < *started + INTERVAL
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Charges `request`, whose accounts are in one hash slot, in its own call or in a batch.
    pub(crate) async fn take_queued(&self, request: &Arc<Request>) -> Result<Reply, RedisError> {
        if !self.settings.coalesces {
            return Box::pin(self.execute(request, ScriptOp::Take)).await;
        }
        let sharded = self.settings.sharded;
        let first = request.accounts.first();
        let hash_slot = first.map_or(0, |account| account.hash_slot(sharded));
        let queue = self.settings.queues.get(hash_slot, request.kind());
        if let Some(started) = queue.start_alone(request) {
            let _call = QueuedCall {
                store: self.clone(),
                queue: queue.clone(),
                started,
                requests: smallvec![request.clone()],
            };
            // Not in a task, which may start on another thread, and later. Boxed, so that the futures of
            // waiting callers stay small.
            return Box::pin(self.execute(request, ScriptOp::Take)).await;
        }
        let answered = self.wait_for_call(queue, request).await;
        let Answered { reply, is_shared } = answered.inspect_err(RedisError::count)?;
        match reply {
            Err(error) if is_shared && error.kind().rejects_batches() => {
                Box::pin(self.execute(request, ScriptOp::Take)).await
            }
            reply if is_shared => reply.inspect_err(RedisError::count),
            reply => reply,
        }
    }

    /// Waits for a task whose call the request joins.
    async fn wait_for_call(
        &self,
        queue: &Arc<CallQueue>,
        request: &Arc<Request>,
    ) -> Result<Answered, RedisError> {
        let runtime = runtime()?;
        let (tx, mut rx) = oneshot::channel();
        queue.push(Caller {
            request: request.clone(),
            tx,
            runtime: runtime.clone(),
        });
        self.start_task(queue, Some(&runtime));
        let start = Instant::now();
        let mut pause = INTERVAL;
        loop {
            if let Ok(answered) = timeout(pause, &mut rx).await {
                let text = "the task of the batch ended";
                return answered.map_err(|_| RedisError::new(RedisErrorKind::Other, text));
            }
            pause = LONGEST.saturating_sub(start.elapsed());
            if pause.is_zero() {
                return Err(RedisError::new(RedisErrorKind::Timeout, "no reply in time"));
            }
            if queue.has_waiting(request) {
                // The last task may have ended, or its runtime may be blocked.
                self.start_task(queue, Some(&runtime));
                pause = INTERVAL;
            }
        }
    }

    /// Spawns a task if one is due, on the caller's `own` runtime or on that of the first caller.
    fn start_task(&self, queue: &Arc<CallQueue>, own: Option<&Handle>) {
        let Some(first) = queue.start_task() else {
            return;
        };
        let task = run_call(self.clone(), queue.clone());
        // A runtime that shuts down drops the task. Its requests then wait for the next one.
        drop(own.unwrap_or(&first).spawn(task));
    }
}

/// Makes a call for the requests that wait.
async fn run_call<C: ConnectionLike + Clone + Send + Sync + 'static>(
    store: RedisStore<C>,
    queue: Arc<CallQueue>,
) {
    // Lets requests that arrive at the same moment join the call.
    yield_now().await;
    let Some(Collected {
        batch,
        requests,
        started,
    }) = queue.collect()
    else {
        return;
    };
    let call = QueuedCall {
        store,
        queue,
        started,
        requests,
    };
    // More requests may wait than fit into a call.
    call.store.start_task(&call.queue, None);
    // No caller waits longer.
    let Ok(replies) = timeout(LONGEST, call.store.call_batch(&batch)).await else {
        return;
    };
    if batch.is_shared() {
        call.queue.note_shared();
    }
    batch.reply(replies);
}

/// A call in its queue. On drop, it leaves the queue, and the next task starts.
struct QueuedCall<C: ConnectionLike + Clone + Send + Sync + 'static> {
    store: RedisStore<C>,
    queue: Arc<CallQueue>,
    started: Instant,
    requests: SmallVec<[Arc<Request>; 1]>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for QueuedCall<C> {
    fn drop(&mut self) {
        self.queue.end(self.started, &self.requests);
        self.store.start_task(&self.queue, None);
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use tokio::{sync::oneshot::Receiver, time::advance};

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::Quota,
        store::{Charge, redis::protocol::addresses::Addresses},
    };

    fn queue() -> CallQueue {
        CallQueue {
            kind: RequestKind::Plain,
            state: Mutex::default(),
        }
    }

    fn request(key: u32) -> Arc<Request> {
        let (key, quotas) = (Key::from(key), [Quota::per_day(10)]);
        Arc::new(Request::new(
            &[Charge::new(RuleName::default(), &key, &quotas)],
            &Addresses::new(),
        ))
    }

    /// Lets a caller wait.
    fn push(queue: &CallQueue, request: &Arc<Request>) -> Receiver<Answered> {
        let (tx, rx) = oneshot::channel();
        queue.push(Caller {
            request: request.clone(),
            tx,
            runtime: Handle::current(),
        });
        rx
    }

    /// Runs a task, if one is due. Returns the number of callers of its call.
    fn run_task(queue: &CallQueue) -> Option<usize> {
        queue.start_task()?;
        let Collected { batch, .. } = queue.collect()?;
        Some(batch.groups().map(|(_, callers)| callers).sum())
    }

    fn is_empty(queue: &CallQueue) -> bool {
        let state = queue.state.lock();
        state.waiting.is_empty() && state.order.is_empty() && state.running.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn a_third_call_of_equal_requests_starts_after_the_interval_or_the_end_of_another() {
        let (queue, hot, other) = (queue(), request(1), request(2));
        let first = queue.start_alone(&hot).expect("no call is in flight");
        assert_eq!(queue.start_alone(&hot), None);
        let _second = push(&queue, &hot);
        assert_eq!(run_task(&queue), Some(1));
        let _waiting = [push(&queue, &hot), push(&queue, &hot)];
        assert_eq!(run_task(&queue), None);
        let _others = push(&queue, &other);
        assert_eq!(run_task(&queue), Some(1), "another request does not wait");
        queue.end(first, slice::from_ref(&hot));
        assert_eq!(run_task(&queue), Some(2), "a call has ended");
        let _waiting = push(&queue, &hot);
        assert_eq!(run_task(&queue), None);
        advance(INTERVAL).await;
        assert_eq!(run_task(&queue), Some(1), "the last calls are old");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_beyond_the_maximum_starts_after_the_interval_or_the_end_of_another() {
        let queue = queue();
        let started = queue
            .start_alone(&request(0))
            .expect("no call is in flight");
        let number = u32::try_from(MAX_CALLS).expect("few");
        let waiting: Vec<_> = (1..number)
            .map(|key| (push(&queue, &request(key)), run_task(&queue)))
            .collect();
        assert!(waiting.iter().all(|(_, callers)| *callers == Some(1)));
        let _waiting: Vec<_> = (0..3)
            .map(|key| push(&queue, &request(number + key)))
            .collect();
        assert_eq!(run_task(&queue), None);
        queue.end(started, &[request(0)]);
        assert_eq!(run_task(&queue), Some(3));
        let _waiting = push(&queue, &request(number + 3));
        assert_eq!(run_task(&queue), None);
        advance(INTERVAL).await;
        assert_eq!(run_task(&queue), Some(1), "a slow link");
    }

    /// A runtime that ends drops its tasks, and one that is blocked does not run them.
    #[tokio::test(start_paused = true)]
    async fn a_task_that_never_runs_delays_others_for_the_interval() {
        let queue = queue();
        let _waiting = push(&queue, &request(1));
        assert!(queue.start_task().is_some());
        let _waiting = push(&queue, &request(2));
        assert_eq!(run_task(&queue), None);
        advance(INTERVAL).await;
        assert_eq!(run_task(&queue), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_ends_is_forgotten() {
        let (queue, one) = (queue(), request(1));
        let started = queue.start_alone(&one).expect("no call is in flight");
        advance(TIMEOUT).await;
        let again = queue.start_alone(&one).expect("the call is forgotten");
        queue.end(started, slice::from_ref(&one));
        assert_eq!(
            queue.start_alone(&one),
            None,
            "the second call is in flight"
        );
        queue.end(again, &[one]);
        assert!(is_empty(&queue));
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_is_alone_soon_after_several_shared_a_call() {
        let (queue, hot) = (queue(), request(1));
        queue.note_shared();
        assert_eq!(queue.start_alone(&hot), None);
        advance(INTERVAL).await;
        assert!(queue.start_alone(&hot).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_have_left_are_forgotten() {
        let queue = queue();
        drop(push(&queue, &request(1)));
        assert_eq!(run_task(&queue), None, "nobody waits");
        assert!(is_empty(&queue));
        let (left, _waiting) = (push(&queue, &request(1)), push(&queue, &request(1)));
        let other = push(&queue, &request(2));
        assert!(queue.start_task().is_some());
        drop((left, other));
        let Collected {
            batch,
            requests,
            started,
        } = queue.collect().expect("a caller waits");
        assert_eq!(
            batch
                .groups()
                .map(|(_, callers)| callers)
                .collect::<Vec<_>>(),
            [1]
        );
        queue.end(started, &requests);
        assert!(is_empty(&queue));
    }
}
