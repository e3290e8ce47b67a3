//! Positions of requests that wait for a slot.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// The arrival of a request that has not waited. It is later than every other arrival.
pub(crate) const NOT_QUEUED: u32 = u32::MAX;

/// Queues of requests that wait for slots, one queue per account.
pub(crate) trait SlotQueues: Send + Sync {
    /// Completes once the request may ask for its slots again.
    fn poll_called(&self, at: &QueuedAt, cx: &mut Context<'_>) -> Poll<()>;
    /// Removes the request from its queue.
    fn leave(&self, at: &QueuedAt);
}

/// The location of a request in the queues of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedAt {
    pub(crate) account: u64,
    /// Requests with less headroom come first.
    pub(crate) headroom: u32,
    /// The number by which a request keeps its order when it asks again.
    pub(crate) arrival: u32,
    /// Unlike the arrival, each denial has a ticket of its own.
    pub(crate) ticket: u32,
}

/// The position of a denied request that waits for a slot. Dropping this value leaves the queue.
///
/// The future completes when the request is the next one and its slots are probably free. It stays
/// in the queue until it has asked again, so that no later request gets its slots.
pub(crate) struct Position {
    queues: Arc<dyn SlotQueues>,
    at: QueuedAt,
    max_wait: u64,
}

impl Position {
    /// `max_wait` is in nanoseconds.
    pub(crate) fn new(queues: Arc<dyn SlotQueues>, at: QueuedAt, max_wait: u64) -> Self {
        Self { queues, at, max_wait }
    }

    /// Returns the value for [`Charge::with_arrival`](crate::store::Charge::with_arrival).
    pub(crate) fn arrival(&self) -> u32 {
        self.at.arrival
    }

    /// Returns the longest time that the request waits.
    pub(crate) fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait)
    }
}

impl Future for Position {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.queues.poll_called(&self.at, cx)
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        self.queues.leave(&self.at);
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Position").field("at", &self.at).finish_non_exhaustive()
    }
}
