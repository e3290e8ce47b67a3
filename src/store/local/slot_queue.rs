//! The requests that wait for slots of one account.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    task::{Context, Poll, Waker},
};

/// Headroom and arrival. Requests get slots in ascending order.
pub(super) type Order = (u32, u32);

/// The requests that wait for slots of one account.
#[derive(Debug, Default)]
pub(super) struct SlotQueue {
    /// The limit of the latest request that asked again or joined.
    limit: u64,
    waiting: BTreeMap<Order, SlotWaiter>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct SlotWaiter {
    /// The slots that must be free.
    need: u64,
    ticket: u32,
    called: bool,
    waker: Option<Waker>,
}

impl SlotQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns `true` if another request gets slots before one of this order.
    pub(super) fn precedes(&self, order: Order) -> bool {
        self.waiting.first_key_value().is_some_and(|(first, _)| *first < order)
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Adds a request, or replaces it if it has waited before.
    pub(super) fn join(&mut self, order: Order, need: u64, ticket: u32, limit: u64) {
        self.limit = limit;
        let called = false;
        // A request that asks again has been called, so its waker is gone.
        let _ = self.waiting.insert(order, SlotWaiter { need, ticket, called, waker: None });
    }

    /// Removes a request, unless it has joined again since.
    pub(super) fn leave(&mut self, order: Order, ticket: u32) -> Option<SlotWaiter> {
        match self.waiting.entry(order) {
            Entry::Occupied(entry) if entry.get().ticket == ticket => Some(entry.remove()),
            _ => None,
        }
    }

    /// Calls the first request if it fits beside `held` slots. Returns the waker of its task.
    pub(super) fn call_next(&mut self, held: u64) -> Option<Waker> {
        let mut first = self.waiting.first_entry()?;
        let first = first.get_mut();
        // With no slot held, the limit may be lower than the need, and nothing else would call it.
        if first.called || held > 0 && held.saturating_add(first.need) > self.limit {
            return None;
        }
        first.called = true;
        first.waker.take()
    }

    /// Completes once the request is called. Returns the replaced waker, to be dropped without a
    /// lock.
    pub(super) fn poll_called(
        &mut self,
        order: Order,
        ticket: u32,
        cx: &mut Context<'_>,
    ) -> (Poll<()>, Option<Waker>) {
        match self.waiting.get_mut(&order).filter(|it| it.ticket == ticket && !it.called) {
            Some(it) => (Poll::Pending, it.waker.replace(cx.waker().clone())),
            None => (Poll::Ready(()), None),
        }
    }
}
