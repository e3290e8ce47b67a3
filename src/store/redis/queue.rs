//! The queue of a store, which decides when requests and batches are sent.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    batch::{Batch, BatchPlace, MAX_GROUPS},
    error::RedisError,
    request::Request,
};

/// The maximum number of direct calls in flight. Further requests wait for a batch.
const MAX_DIRECT: usize = 16;
/// The maximum number of batches in flight. Exceptions are a full batch, and a batch that starts
/// [`BATCH_INTERVAL`] after the previous batch.
const MAX_IN_FLIGHT: usize = 2;
/// The time after which another batch may start, even at [`MAX_IN_FLIGHT`]. On a slow link,
/// requests would otherwise wait for one round trip before their own.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time after which a batch no longer counts as in flight, because its runtime may be blocked.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// The queues of a store: one, or one for each slot of a cluster.
///
/// A call cannot have accounts of different slots.
#[derive(Debug)]
pub(super) struct Queues(Box<[OnceLock<Arc<Queue>>]>);

impl Queues {
    pub(super) fn new(count: u16) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Returns the queue of the slot.
    pub(super) fn get(&self, slot: u16) -> &Arc<Queue> {
        self.0[usize::from(slot)].get_or_init(Arc::default)
    }
}

/// The queue of waiting requests, and the calls in flight.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    direct: usize,
    waiting: VecDeque<QueuedRequest>,
    batches: Vec<RunningBatch>,
    /// The number of batches that have been started so far.
    batches_started: u64,
    /// `true` while a task spawns batches.
    spawning: bool,
}

/// A batch in progress.
#[derive(Debug)]
struct RunningBatch {
    id: u64,
    /// The instant from which another batch may start, even at [`MAX_IN_FLIGHT`].
    next_at: Instant,
    /// The instant from which this batch no longer counts as in flight.
    stalls_at: Instant,
    phase: Phase,
}

/// The phase of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The batch is not sent yet, so new requests can join.
    Collecting,
    InFlight,
    /// The batch is answered, and its callers may send new requests.
    Replying,
}

/// A waiting caller with its request.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) request: Arc<Request>,
    pub(super) tx: oneshot::Sender<Result<BatchPlace, RedisError>>,
    /// The runtime of the caller.
    pub(super) runtime: Handle,
}

impl QueuedRequest {
    /// Returns `true` if the caller was not dropped.
    fn is_waiting(&self) -> bool {
        !self.tx.is_closed()
    }
}

impl Queue {
    /// Returns a permit for a direct call, or `None` if the request must wait.
    pub(super) fn try_direct(self: &Arc<Self>) -> Option<DirectPermit> {
        let mut state = self.state();
        let free =
            state.waiting.is_empty() && state.batches.is_empty() && state.direct < MAX_DIRECT;
        state.direct += usize::from(free);
        free.then(|| DirectPermit(self.clone()))
    }

    /// Adds a caller. Returns `true` if a batch is due.
    pub(super) fn push(&self, waiter: QueuedRequest, now: Instant) -> bool {
        let mut state = self.state();
        let queue = &mut state.waiting;
        if queue.len() == queue.capacity() {
            // Removes dropped callers to make room.
            queue.retain(QueuedRequest::is_waiting);
            queue.reserve(queue.len().max(MAX_GROUPS));
        }
        queue.push_back(waiter);
        state.is_batch_due(now)
    }

    /// Returns the first caller of the next batch, if a batch is due.
    ///
    /// No other batch starts until [`batch_spawned`](Queue::batch_spawned) is called.
    pub(super) fn next_batch(
        self: &Arc<Self>,
        now: Instant,
    ) -> Option<(QueuedRequest, BatchGuard)> {
        let mut state = self.state();
        if !state.is_batch_due(now) {
            return None;
        }
        let first = state.pop()?;
        state.spawning = true;
        state.batches_started += 1;
        let id = state.batches_started;
        let (next_at, stalls_at) = (now + BATCH_INTERVAL, now + STALL_TIMEOUT);
        state.batches.push(RunningBatch { id, next_at, stalls_at, phase: Phase::Collecting });
        Some((first, BatchGuard { queue: self.clone(), id }))
    }

    pub(super) fn batch_spawned(&self) {
        self.state().spawning = false;
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Returns `true` if another batch may start. See [`MAX_IN_FLIGHT`].
    fn is_batch_due(&mut self, now: Instant) -> bool {
        if self.spawning || self.waiting.is_empty() {
            return false;
        }
        self.batches.retain(|batch| now < batch.stalls_at);
        let count = |phase| self.batches.iter().filter(|batch| batch.phase == phase).count();
        let (collecting, in_flight) = (count(Phase::Collecting), count(Phase::InFlight));
        let is_next = self.batches.last().is_some_and(|batch| now >= batch.next_at);
        let has_room = collecting == 0 && (in_flight < MAX_IN_FLIGHT || is_next);
        has_room || self.waiting.len() >= MAX_GROUPS * (collecting + 1)
    }

    /// Removes and returns the first caller that was not dropped.
    fn pop(&mut self) -> Option<QueuedRequest> {
        loop {
            let first = self.waiting.pop_front()?;
            if first.is_waiting() {
                return Some(first);
            }
        }
    }
}

/// A permit for one direct call.
#[derive(Debug)]
pub(super) struct DirectPermit(Arc<Queue>);

impl Drop for DirectPermit {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.direct = state.direct.saturating_sub(1);
    }
}

/// A batch in its queue. The batch leaves the queue on drop.
#[derive(Debug)]
pub(super) struct BatchGuard {
    queue: Arc<Queue>,
    id: u64,
}

impl BatchGuard {
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Fills the batch with `first` and the waiting callers.
    pub(super) fn collect(&self, first: QueuedRequest, batch: &mut Batch) {
        if first.is_waiting() {
            batch.add(first);
        }
        loop {
            let more: Vec<_> = {
                let waiting = &mut self.queue.state().waiting;
                waiting.drain(..batch.room().min(waiting.len())).collect()
            };
            if more.is_empty() {
                break;
            }
            more.into_iter().filter(QueuedRequest::is_waiting).for_each(|caller| batch.add(caller));
        }
        self.enter(Phase::InFlight);
    }

    /// Marks the batch as answered, so that the next batch may be sent.
    pub(super) fn replying(&self) {
        self.enter(Phase::Replying);
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.queue.state();
        let batch = state.batches.iter_mut().find(|batch| batch.id == self.id);
        batch.into_iter().for_each(|batch| batch.phase = phase);
    }
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        self.queue.state().batches.retain(|batch| batch.id != self.id);
    }
}
