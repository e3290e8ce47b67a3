//! Requests that wait for their place, counted in all and by key.
//!
//! One number for all keys would let few keys take every place: with the default, 18 users with 60
//! requests each. So each key has a bound of its own, too.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
};

use smallvec::SmallVec;

use crate::{key::Key, quota::Quota, store::Charge};

/// A key may take one place in so many by default.
const PART: usize = 64;

/// Bounds of the requests that wait at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    /// Bound of one key; `None` for the default.
    pub(crate) per_key: Option<usize>,
}

/// Requests that wait now. Holds an entry for each of their keys, and none for others.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    all: AtomicUsize,
    keys: Mutex<HashMap<u64, usize>>,
    seed: RandomState,
}

/// One request that waits. Dropped, it leaves its place.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    keys: Keys,
}

type Keys = SmallVec<[u64; 2]>;

impl Bounds {
    /// The bound of a charge's key: by default what its tightest quota has per period or at once, but
    /// at most a part of all places. All requests share the key of `Everyone`, which needs none.
    fn of(self, charge: &Charge<'_>) -> usize {
        if let Some(most) = self.per_key {
            return most;
        }
        if *charge.key() == Key::everyone() {
            return self.all;
        }
        let has = |quota: &Quota| quota.limit().max(quota.units());
        let limit = charge.quotas().iter().map(has).min().unwrap_or(0);
        usize::try_from(limit).unwrap_or(usize::MAX).min(self.all / PART).max(1)
    }
}

impl Waiters {
    /// Returns whether a request with these charges has no place to wait in.
    pub(crate) fn are_full(&self, charges: &[Charge<'_>], bounds: Bounds) -> bool {
        let all = self.all.load(Acquire);
        // while nobody waits there is nothing to look up
        all >= bounds.all
            || bounds.per_key == Some(0)
            || all > 0 && self.find_full(charges, bounds, &self.lock())
    }

    /// Counts a request with these charges, if there is a place.
    pub(crate) fn enter(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        bounds: Bounds,
    ) -> Option<Waiter> {
        let mut counts = self.lock();
        if self.all.load(Acquire) >= bounds.all || self.find_full(charges, bounds, &counts) {
            return None;
        }
        self.all.fetch_add(1, AcqRel);
        let keys: Keys = self.keys_of(charges).map(|(key, _)| key).collect();
        for key in &keys {
            *counts.entry(*key).or_default() += 1;
        }
        drop(counts);
        Some(Waiter { waiters: self.clone(), keys })
    }

    fn find_full(
        &self,
        charges: &[Charge<'_>],
        bounds: Bounds,
        counts: &HashMap<u64, usize>,
    ) -> bool {
        let of = |key| counts.get(&key).copied().unwrap_or(0);
        self.keys_of(charges).any(|(key, charge)| of(key) >= bounds.of(charge))
    }

    /// The charges that may wait, and what their keys are counted by.
    fn keys_of<'a>(
        &self,
        charges: &'a [Charge<'a>],
    ) -> impl Iterator<Item = (u64, &'a Charge<'a>)> {
        let queueing = charges.iter().filter(|charge| charge.queues());
        queueing.map(|charge| (self.seed.hash_one((charge.rule(), charge.key())), charge))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut counts = self.waiters.lock();
        for key in &self.keys {
            if let Entry::Occupied(mut count) = counts.entry(*key) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.waiters.all.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::name::RuleName;

    const ALL: Bounds = Bounds { all: 1_024, per_key: None };

    fn bound(key: &Key, quotas: &[Quota], bounds: Bounds) -> usize {
        let charge = Charge::new(RuleName::default(), key, quotas).max_wait(Duration::MAX);
        let waiters = Arc::new(Waiters::default());
        let mut waiting = Vec::new();
        while !waiters.are_full(&[charge], bounds) {
            waiting.push(waiters.enter(&[charge], bounds).expect("there is a place"));
        }
        assert!(waiters.enter(&[charge], bounds).is_none());
        let most = waiting.len();
        drop(waiting);
        assert!(waiters.lock().is_empty(), "an entry was left behind");
        assert_eq!(waiters.all.load(Acquire), 0);
        most
    }

    #[test]
    fn a_key_has_its_limit_but_at_most_a_64th_of_all_places() {
        let key = Key::from("alice");
        for (quotas, most) in [
            (vec![Quota::per_second(5)], 5),
            (vec![Quota::per_second(5).burst(1)], 5),
            (vec![Quota::per_second(5).burst(9)], 9),
            (vec![Quota::per_second(500)], 16),
            (vec![Quota::per_second(500), Quota::per_hour(3)], 3),
            (vec![], 1),
        ] {
            assert_eq!(bound(&key, &quotas, ALL), most, "{quotas:?}");
        }
        let five = [Quota::per_second(5)];
        assert_eq!(bound(&key, &five, Bounds { all: 63, ..ALL }), 1);
        assert_eq!(bound(&key, &five, Bounds { all: 0, ..ALL }), 0);
        assert_eq!(bound(&Key::everyone(), &five, ALL), 1_024);
        for most in [0, 1, 7, 2_000] {
            let bounds = Bounds { per_key: Some(most), ..ALL };
            assert_eq!(bound(&key, &five, bounds), most.min(1_024));
            assert_eq!(bound(&Key::everyone(), &five, bounds), most.min(1_024));
        }
    }

    #[test]
    fn a_request_counts_under_each_key_that_may_wait() {
        let (alice, bob, quotas) = (Key::from("alice"), Key::from("bob"), [Quota::per_second(2)]);
        let rule = |name| RuleName::new(name).expect("a name");
        let waits = |name, key| Charge::new(rule(name), key, &quotas).max_wait(Duration::MAX);
        let now = |name, key| Charge::new(rule(name), key, &quotas);
        let waiters = Arc::new(Waiters::default());
        let _both = [(); 2]
            .map(|()| waiters.enter(&[waits("ip", &bob), now("user", &alice)], ALL).expect("room"));
        assert!(waiters.are_full(&[waits("ip", &bob)], ALL));
        assert!(waiters.are_full(&[waits("user", &alice), waits("ip", &bob)], ALL));
        assert!(!waiters.are_full(&[waits("user", &alice)], ALL), "of that rule nothing waits");
        assert!(!waiters.are_full(&[waits("ip", &alice)], ALL));
    }
}
