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
/// The number of generations for which a client without requests keeps its entry.
const KEPT: u64 = 20;
/// The number of entries in which a client is searched.
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
    entries: Box<[SeenClient]>,
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
    /// `true` if the client has an entry, or can have one: it has a share of its own.
    pub(super) has_entry: bool,
    /// The number of entries, when a client first has none.
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
                entries: vec![none; most.next_power_of_two()].into(),
                others: none,
                was_full: false,
            }),
        }
    }

    /// Returns the share of a client that asks. Asking changes no share of others.
    pub(super) fn share(&self, key: &Key, weight: u32) -> ClientShare {
        let id = self.id(key);
        let mut seen = self.seen_now();
        let entry = seen.entry_of(id);
        let weight = if entry.is_some() { weight } else { 1 };
        let sum = seen.sum_with(entry, weight);
        let is_full = entry.is_none() && id.is_some();
        let full = (is_full && !seen.was_full).then_some(seen.entries.len());
        seen.was_full |= is_full;
        ClientShare {
            weight,
            sum,
            has_entry: entry.is_some(),
            full,
        }
    }

    /// Counts a client that was admitted.
    fn count(&self, key: &Key, weight: u32) {
        let id = self.id(key);
        let mut seen = self.seen_now();
        let entry = seen.entry_of(id);
        let client = SeenClient {
            id: id.unwrap_or(0),
            generation: seen.generation,
            weight: if entry.is_some() { weight } else { 1 },
        };
        seen.put(entry, client);
    }

    /// Returns the number of entries.
    #[cfg(feature = "testing")]
    pub(super) fn capacity(&self) -> usize {
        self.seen.lock().entries.len()
    }

    /// Returns the random number of a key, or `None` for one that has no entry.
    fn id(&self, key: &Key) -> Option<u64> {
        let mut hasher = self.seed.build_hasher();
        key.hash_with(0, &mut hasher);
        Some(hasher.finish().max(1)).filter(|_| key.is_client())
    }

    fn seen_now(&self) -> MutexGuard<'_, Seen> {
        let now = self.clock.get_or_init(Clock::shared).now();
        let mut seen = self.seen.lock();
        // Starts late enough that the entries of generation 0 are free.
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

    /// Returns the entry of a client, or a free one.
    fn entry_of(&self, id: Option<u64>) -> Option<usize> {
        let id = id?;
        let mask = self.entries.len() - 1;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash are random"
        )]
        let entries = (0..PROBES.min(self.entries.len())).map(|at| (id as usize + at) & mask);
        let mut free = None;
        for entry in entries {
            let seen = &self.entries[entry];
            if self.generation - seen.generation > KEPT {
                free = free.or(Some(entry));
            } else if seen.id == id {
                return Some(entry);
            }
        }
        free
    }

    /// Returns the sum of the weights, if the client of an entry had this one. `None` stands for all clients
    /// without an entry, which count as one.
    fn sum_with(&self, entry: Option<usize>, weight: u32) -> u64 {
        let old = entry.map_or(&self.others, |entry| &self.entries[entry]);
        let is_counted = self.generation - old.generation < 2;
        let counted = if is_counted { old.weight.into() } else { 0 };
        self.weights[0] + self.weights[1] - counted + u64::from(weight)
    }

    /// Replaces the client of an entry, and moves its weight to this generation. `None` stands for all clients
    /// without an entry.
    fn put(&mut self, entry: Option<usize>, client: SeenClient) {
        let old = entry.map_or(&mut self.others, |entry| &mut self.entries[entry]);
        let before = mem::replace(old, client);
        let age = self.generation - before.generation;
        if age < 2 {
            self.weights[usize::from(age == 1)] -= u64::from(before.weight);
        }
        self.weights[0] += u64::from(client.weight);
    }
}
