//! Who asks at once, who waits for others, and when those who wait leave together.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    batch::{Batch, FULL},
    error::RedisError,
    question::Question,
};
use crate::decision::Decision;

/// Decisions under way, each by its own call, before one more has to wait.
const ALONE: usize = 16;
/// Batches under way while one that is not full waits for more.
const BATCHES: usize = 2;
/// After so long nobody waits for a batch any more: its runtime may stand still.
pub(super) const STUCK: Duration = Duration::from_millis(100);

/// The decisions of a store, those that are under way and those that wait.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    alone: usize,
    waiting: VecDeque<Waiting>,
    batches: Vec<Called>,
    /// How many batches were called so far.
    calls: u64,
    /// Somebody calls batches; who ends one meanwhile leaves the next to them.
    calling: bool,
}

/// A batch that is under way.
#[derive(Debug)]
struct Called {
    call: u64,
    since: Instant,
    at: At,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Those who come now are in time for it.
    Boarding,
    Asking,
    /// Its callers are told, and may be back at once.
    Telling,
}

/// A caller, and what it asks.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) question: Box<Question>,
    pub(super) tell: oneshot::Sender<Result<Decision, RedisError>>,
    /// Where it waits.
    pub(super) runtime: Handle,
}

impl Waiting {
    /// Whether the caller has not gone away.
    fn stays(&self) -> bool {
        !self.tell.is_closed()
    }
}

impl Queue {
    /// The right to a call of one's own, unless many are under way or others wait.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Alone> {
        let mut state = self.state();
        let free = state.waiting.is_empty() && state.batches.is_empty() && state.alone < ALONE;
        state.alone += usize::from(free);
        free.then(|| Alone(self.clone()))
    }

    pub(super) fn wait(&self, waiting: Waiting) {
        let mut state = self.state();
        let queue = &mut state.waiting;
        if queue.len() == queue.capacity() {
            // those who have left make room
            queue.retain(Waiting::stays);
            queue.reserve(queue.len().max(FULL));
        }
        queue.push_back(waiting);
    }

    /// A batch that is to leave, and the first who waits for it. Until [`called`](Queue::called)
    /// there is no other.
    pub(super) fn call(self: &Arc<Self>, now: Instant) -> Option<(Waiting, Ticket)> {
        let mut state = self.state();
        if state.calling || state.waiting.is_empty() || !state.leaves(now) {
            return None;
        }
        let first = state.next()?;
        state.calling = true;
        state.calls += 1;
        let call = state.calls;
        state.batches.push(Called { call, since: now, at: At::Boarding });
        Some((first, Ticket { queue: self.clone(), call }))
    }

    pub(super) fn called(&self) {
        self.state().calling = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether those who wait should leave now: all of them while few batches are under way, and a
    /// full batch in any case.
    fn leaves(&mut self, now: Instant) -> bool {
        self.batches.retain(|batch| now.duration_since(batch.since) < STUCK);
        let at = |at| self.batches.iter().filter(|batch| batch.at == at).count();
        let (boarding, asking) = (at(At::Boarding), at(At::Asking));
        let few = boarding == 0 && asking < BATCHES;
        few || self.waiting.len() >= FULL * (boarding + 1)
    }

    /// The first who has not gone away.
    fn next(&mut self) -> Option<Waiting> {
        loop {
            let first = self.waiting.pop_front()?;
            if first.stays() {
                return Some(first);
            }
        }
    }
}

/// The right to a call of one's own, for as long as it takes.
#[derive(Debug)]
pub(super) struct Alone(Arc<Queue>);

impl Drop for Alone {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.alone = state.alone.saturating_sub(1);
    }
}

/// A batch's place among those that are under way.
#[derive(Debug)]
pub(super) struct Ticket {
    queue: Arc<Queue>,
    call: u64,
}

impl Ticket {
    /// Fills a batch with those who wait, behind `first`, and lets it leave.
    pub(super) fn board(&self, first: Waiting, batch: &mut Batch) {
        if first.stays() {
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
            more.into_iter().filter(Waiting::stays).for_each(|caller| batch.add(caller));
        }
        self.is(At::Asking);
    }

    /// Its callers are being told: the next batch may leave.
    pub(super) fn tell(&self) {
        self.is(At::Telling);
    }

    fn is(&self, at: At) {
        let mut state = self.queue.state();
        let batch = state.batches.iter_mut().find(|batch| batch.call == self.call);
        batch.into_iter().for_each(|batch| batch.at = at);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.state().batches.retain(|batch| batch.call != self.call);
    }
}
