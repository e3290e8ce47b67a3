//! The clients that share a limit, and their weights.

use std::{
    fmt,
    hash::{BuildHasher, Hasher},
    mem,
    sync::{Arc, OnceLock},
};

use foldhash::quality::SeedableRandomState;
use parking_lot::{Mutex, MutexGuard};

use super::{Cost, RuleName};
use crate::{
    decision::Outcome,
    key::{Key, random_state},
    observe::{DecisionEvent, OnDecision},
    store::Clock,
};

/// The time of a generation. Clients of this one and of the last have weight.
const GENERATION: u64 = 500_000_000;
/// The number of generations for which a client without requests keeps its place.
const KEPT: u64 = 20;
/// The number of places in which a client is searched.
const PROBES: usize = 32;

/// The clients that share the limit of a rule, and their weights.
#[derive(Clone)]
pub(crate) struct Sharers {
    pub(super) pool: RuleName,
    pub(super) share: RuleName,
    pub(super) weight: Cost,
    pub(super) clients: Arc<Clients>,
}

impl OnDecision for Sharers {
    /// Counts the client of an admitted request, if the request has used the pool.
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let Some(share) = (event.charged)(self.share).filter(|share| share.cost > 0) else {
            return;
        };
        let Ok(decision) = event.decision else { return };
        let uses_pool = |outcome: &Outcome| {
            outcome.rule() == self.pool && !outcome.is_denied() && !outcome.is_passed_over()
        };
        if decision.is_allowed() && decision.outcomes().iter().any(uses_pool) {
            self.clients.count(share.key, self.weight.of(event.head));
        }
    }
}

impl fmt::Debug for Sharers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharers")
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

/// The clients that were admitted. Each has weight for half a second to a second.
pub(super) struct Clients {
    /// The shared clock, from the first request on, unless another one is given.
    pub(super) clock: OnceLock<Clock>,
    /// Random, so that clients cannot choose keys that collide.
    seed: SeedableRandomState,
    seen: Mutex<Seen>,
}

/// The clients of this generation and of the one before, with the sums of their weights.
struct Seen {
    generation: u64,
    weights: [u64; 2],
    places: Box<[SeenClient]>,
    others: SeenClient,
    was_full: bool,
}

/// A client, and the generation of its last admitted request.
#[derive(Clone, Copy, Debug, Default)]
struct SeenClient {
    id: u64,
    generation: u64,
    weight: u32,
}

/// The share of a client that asks: its weight, and the sum of it and of the admitted clients.
pub(super) struct ClientShare {
    pub(super) weight: u32,
    pub(super) sum: u64,
    /// `true` if the client has a place, or can have one: it has a share of its own.
    pub(super) has_place: bool,
    /// The number of places, when a client first has none.
    pub(super) full: Option<usize>,
}

impl Clients {
    pub(super) fn new(clock: OnceLock<Clock>, most: usize) -> Self {
        let none = SeenClient::default();
        Self {
            clock,
            seed: random_state(),
            seen: Mutex::new(Seen {
                generation: 0,
                weights: [0; 2],
                places: vec![none; most.next_power_of_two()].into(),
                others: none,
                was_full: false,
            }),
        }
    }

    /// Returns the share of a client that asks. Asking changes no share of others.
    pub(super) fn share(&self, key: &Key, weight: u32) -> ClientShare {
        let id = self.id(key);
        let mut seen = self.seen_now();
        let place = seen.place_for(id);
        let weight = if place.is_some() { weight } else { 1 };
        let sum = seen.sum_with(place, weight);
        let has_none = place.is_none() && id.is_some();
        let is_first = has_none && !seen.was_full;
        seen.was_full |= has_none;
        let full = is_first.then_some(seen.places.len());
        ClientShare {
            weight,
            sum,
            has_place: place.is_some(),
            full,
        }
    }

    /// Counts a client that was admitted.
    fn count(&self, key: &Key, weight: u32) {
        let id = self.id(key);
        let mut seen = self.seen_now();
        let place = seen.place_for(id);
        let client = SeenClient {
            id: id.unwrap_or(0),
            generation: seen.generation,
            weight: if place.is_some() { weight } else { 1 },
        };
        seen.put(place, client);
    }

    /// Returns the number of places.
    #[cfg(feature = "testing")]
    pub(super) fn capacity(&self) -> usize {
        self.seen.lock().places.len()
    }

    /// Returns the random number of a key, or `None` for one that has no place.
    fn id(&self, key: &Key) -> Option<u64> {
        let mut hasher = self.seed.build_hasher();
        key.hash_with(0, &mut hasher);
        Some(hasher.finish().max(1)).filter(|_| key.is_client())
    }

    fn seen_now(&self) -> MutexGuard<'_, Seen> {
        let now = self.clock.get_or_init(Clock::shared).now();
        let mut seen = self.seen.lock();
        // Starts late enough that the places of generation 0 are free.
        seen.advance(now / GENERATION + KEPT + 1);
        seen
    }
}

impl Seen {
    /// Begins a generation: the weights of clients that are older than the last one no longer count.
    fn advance(&mut self, generation: u64) {
        match generation.saturating_sub(self.generation) {
            0 => return,
            1 => self.weights = [0, self.weights[0]],
            _ => self.weights = [0; 2],
        }
        self.generation = generation;
    }

    /// Returns the place of a client, or a free one.
    fn place_for(&self, id: Option<u64>) -> Option<usize> {
        let id = id?;
        let mask = self.places.len() - 1;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash are random"
        )]
        let places = (0..PROBES.min(self.places.len())).map(|at| (id as usize + at) & mask);
        let mut free = None;
        for place in places {
            let seen = &self.places[place];
            if self.generation - seen.generation > KEPT {
                free = free.or(Some(place));
            } else if seen.id == id {
                return Some(place);
            }
        }
        free
    }

    /// Returns the sum of the weights, if the client of a place had this one. `None` stands for all clients
    /// without a place, which count as one.
    fn sum_with(&self, place: Option<usize>, weight: u32) -> u64 {
        let old = place.map_or(&self.others, |place| &self.places[place]);
        let is_counted = self.generation - old.generation < 2;
        let counted = if is_counted { old.weight.into() } else { 0 };
        self.weights[0] + self.weights[1] - counted + u64::from(weight)
    }

    /// Replaces the client of a place, and moves its weight to this generation. `None` stands for all clients
    /// without a place.
    fn put(&mut self, place: Option<usize>, client: SeenClient) {
        let old = place.map_or(&mut self.others, |place| &mut self.places[place]);
        let before = mem::replace(old, client);
        let age = self.generation - before.generation;
        if age < 2 {
            self.weights[usize::from(age == 1)] -= u64::from(before.weight);
        }
        self.weights[0] += u64::from(client.weight);
    }
}
