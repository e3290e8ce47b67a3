//! The servers: one, a primary with a replica as sentinels report them, or a cluster.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    calls::Script,
    hash_slots::{HashSlots, Moving, hash_slot},
    lock,
    server::Server,
};
use crate::random::Random;

/// The kind of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    Sentinel,
    Cluster,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "one server",
            Self::Sentinel => "a primary and a replica behind sentinels",
            Self::Cluster => "a cluster of three primaries and three replicas",
        })
    }
}

/// All servers. Shard `n` has the servers `2n` and `2n + 1`.
pub struct Deployment {
    pub kind: Kind,
    servers: Vec<Arc<Server>>,
    hash_slots: Arc<Mutex<HashSlots>>,
    /// `true` for a shard that fails over.
    failing: Mutex<Vec<bool>>,
    /// The end of the last failover.
    failed_over: Mutex<Option<Instant>>,
    /// The clock of the processes, in nanoseconds of Unix time.
    pub process_clock: Arc<AtomicU64>,
}

/// The time for which a sentinel reports the old primary after a failover.
pub const STALE: Duration = Duration::from_millis(100);

impl Deployment {
    pub fn new(random: &mut Random, kind: Kind) -> Arc<Self> {
        let shards = if kind == Kind::Cluster { 3 } else { 1 };
        let hash_slots = Arc::new(Mutex::new(HashSlots::new(shards)));
        let count = if kind == Kind::Single { 1 } else { 2 * shards };
        let seconds = random.within(1_000_000_000..2_000_000_000).cast_signed();
        let servers = (0..count).map(|index| {
            // The clocks of a primary and its replica differ. Those of a cluster do not, so that the
            // exact model has one clock.
            let odd = kind == Kind::Sentinel && index == 1 && random.percent(50);
            let apart = if odd { random.within(0..4_000_000).cast_signed() - 2_000_000 } else { 0 };
            let view = (kind == Kind::Cluster).then(|| hash_slots.clone());
            Server::new(index, seconds * 1_000_000 + apart, view)
        });
        let servers: Vec<_> = servers.collect();
        for pair in servers.chunks_exact(2) {
            let lag = Duration::from_millis(*random.pick(&[0, 1, 20, 300]));
            pair[0].lead(&pair[1], lag);
        }
        let failing = Mutex::new(vec![false; shards]);
        let (failed_over, process_clock) = (Mutex::default(), Arc::default());
        Arc::new(Self { kind, servers, hash_slots, failing, failed_over, process_clock })
    }

    /// Returns a server by its index.
    pub fn server(&self, index: usize) -> &Arc<Server> {
        &self.servers[index]
    }

    pub fn all(&self) -> &[Arc<Server>] {
        &self.servers
    }

    pub fn shards(&self) -> usize {
        lock(&self.failing).len()
    }

    pub fn primary(&self, shard: usize) -> &Arc<Server> {
        &self.servers[lock(&self.hash_slots).primaries[shard]]
    }

    /// Returns the primary that a sentinel reports, which may be late to hear of a failover.
    pub fn reported(&self) -> &Arc<Server> {
        let heard = lock(&self.failed_over).is_none_or(|at| at.elapsed() > STALE);
        if heard { self.primary(0) } else { self.server(self.primary(0).index ^ 1) }
    }

    /// Returns the server that ran the last script.
    fn last(&self) -> &Arc<Server> {
        let last = self.servers.iter().max_by_key(|server| server.last_script().at);
        last.expect("a server")
    }

    /// Returns the last script of all servers.
    pub fn last_script(&self) -> Script {
        self.last().last_script()
    }

    /// Returns the clock of the server that ran the last script.
    pub fn clock(&self) -> Duration {
        self.last().clock()
    }

    pub fn commands(&self) -> u64 {
        self.servers.iter().map(|server| server.commands()).sum()
    }

    /// Returns the number of scripts that ran to their end.
    pub fn scripts(&self) -> u64 {
        self.servers.iter().map(|server| server.scripts()).sum()
    }

    /// Returns the servers' clocks at all scripts since the last call, in order.
    pub fn take_clocks(&self) -> Vec<Duration> {
        let clocks = self.servers.iter().flat_map(|server| server.take_clocks());
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        clocks
    }

    /// Begins a failover of a shard, unless one is under way. Returns its primary, which dies or only
    /// loses its replica and the view of the others.
    pub fn begin_failover(&self, shard: usize, dies: bool) -> Option<&Arc<Server>> {
        if self.kind == Kind::Single || std::mem::replace(&mut lock(&self.failing)[shard], true) {
            return None;
        }
        let old = self.primary(shard);
        old.isolate();
        if dies {
            old.kill(false);
        }
        Some(old)
    }

    /// Promotes the other server of a shard. Returns it.
    pub fn promote(&self, shard: usize) -> &Arc<Server> {
        let mut hash_slots = lock(&self.hash_slots);
        hash_slots.primaries[shard] ^= 1;
        let new = &self.servers[hash_slots.primaries[shard]];
        new.change(|node| node.set_read_only(false));
        new
    }

    /// Ends a failover: the old primary follows the new one.
    pub fn end_failover(&self, shard: usize, dies: bool, lag: Duration) {
        let new = self.primary(shard);
        let old = self.server(new.index ^ 1);
        if dies {
            old.start();
        }
        old.disconnect();
        old.join((self.kind == Kind::Cluster).then(|| self.hash_slots.clone()));
        new.lead(old, lag);
        lock(&self.failing)[shard] = false;
        *lock(&self.failed_over) = Some(Instant::now());
    }

    /// Begins to move the hash slot of a random key. Returns the move, if there is a key to move.
    pub fn begin_move(&self, random: &mut Random) -> Option<Moving> {
        if self.kind != Kind::Cluster || lock(&self.hash_slots).moving.is_some() {
            return None;
        }
        let from = random.below(self.shards());
        let keys = self.primary(from).change(|node| node.keys());
        if keys.is_empty() {
            return None;
        }
        let hash_slot = hash_slot(random.pick::<Vec<u8>>(&keys));
        let mut hash_slots = lock(&self.hash_slots);
        if hash_slots.shard(hash_slot) != from {
            return None;
        }
        let to = (from + 1 + random.below(2)) % 3;
        hash_slots.moving = Some(Moving { hash_slot, from, to });
        hash_slots.moving
    }

    /// Moves one key of a hash slot. Returns `false` if no key is left.
    pub fn move_key(&self, moving: Moving) -> bool {
        let (from, to) = (self.primary(moving.from), self.primary(moving.to));
        let keys = from.change(|node| node.keys());
        let Some(key) = keys.into_iter().find(|key| hash_slot(key) == moving.hash_slot) else {
            return false;
        };
        let taken = from.change(|node| node.take(&key));
        to.change(|node| node.receive(taken));
        true
    }

    /// Moves the rest of the hash slot and ends the move.
    pub fn end_move(&self, moving: Moving) {
        while self.move_key(moving) {}
        lock(&self.hash_slots).moved();
    }
}
