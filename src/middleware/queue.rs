//! Queued requests: their charges, and their number in total and per key.
//!
//! A request that may queue counts from its store call on. The maximum per key keeps a few keys from filling the queue.

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    decision::Decision,
    observe::{Active, Metrics},
    quota::Quota,
    store::{Charge, OwnedCharges, Store, Waiter, nanos, subtract},
};

/// The default maximum of one key is the total maximum divided by this number.
const PLACES_PER_KEY_PLACE: usize = 64;

/// The last call of a request that waits for a slot begins before the end of its wait: earlier by the
/// length of its previous call, and by this time.
const LAST_CALL: Duration = Duration::from_millis(5);

/// The maximum number of queued requests, in total and per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    /// The maximum per key, or `None` for the default.
    pub(crate) per_key: Option<usize>,
}

impl Bounds {
    /// Returns the maximum for the key of `charge`.
    ///
    /// [`max_waiters_per_key`](crate::RateLimitLayer::max_waiters_per_key) documents the default.
    pub(super) fn of(self, charge: &Charge<'_>) -> usize {
        if let Some(max) = self.per_key {
            return max;
        }
        if !charge.key.has_own_queue() {
            return self.all;
        }
        let limit = charge
            .quotas
            .iter()
            .map(|quota| most_waiting(quota, charge))
            .min();
        let limit = usize::try_from(limit.unwrap_or(0)).unwrap_or(usize::MAX);
        limit.min(self.all / PLACES_PER_KEY_PLACE).max(1)
    }
}

/// Returns the number of requests of a key that wait under a quota. Those that the store admits at
/// once have a place as well while it decides, so it is at least the units or the burst.
fn most_waiting(quota: &Quota, charge: &Charge<'_>) -> u64 {
    let units = u64::from(quota.limit().max(quota.units()));
    if quota.is_concurrent() {
        return units;
    }
    let turns = nanos(charge.max_wait) / quota.interval_nanos().max(1);
    turns.max(units)
}

/// The queue of a layer and its clones.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    seed: RandomState,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The number of requests.
    all: usize,
    /// The number of requests of each key. A request counts once for each of its keys.
    keys: HashMap<u64, u64>,
    /// The requests that wait now, by the numbers of their waiters.
    waiting: HashMap<u64, Waiting>,
    /// `true` if no further request waits.
    is_closed: bool,
}

/// A request that waits now.
#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
    last: Box<LastDecision>,
}

impl Waiting {
    /// Denies the request. Returns the decision that charged it, if one did.
    fn deny(&mut self) -> Option<LastDecision> {
        if !self.last.decision.is_allowed() {
            return None;
        }
        let charged = LastDecision::clone(&self.last);
        self.last.decision = charged.decision.clone().into_denied();
        Some(charged)
    }
}

/// The last decision about a request: a denial, or a charge whose turn comes later.
#[derive(Clone, Debug)]
pub(super) struct LastDecision {
    pub(super) decision: Decision,
    pub(super) charges: OwnedCharges,
}

impl LastDecision {
    pub(super) fn boxed(decision: Decision, charges: &[Charge<'_>]) -> Box<Self> {
        Box::new(Self {
            decision,
            charges: charges.into(),
        })
    }

    /// Undoes the charge, if one was made.
    pub(super) fn undo<S: Store>(&self, store: &S) {
        if !self.decision.is_allowed() {
            return;
        }
        self.charges.with(|charges| {
            let made: SmallVec<[Charge<'_>; 4]> = charges
                .iter()
                .filter(|charge| self.decision.charged(charge.rule))
                .copied()
                .collect();
            store.undo(&made, &self.decision, None);
        });
    }
}

/// A request that is queued or may be, counted until this value is dropped. It then leaves its queues,
/// and its charge is undone.
pub(crate) struct QueuedRequest<S: Store> {
    queue: Arc<Queue>,
    keys: Keys,
    pub(super) entered: Instant,
    /// The start of its last call.
    asked: Instant,
    /// `true` once the request has waited for a slot.
    pub(super) has_waited: bool,
    /// Set if the request may wait for slots, and once it waits.
    pub(super) waiter: Option<Waiter>,
    /// Set if the request has waited, and has not asked again.
    pub(super) last: Option<Box<LastDecision>>,
    /// The store that made its charge, once it waits for its turn.
    store: Option<Arc<S>>,
    /// The end of the wait for a slot.
    ends_at: Instant,
    /// The turn of the request, its next call, or the end of its wait.
    timer: Option<Pin<Box<Sleep>>>,
    /// Set once the request waits.
    observed: Option<Active>,
}

type Keys = SmallVec<[u64; 2]>;

impl Queue {
    /// Returns `true` if no further request with these charges can queue.
    pub(crate) fn is_full(&self, charges: &[Charge<'_>], bounds: Bounds) -> bool {
        self.has_no_place(charges, bounds, &self.state.lock())
    }

    /// Adds a request to the queue. Returns `None` if the queue is full or closed.
    pub(crate) fn enter<S: Store>(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        bounds: Bounds,
    ) -> Option<Box<QueuedRequest<S>>> {
        let mut state = self.state.lock();
        if self.has_no_place(charges, bounds, &state) {
            return None;
        }
        state.all += 1;
        let keys: Keys = self.keys_of(charges).map(|(key, _)| key).collect();
        for key in &keys {
            *state.keys.entry(*key).or_default() += 1;
        }
        drop(state);
        Some(QueuedRequest::new(self.clone(), keys, charges))
    }

    fn has_no_place(&self, charges: &[Charge<'_>], bounds: Bounds, state: &QueueState) -> bool {
        state.is_closed || state.all >= bounds.all || self.has_full_key(charges, bounds, state)
    }

    /// Returns `true` if a charge lacks a place in the queue by its own key: the key fills its own part, or
    /// does not queue.
    pub(crate) fn is_full_by_own_key(&self, charge: &Charge<'_>, bounds: Bounds) -> bool {
        !charge.queues() || self.has_full_key(slice::from_ref(charge), bounds, &self.state.lock())
    }

    /// Returns `true` if one of the keys has as many requests in the queue as it may.
    fn has_full_key(&self, charges: &[Charge<'_>], bounds: Bounds, state: &QueueState) -> bool {
        let queued = |key| state.keys.get(&key).copied().unwrap_or(0);
        self.keys_of(charges)
            .any(|(key, charge)| queued(key) >= bounds.of(charge) as u64)
    }

    /// Returns the charges that can queue, each with a hash of its rule and key.
    fn keys_of<'a>(
        &self,
        charges: &'a [Charge<'a>],
    ) -> impl Iterator<Item = (u64, &'a Charge<'a>)> {
        let queueing = charges.iter().filter(|charge| charge.queues());
        queueing.map(|charge| (self.seed.hash_one((charge.rule, charge.key)), charge))
    }

    /// Returns `true` if no further request waits.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Lets a request wait, unless the queue is closed.
    fn add(&self, waiting: Waiting) -> Result<(), Box<LastDecision>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(waiting.last);
        }
        state.waiting.insert(waiting.waiter.number(), waiting);
        Ok(())
    }

    /// Ends the wait of a request. Returns its last decision: a denial, if the queue was closed.
    fn remove(&self, waiter: &Waiter) -> Option<Box<LastDecision>> {
        let waiting = self.state.lock().waiting.remove(&waiter.number())?;
        Some(waiting.last)
    }

    /// Denies all requests that wait, and undoes their charges. No further request waits.
    fn close<S: Store>(&self, store: &S) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waiting = state.waiting.values_mut();
        let mut charged: Vec<_> = waiting.filter_map(Waiting::deny).collect();
        let waiting = state.waiting.values();
        let waiters: Vec<_> = waiting.map(|waiting| waiting.waiter.clone()).collect();
        drop(state);
        // A charge can be undone only while it is the last of its account.
        charged.sort_by_key(|last| Reverse((last.decision.at, last.decision.wait)));
        charged.iter().for_each(|last| last.undo(store));
        waiters.iter().for_each(Waiter::release);
    }
}

impl<S: Store> QueuedRequest<S> {
    fn new(queue: Arc<Queue>, keys: Keys, charges: &[Charge<'_>]) -> Box<Self> {
        let waits_for_slots =
            |charge: &Charge<'_>| charge.queues() && charge.quotas.iter().any(Quota::is_concurrent);
        let may_wait_for_slots = charges.iter().any(waits_for_slots);
        let now = Instant::now();
        Box::new(Self {
            queue,
            keys,
            entered: now,
            asked: now,
            has_waited: false,
            waiter: may_wait_for_slots.then(Waiter::new),
            last: None,
            store: None,
            ends_at: now,
            timer: None,
            observed: None,
        })
    }

    /// Begins a wait for a slot. Returns at once the instant at which the wait ends if nothing wakes the
    /// request earlier.
    ///
    /// If there is time for one more call, that is shortly before the time of the request is over, and the
    /// request then asks again. Otherwise, it is the end of its time, and the request is denied.
    ///
    /// Returns `None` if the request has no place in a queue of the store, or its wait has ended.
    pub(super) fn begin_slot_wait(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.ends_at = self.asked + self.waiter.as_ref()?.take_max_wait()?;
        if now >= self.ends_at {
            return None;
        }
        self.has_waited = true;
        let call_time = now - self.asked;
        let last_call = self.ends_at.checked_sub(call_time + LAST_CALL);
        Some(last_call.filter(|next| *next > now).unwrap_or(self.ends_at))
    }

    /// Begins the wait for the turn of a charge.
    ///
    /// # Errors
    ///
    /// Fails with the decision if the queue is closed.
    pub(super) fn begin_turn(
        mut self: Box<Self>,
        store: &Arc<S>,
        last: Box<LastDecision>,
    ) -> Result<Box<Self>, Box<LastDecision>> {
        self.store = Some(store.clone());
        let waiter = self.waiter.get_or_insert_with(Waiter::new);
        // A slot that becomes free must not end the wait for the turn.
        waiter.leave();
        let turn = Instant::now() + last.decision.wait();
        self.begin_wait(turn, last)
    }

    /// Begins a wait until an instant, or until the request is woken or released.
    ///
    /// # Errors
    ///
    /// Fails with the decision if the queue is closed.
    pub(super) fn begin_wait(
        mut self: Box<Self>,
        until: Instant,
        last: Box<LastDecision>,
    ) -> Result<Box<Self>, Box<LastDecision>> {
        let waiter = self.waiter.get_or_insert_with(Waiter::new).clone();
        self.queue.add(Waiting { waiter, last })?;
        self.timer = Some(Box::pin(sleep_until(until)));
        Ok(self)
    }

    /// Begins a call of the store, and forgets the last decision. Returns the time that the request has
    /// waited so far.
    pub(super) fn begin_call(&mut self) -> Duration {
        self.last = None;
        if !self.has_waited {
            return Duration::ZERO;
        }
        self.asked = Instant::now();
        self.asked - self.entered
    }

    /// Reports that the request waits by this decision.
    pub(super) fn observe(
        &mut self,
        metrics: &Metrics,
        decision: &Decision,
        charges: &[Charge<'_>],
    ) {
        let queues = |rule| {
            charges
                .iter()
                .any(|charge| charge.rule == rule && charge.queues())
        };
        self.observed = self
            .observed
            .take()
            .or_else(|| metrics.count_waiting(decision, queues));
    }

    /// Completes at the turn of the request, when it may ask for its slots again, at the end of its
    /// wait, or when the queue is closed.
    pub(super) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let (Some(waiter), Some(timer)) = (&self.waiter, &mut self.timer) {
            ready!(waiter.poll_until(timer.as_mut(), cx));
            self.timer = None;
            self.last = self.queue.remove(waiter);
            if self.is_charged() {
                // The request may still wait for the inner service, which is no wait in the queue.
                self.observed = None;
            }
        }
        Poll::Ready(())
    }

    /// Returns `true` if the request has been charged and its turn has come.
    pub(super) fn is_charged(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|last| last.decision.is_allowed())
    }

    /// Returns `true` if the queue is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Returns `true` if the request may ask for its slots again.
    pub(super) fn may_ask(&self) -> bool {
        Instant::now() < self.ends_at && !self.is_closed()
    }
}

impl<S: Store> Drop for QueuedRequest<S> {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            let last = self.last.take().or_else(|| self.queue.remove(waiter));
            if let (Some(last), Some(store)) = (last, &self.store) {
                last.undo(&**store);
            }
            // A late answer of the store may still have the waiter.
            waiter.leave();
        }
        let mut state = self.queue.state.lock();
        self.keys
            .iter()
            .for_each(|key| subtract(&mut state.keys, *key, 1));
        state.all -= 1;
    }
}

/// Handle of the requests that wait in a layer, for the shutdown of a service.
///
/// Created by [`RateLimitLayer::queue_handle`](crate::RateLimitLayer::queue_handle). Clones close the
/// same queue.
#[derive(Clone)]
pub struct QueueHandle {
    queue: Arc<Queue>,
    /// Closes the queue, with the store that made its charges.
    close: Arc<dyn Fn() + Send + Sync>,
}

impl QueueHandle {
    pub(super) fn new<S: Store + Send + Sync + 'static>(queue: Arc<Queue>, store: Arc<S>) -> Self {
        let closing = queue.clone();
        Self {
            queue,
            close: Arc::new(move || closing.close(&*store)),
        }
    }

    /// Denies all requests that wait, and every later request that would have to wait.
    ///
    /// Each waiting request gets its denial at once, as if its [`max_wait`](crate::Rule::max_wait) had
    /// ended. Its charge is undone, if one was made. Requests that run go on, and requests that need
    /// not wait are admitted as before. A queue does not open again.
    ///
    /// The charges are undone from the last to the first, because a queued charge can be undone only
    /// while it is the last of its account. See [`Store::undo`](crate::Store::undo).
    pub fn close(&self) {
        (self.close)();
    }

    /// Returns `true` if the queue is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

impl fmt::Debug for QueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueHandle")
            .field("is_closed", &self.is_closed())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Key, name::RuleName, store::LocalStore};

    const ALL: Bounds = Bounds {
        all: 1_024,
        per_key: None,
    };
    const SHORTEST: Duration = Duration::from_nanos(1);

    fn enter(
        queue: &Arc<Queue>,
        charges: &[Charge<'_>],
        bounds: Bounds,
    ) -> Option<Box<QueuedRequest<LocalStore>>> {
        queue.enter(charges, bounds)
    }

    fn bound(key: &Key, quotas: &[Quota], bounds: Bounds) -> usize {
        bound_within(SHORTEST, key, quotas, bounds)
    }

    fn bound_within(max_wait: Duration, key: &Key, quotas: &[Quota], bounds: Bounds) -> usize {
        let charge = Charge::new(RuleName::default(), key, quotas).with_max_wait(max_wait);
        let queue = Arc::new(Queue::default());
        let mut queued = Vec::new();
        while !queue.is_full(&[charge], bounds) {
            queued.push(enter(&queue, &[charge], bounds).expect("a place"));
        }
        assert!(enter(&queue, &[charge], bounds).is_none());
        let max = queued.len();
        drop(queued);
        assert!(
            queue.state.lock().keys.is_empty(),
            "an entry was left behind"
        );
        assert_eq!(queue.state.lock().all, 0);
        max
    }

    #[test]
    fn the_bound_of_a_key_is_its_limit_but_at_most_a_64th_of_all_places() {
        let key = Key::from("alice");
        for (quotas, max) in [
            (vec![Quota::per_second(5)], 5),
            (vec![Quota::per_second(5).with_burst(1)], 5),
            (vec![Quota::per_second(5).with_burst(9)], 9),
            (vec![Quota::per_second(500)], 16),
            (vec![Quota::per_second(500), Quota::per_hour(3)], 3),
            (vec![], 1),
        ] {
            assert_eq!(bound(&key, &quotas, ALL), max, "{quotas:?}");
        }
        let five = [Quota::per_second(5)];
        assert_eq!(bound(&key, &five, Bounds { all: 63, ..ALL }), 1);
        assert_eq!(bound(&key, &five, Bounds { all: 0, ..ALL }), 0);
        assert_eq!(bound(&Key::everyone(), &five, ALL), 1_024);
        for max in [0, 1, 7, 2_000] {
            let bounds = Bounds {
                per_key: Some(max),
                ..ALL
            };
            assert_eq!(bound(&key, &five, bounds), max.min(1_024));
            assert_eq!(bound(&Key::everyone(), &five, bounds), max.min(1_024));
        }
    }

    #[test]
    fn as_many_requests_wait_as_have_their_turn_within_the_longest_wait() {
        let key = Key::from("alice");
        for (quotas, max) in [
            (vec![Quota::per_minute(1)], 10),
            (vec![Quota::per_minute(2).with_burst(1)], 16),
            (vec![Quota::per_hour(1)], 1),
            (vec![Quota::per_minute(1), Quota::per_hour(1)], 1),
            (vec![Quota::concurrent(3)], 3),
            (vec![Quota::concurrent(3), Quota::per_minute(1)], 3),
        ] {
            let wait = Duration::from_secs(600);
            assert_eq!(bound_within(wait, &key, &quotas, ALL), max, "{quotas:?}");
        }
    }

    #[test]
    fn a_request_counts_for_each_key_that_may_queue() {
        let (alice, bob, quotas) = (Key::from("alice"), Key::from("bob"), [Quota::per_second(2)]);
        let rule = |name| RuleName::new(name).expect("a name");
        let waits = |name, key| Charge::new(rule(name), key, &quotas).with_max_wait(SHORTEST);
        let now = |name, key| Charge::new(rule(name), key, &quotas);
        let queue = Arc::new(Queue::default());
        let both = [waits("ip", &bob), now("user", &alice)];
        let _both = [(); 2].map(|()| enter(&queue, &both, ALL).expect("free"));
        assert!(queue.is_full(&[waits("ip", &bob)], ALL));
        assert!(queue.is_full(&[waits("user", &alice), waits("ip", &bob)], ALL));
        assert!(
            !queue.is_full(&[waits("user", &alice)], ALL),
            "rule user never queued"
        );
        assert!(!queue.is_full(&[waits("ip", &alice)], ALL));
    }
}
