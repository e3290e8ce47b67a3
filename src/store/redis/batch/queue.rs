//! The queue of a store, which decides when requests and batches are sent.

use std::{
    collections::{HashMap, VecDeque},
    hash::{Hash, Hasher},
    mem::take,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{Batch, BatchKind, BatchPlace, MAX_SIZE};
use crate::store::redis::{error::RedisError, protocol::request::Request};

/// The maximum number of direct calls in flight. Further requests wait for a batch.
const MAX_DIRECT: usize = 16;
/// The maximum number of calls in flight with equal requests. Further ones wait, and share the next
/// call.
const MAX_EQUAL: usize = 2;
/// The maximum number of batches in flight. Exceptions are a full batch, and a batch that starts
/// [`BATCH_INTERVAL`] after the previous batch.
const MAX_IN_FLIGHT: usize = 2;
/// The time after which another batch may start, even at [`MAX_IN_FLIGHT`]. On a slow link,
/// requests would otherwise wait for one round trip before their own.
const BATCH_INTERVAL: Duration = Duration::from_millis(5);
/// The time after which a batch no longer counts as in flight, because its runtime may be blocked.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// The queues of a store: for each slot of a cluster, one for each kind of batch.
///
/// A call cannot have accounts of different slots.
#[derive(Debug)]
pub(crate) struct Queues(Box<[OnceLock<[Arc<Queue>; 2]>]>);

impl Queues {
    pub(crate) fn new(count: u16) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Returns the queue of the slot.
    pub(crate) fn get(&self, slot: u16, kind: BatchKind) -> &Arc<Queue> {
        let queues = self.0[usize::from(slot)]
            .get_or_init(|| [BatchKind::Plain, BatchKind::General].map(Queue::new));
        &queues[kind as usize]
    }
}

/// The queue of waiting requests, and the calls in flight.
#[derive(Debug)]
pub(crate) struct Queue {
    kind: BatchKind,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    direct: usize,
    /// The requests that wait or are in flight, once for equal ones.
    asked: HashMap<Question, Asked, RandomState>,
    /// The questions that may join the next batch, in the order of their first callers.
    ready: VecDeque<Question>,
    /// The sum of the sizes of the ready questions.
    ready_size: usize,
    batches: Vec<RunningBatch>,
    /// The number of batches that have been started so far.
    batches_started: u64,
    /// `true` while a task spawns batches.
    spawning: bool,
}

/// A request, which is equal to requests for the same.
#[derive(Clone, Debug)]
struct Question(Arc<Request>);

impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&other.0)
    }
}

impl Eq for Question {}

impl Hash for Question {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for account in &self.0.accounts {
            account.address.hash(state);
            for (_, ask) in account.quotas.iter().flatten() {
                (ask.cost, ask.headroom, ask.max_wait).hash(state);
            }
        }
    }
}

/// The callers with equal requests.
#[derive(Debug, Default)]
struct Asked {
    waiting: SmallVec<[QueuedRequest; 1]>,
    /// The number of calls in flight, at most [`MAX_EQUAL`].
    in_flight: usize,
    is_ready: bool,
}

/// A batch in progress.
#[derive(Debug)]
struct RunningBatch {
    id: u64,
    questions: Vec<Question>,
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
pub(crate) struct QueuedRequest {
    pub(crate) request: Arc<Request>,
    pub(crate) tx: oneshot::Sender<Result<BatchPlace, RedisError>>,
    /// The runtime of the caller.
    pub(crate) runtime: Handle,
}

impl QueuedRequest {
    /// Returns `true` if the caller was not dropped.
    fn is_waiting(&self) -> bool {
        !self.tx.is_closed()
    }
}

impl Queue {
    fn new(kind: BatchKind) -> Arc<Self> {
        Arc::new(Self { kind, state: Mutex::default() })
    }

    pub(crate) fn kind(&self) -> BatchKind {
        self.kind
    }

    /// Returns `true` if requests wait for a batch.
    pub(crate) fn has_ready(&self) -> bool {
        !self.state().ready.is_empty()
    }

    /// Returns a permit for a direct call, or `None` if the request must wait.
    pub(crate) fn try_direct(self: &Arc<Self>, request: &Arc<Request>) -> Option<DirectPermit> {
        let mut state = self.state();
        if !state.ready.is_empty() || !state.batches.is_empty() || state.direct >= MAX_DIRECT {
            return None;
        }
        let question = Question(request.clone());
        let asked = state.asked.entry(question.clone()).or_default();
        if asked.in_flight > 0 {
            return None;
        }
        asked.in_flight += 1;
        state.direct += 1;
        Some(DirectPermit { queue: self.clone(), question })
    }

    /// Adds a caller. Returns `true` if a batch is due.
    pub(crate) fn push(&self, caller: QueuedRequest, now: Instant) -> bool {
        let mut state = self.state();
        let question = Question(caller.request.clone());
        let waiting = &mut state.asked.entry(question.clone()).or_default().waiting;
        if waiting.len() == waiting.capacity() {
            // Removes dropped callers to make room.
            waiting.retain(|caller| caller.is_waiting());
            waiting.reserve(waiting.len() + 1);
        }
        waiting.push(caller);
        state.make_ready(self.kind, question);
        state.is_batch_due(self.kind, now)
    }

    /// Returns the first caller of the next batch, if a batch is due.
    ///
    /// No other batch starts until [`batch_spawned`](Queue::batch_spawned) is called.
    pub(crate) fn next_batch(
        self: &Arc<Self>,
        now: Instant,
    ) -> Option<(QueuedRequest, BatchGuard)> {
        let mut state = self.state();
        if !state.is_batch_due(self.kind, now) {
            return None;
        }
        let (first, question) = state.pop(self.kind)?;
        state.spawning = true;
        state.batches_started += 1;
        let id = state.batches_started;
        let (next_at, stalls_at) = (now + BATCH_INTERVAL, now + STALL_TIMEOUT);
        let (questions, phase) = (vec![question], Phase::Collecting);
        state.batches.push(RunningBatch { id, questions, next_at, stalls_at, phase });
        Some((first, BatchGuard { queue: self.clone(), id }))
    }

    pub(crate) fn batch_spawned(&self) {
        self.state().spawning = false;
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Returns `true` if another batch may start. See [`MAX_IN_FLIGHT`].
    fn is_batch_due(&mut self, kind: BatchKind, now: Instant) -> bool {
        while let Some(at) = self.batches.iter().position(|batch| now >= batch.stalls_at) {
            let stalled = self.batches.remove(at);
            self.release(kind, stalled.questions);
        }
        if self.spawning || self.ready.is_empty() {
            return false;
        }
        let count = |phase| self.batches.iter().filter(|batch| batch.phase == phase).count();
        let (collecting, in_flight) = (count(Phase::Collecting), count(Phase::InFlight));
        let is_next = self.batches.last().is_some_and(|batch| now >= batch.next_at);
        let has_room = collecting == 0 && (in_flight < MAX_IN_FLIGHT || is_next);
        has_room || self.ready_size >= MAX_SIZE * (collecting + 1)
    }

    /// Lets a question join the next batch, if callers wait and not too many calls are in flight.
    fn make_ready(&mut self, kind: BatchKind, question: Question) {
        if let Some(asked) = self.asked.get_mut(&question)
            && !asked.is_ready
            && !asked.waiting.is_empty()
            && asked.in_flight < MAX_EQUAL
        {
            asked.is_ready = true;
            self.ready_size += kind.size(&question.0);
            self.ready.push_back(question);
        }
    }

    /// Removes the first ready question, whose callers join a call.
    fn pop_ready(&mut self, kind: BatchKind) -> Option<(Question, &mut Asked)> {
        let question = self.ready.pop_front()?;
        self.ready_size -= kind.size(&question.0);
        let asked = self.asked.get_mut(&question)?;
        asked.is_ready = false;
        asked.in_flight += 1;
        Some((question, asked))
    }

    /// Removes and returns the first caller that was not dropped.
    fn pop(&mut self, kind: BatchKind) -> Option<(QueuedRequest, Question)> {
        loop {
            let (question, asked) = self.pop_ready(kind)?;
            let first = asked.waiting.iter().position(QueuedRequest::is_waiting);
            let dropped = first.unwrap_or(asked.waiting.len());
            let mut first = asked.waiting.drain(..dropped + usize::from(first.is_some()));
            match first.nth(dropped) {
                Some(first) => return Some((first, question)),
                None => {
                    drop(first);
                    self.release(kind, [question]);
                }
            }
        }
    }

    /// Ends a call for each of the questions.
    fn release(&mut self, kind: BatchKind, questions: impl IntoIterator<Item = Question>) {
        for question in questions {
            let Some(asked) = self.asked.get_mut(&question) else { continue };
            asked.in_flight = asked.in_flight.saturating_sub(1);
            if asked.in_flight == 0 && asked.waiting.is_empty() && !asked.is_ready {
                self.asked.remove(&question);
            } else {
                self.make_ready(kind, question);
            }
        }
    }
}

/// A permit for one direct call.
#[derive(Debug)]
pub(crate) struct DirectPermit {
    queue: Arc<Queue>,
    question: Question,
}

impl Drop for DirectPermit {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.direct = state.direct.saturating_sub(1);
        state.release(self.queue.kind, [self.question.clone()]);
    }
}

/// A batch in its queue. The batch leaves the queue on drop.
#[derive(Debug)]
pub(crate) struct BatchGuard {
    queue: Arc<Queue>,
    id: u64,
}

impl BatchGuard {
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Fills the batch with `first` and the waiting callers.
    pub(crate) fn collect(&self, first: QueuedRequest, batch: &mut Batch) {
        let (mut guard, kind) = (self.queue.state(), self.queue.kind);
        let state = &mut *guard;
        let mut questions = vec![Question(first.request.clone())];
        let mut callers: SmallVec<[_; 1]> = [first].into_iter().collect();
        while let Some(question) = questions.last() {
            let room = batch.room(&question.0).saturating_sub(callers.len());
            if let Some(asked) = state.asked.get_mut(question) {
                let joining = asked.waiting.len().min(room);
                callers.extend(asked.waiting.drain(..joining));
            }
            callers.retain(|caller| caller.is_waiting());
            batch.add(take(&mut callers));
            state.make_ready(kind, question.clone());
            let fits = state.ready.front().is_some_and(|next| batch.room(&next.0) > 0);
            let next = if fits { state.pop_ready(kind) } else { None };
            let Some((next, _)) = next else { break };
            questions.push(next);
        }
        if let Some(batch) = state.batches.iter_mut().find(|batch| batch.id == self.id) {
            (batch.questions, batch.phase) = (questions, Phase::InFlight);
        } else {
            // The batch has stalled, and its first question is no longer in flight.
            state.release(kind, questions.into_iter().skip(1));
        }
    }

    /// Marks the batch as answered, so that the next batch may be sent.
    pub(crate) fn replying(&self) {
        let mut state = self.queue.state();
        if let Some(batch) = state.batches.iter_mut().find(|batch| batch.id == self.id) {
            batch.phase = Phase::Replying;
            let questions = take(&mut batch.questions);
            state.release(self.queue.kind, questions);
        }
    }
}

impl Drop for BatchGuard {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if let Some(at) = state.batches.iter().position(|batch| batch.id == self.id) {
            let batch = state.batches.remove(at);
            state.release(self.queue.kind, batch.questions);
        }
    }
}
