//! Queued requests: their charges, and their number in total and per key.
//!
//! A request that may queue counts from its store call on. The maximum per key keeps a few keys from filling the queue.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    slice,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::{
    decision::Decision,
    observe::{Active, Metrics},
    quota::Quota,
    store::{Charge, OwnedCharges, Store, Turn, subtract},
};

/// The default maximum of one key is the total maximum divided by this number.
const PLACES_PER_KEY_PLACE: usize = 64;

/// The last call of a request that waits for a slot begins one call and this time before its end.
const LAST_CALL: Duration = Duration::from_millis(5);

/// The maximum number of queued requests, in total and per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    /// The maximum per key, or `None` for the default.
    pub(crate) per_key: Option<usize>,
}

/// The numbers of queued requests. A request counts once for each of its keys.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    all: AtomicUsize,
    keys: Mutex<HashMap<u64, u64>>,
    seed: RandomState,
}

/// A request that is queued or may be, counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    keys: Keys,
    pub(super) entered: Instant,
    /// The start of its last call.
    asked: Instant,
    /// `true` once the request has waited for a slot.
    pub(super) has_waited: bool,
    /// The turn in the store's queues for slots, if a rule has such quotas.
    pub(super) turn: Option<Arc<Turn>>,
    /// The last denial by slots, which is the answer at the end of the wait.
    pub(super) denied: Option<Box<(Decision, OwnedCharges)>>,
    /// The end of the wait for a slot.
    ends_at: Instant,
    /// The next call, or the end of the wait.
    next: Option<Pin<Box<Sleep>>>,
    /// Set once the request waits.
    observed: Option<Active>,
}

type Keys = SmallVec<[u64; 2]>;

impl Bounds {
    /// Returns the maximum for the key of `charge`.
    ///
    /// [`max_waiters_per_key`](crate::RateLimitLayer::max_waiters_per_key) documents the default.
    fn of(self, charge: &Charge<'_>) -> usize {
        if let Some(max) = self.per_key {
            return max;
        }
        if !charge.key().has_part_of_queue() {
            return self.all;
        }
        let size = |quota: &Quota| quota.burst().max(quota.units());
        let limit = charge.quotas().iter().map(size).min().unwrap_or(0);
        usize::try_from(limit).unwrap_or(usize::MAX).min(self.all / PLACES_PER_KEY_PLACE).max(1)
    }
}

impl Waiters {
    /// Returns `true` if no further request with these charges can queue.
    pub(crate) fn are_full(&self, charges: &[Charge<'_>], bounds: Bounds) -> bool {
        self.is_full(charges, bounds, &self.keys.lock())
    }

    /// Adds a request to the queue. Returns `None` if the queue is full.
    pub(crate) fn enter(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        bounds: Bounds,
    ) -> Option<Box<Waiter>> {
        let mut counts = self.keys.lock();
        if self.is_full(charges, bounds, &counts) {
            return None;
        }
        self.all.fetch_add(1, AcqRel);
        let keys: Keys = self.keys_of(charges).map(|(key, _)| key).collect();
        for key in &keys {
            *counts.entry(*key).or_default() += 1;
        }
        drop(counts);
        let waits = |it: &Charge<'_>| it.queues() && it.quotas().iter().any(Quota::is_concurrent);
        let turn = charges.iter().any(waits).then(Turn::new);
        let now = Instant::now();
        Some(Box::new(Waiter {
            waiters: self.clone(),
            keys,
            entered: now,
            asked: now,
            has_waited: false,
            turn,
            denied: None,
            ends_at: now,
            next: None,
            observed: None,
        }))
    }

    fn is_full(&self, charges: &[Charge<'_>], bounds: Bounds, counts: &HashMap<u64, u64>) -> bool {
        self.all.load(Acquire) >= bounds.all || self.any_full(charges, bounds, counts)
    }

    /// Returns `true` if a charge cannot queue, also without requests of other keys.
    pub(crate) fn is_key_full(&self, charge: &Charge<'_>, bounds: Bounds) -> bool {
        !charge.queues() || self.any_full(slice::from_ref(charge), bounds, &self.keys.lock())
    }

    fn any_full(&self, charges: &[Charge<'_>], bounds: Bounds, counts: &HashMap<u64, u64>) -> bool {
        let queued = |key| counts.get(&key).copied().unwrap_or(0);
        self.keys_of(charges).any(|(key, charge)| queued(key) >= bounds.of(charge) as u64)
    }

    /// Returns the charges that can queue, each with a hash of its rule and key.
    fn keys_of<'a>(
        &self,
        charges: &'a [Charge<'a>],
    ) -> impl Iterator<Item = (u64, &'a Charge<'a>)> {
        let queueing = charges.iter().filter(|charge| charge.queues());
        queueing.map(|charge| (self.seed.hash_one((charge.rule(), charge.key())), charge))
    }
}

impl Waiter {
    /// Starts to wait for a slot. Returns `None` if the request has no turn to wait for, or its wait
    /// has ended.
    pub(super) fn start(mut self: Box<Self>) -> Option<Box<Self>> {
        let now = Instant::now();
        self.ends_at = self.asked + self.turn.as_ref()?.take_max_wait()?;
        let last = self.ends_at.checked_sub(now - self.asked + LAST_CALL);
        let next = last.filter(|last| *last > now).unwrap_or(self.ends_at);
        self.next = Some(Box::pin(sleep_until(next)));
        (now < self.ends_at).then_some(self)
    }

    /// Returns the part of `max_wait` that has passed at the start of a call.
    pub(super) fn ask(&mut self) -> Duration {
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
        let queues = |rule| charges.iter().any(|it| it.rule() == rule && it.queues());
        self.observed = self.observed.take().or_else(|| metrics.queue(decision, queues));
    }

    /// Completes once the request may ask for its slots again, with `false` at the end of its wait.
    pub(super) fn poll_called(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.has_waited = true;
        if let (Some(turn), Some(next)) = (&self.turn, &mut self.next)
            && turn.poll_called(cx).is_pending()
        {
            ready!(next.as_mut().poll(cx));
            return Poll::Ready(Instant::now() < self.ends_at);
        }
        Poll::Ready(true)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // The charges of a request that runs may share the turn.
        self.turn.iter().for_each(|turn| turn.leave_unless(|_| false));
        let mut counts = self.waiters.keys.lock();
        self.keys.iter().for_each(|key| subtract(&mut counts, *key, 1));
        self.waiters.all.fetch_sub(1, AcqRel);
    }
}

/// A queued charge. Dropping this value undoes the charge.
pub(crate) struct QueuedCharge<S: Store> {
    store: Arc<S>,
    pub(super) charged: Option<Box<(Decision, OwnedCharges)>>,
    turn: Pin<Box<Sleep>>,
    waiter: Box<Waiter>,
}

impl<S: Store> QueuedCharge<S> {
    pub(super) fn new(
        store: Arc<S>,
        decision: Decision,
        charges: &[Charge<'_>],
        waiter: Box<Waiter>,
    ) -> Self {
        let turn = Box::pin(sleep(decision.wait()));
        Self { store, charged: Some(Box::new((decision, charges.into()))), turn, waiter }
    }

    /// Completes at the turn of the request.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.turn.as_mut().poll(cx));
        // The request may still wait for the inner service, which is no wait in the queue.
        self.waiter.observed = None;
        Poll::Ready(())
    }
}

impl<S: Store> Drop for QueuedCharge<S> {
    fn drop(&mut self) {
        if let Some((decision, charges)) = self.charged.as_deref() {
            charges.with(|charges| self.store.undo(&made(charges, decision), decision, None));
        }
    }
}

/// Returns the charges that a decision has made.
pub(super) fn made<'a>(charges: &[Charge<'a>], decision: &Decision) -> SmallVec<[Charge<'a>; 4]> {
    charges.iter().filter(|charge| decision.charged(charge.rule())).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Key, name::RuleName};

    const ALL: Bounds = Bounds { all: 1_024, per_key: None };

    fn bound(key: &Key, quotas: &[Quota], bounds: Bounds) -> usize {
        let charge = Charge::new(RuleName::default(), key, quotas).with_max_wait(Duration::MAX);
        let waiters = Arc::new(Waiters::default());
        let mut queued = Vec::new();
        while !waiters.are_full(&[charge], bounds) {
            queued.push(waiters.enter(&[charge], bounds).expect("a place"));
        }
        assert!(waiters.enter(&[charge], bounds).is_none());
        let max = queued.len();
        drop(queued);
        assert!(waiters.keys.lock().is_empty(), "an entry was left behind");
        assert_eq!(waiters.all.load(Acquire), 0);
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
            let bounds = Bounds { per_key: Some(max), ..ALL };
            assert_eq!(bound(&key, &five, bounds), max.min(1_024));
            assert_eq!(bound(&Key::everyone(), &five, bounds), max.min(1_024));
        }
    }

    #[test]
    fn a_request_counts_for_each_key_that_may_queue() {
        let (alice, bob, quotas) = (Key::from("alice"), Key::from("bob"), [Quota::per_second(2)]);
        let rule = |name| RuleName::new(name).expect("a name");
        let waits = |name, key| Charge::new(rule(name), key, &quotas).with_max_wait(Duration::MAX);
        let now = |name, key| Charge::new(rule(name), key, &quotas);
        let waiters = Arc::new(Waiters::default());
        let _both = [(); 2]
            .map(|()| waiters.enter(&[waits("ip", &bob), now("user", &alice)], ALL).expect("free"));
        assert!(waiters.are_full(&[waits("ip", &bob)], ALL));
        assert!(waiters.are_full(&[waits("user", &alice), waits("ip", &bob)], ALL));
        assert!(!waiters.are_full(&[waits("user", &alice)], ALL), "rule user never queued");
        assert!(!waiters.are_full(&[waits("ip", &alice)], ALL));
    }
}
