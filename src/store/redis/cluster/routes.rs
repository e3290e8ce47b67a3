//! The master of each hash slot of a cluster. At most one task at a time asks the servers for them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{ErrorKind as Raw, RedisError, RedisResult, ServerErrorKind as Server};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    node::{Connector, Node},
    topology::{HASH_SLOTS, HashSlotRange, split_address},
};
use crate::{
    log::warn,
    store::{
        FailureDomain,
        redis::connection::{not_connected, runtime},
        wrappers::breaker::circuit::jitter,
    },
};

/// The pause after the first refresh of a task. Each further pause is twice as long, up to
/// [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The time without a reply after which the next server is asked, too.
const STAGGER: Duration = Duration::from_millis(25);

/// The servers of a cluster, and the master of each hash slot.
pub(super) struct Routes {
    seeds: Vec<Arc<Node>>,
    pub(super) connect: Connector,
    owners: watch::Sender<HashSlotOwners>,
    /// Stands for the server of a hash slot whose server is unknown.
    pub(super) missing: FailureDomain,
    /// The permit to refresh the hash slots. At most one task holds the permit.
    refreshing: Arc<Semaphore>,
    is_wanted: AtomicBool,
    refreshes: AtomicUsize,
}

#[derive(Default)]
struct HashSlotOwners {
    /// The master of each hash slot. Empty until a server has reported the hash slots.
    masters: Vec<Option<Arc<Node>>>,
    /// All servers by address, with replicas.
    nodes: HashMap<String, Arc<Node>>,
    /// The error of the last refresh, if it failed.
    failed: Option<RedisError>,
}

/// The server to which a call is sent.
pub(super) struct Target {
    pub(super) node: Arc<Node>,
    /// `true` if a hash slot is still moving to the server.
    pub(super) asking: bool,
}

impl Routes {
    pub(super) fn new(seeds: &[(&str, u16)], connect: Connector) -> Self {
        Self {
            seeds: seeds
                .iter()
                .map(|(host, port)| Node::new(&connect, host, *port))
                .collect(),
            connect,
            owners: watch::Sender::default(),
            missing: FailureDomain::new("a hash slot without a server"),
            refreshing: Arc::new(Semaphore::new(1)),
            is_wanted: AtomicBool::new(false),
            refreshes: AtomicUsize::new(0),
        }
    }

    /// Waits until a server has reported the hash slots.
    pub(super) async fn loaded(self: &Arc<Self>, deadline: Instant) -> RedisResult<()> {
        if !self.owners.borrow().masters.is_empty() {
            return Ok(());
        }
        // The call that starts a refresh waits for its result. One that finds a refresh running returns the
        // error of the last one, if that failed.
        let mut updates = self.owners.subscribe();
        let mut waits = self.refresh()?;
        loop {
            match &*updates.borrow_and_update() {
                owners if !owners.masters.is_empty() => return Ok(()),
                HashSlotOwners {
                    failed: Some(failed),
                    ..
                } if !waits => return Err(failed.clone()),
                _ => waits = false,
            }
            if timeout_at(deadline, updates.changed()).await.is_err() {
                return Err(not_connected(
                    "no server of the cluster has reported its hash slots in time",
                ));
            }
        }
    }

    /// Returns the master of a hash slot.
    pub(super) fn master(&self, hash_slot: u16) -> RedisResult<Arc<Node>> {
        let master = self
            .owners
            .borrow()
            .masters
            .get(usize::from(hash_slot))
            .cloned()
            .flatten();
        master.ok_or_else(|| not_connected("no server of the cluster has the hash slot"))
    }

    /// Returns the masters of all hash slots.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        let owners = self.owners.borrow();
        let masters = owners
            .masters
            .iter()
            .flatten()
            .map(|node| (&node.address, node));
        masters
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .cloned()
            .collect()
    }

    /// Returns the target that a redirection names. If the hash slot has moved, updates its master, and
    /// starts to ask for the others.
    pub(super) fn redirect(
        self: &Arc<Self>,
        redirection: &RedisError,
        from: &Node,
    ) -> RedisResult<Target> {
        let moved = redirection.kind() == Raw::Server(Server::Moved);
        if moved {
            self.refresh()?;
        }
        let named = redirection.redirect_node();
        let named = named.and_then(|(to, hash_slot)| Some((split_address(to)?, hash_slot)));
        let Some(((host, port), hash_slot)) = named else {
            return Err(redirection.clone());
        };
        let host = if host.is_empty() {
            from.host.as_str()
        } else {
            host
        };
        let mut node = self.node(&self.owners.borrow().nodes, host, port);
        self.owners.send_if_modified(|owners| {
            // Another call may have added the server.
            node = owners
                .nodes
                .entry(node.address.clone())
                .or_insert(node.clone())
                .clone();
            if let Some(master) = owners
                .masters
                .get_mut(usize::from(hash_slot))
                .filter(|_| moved)
            {
                *master = Some(node.clone());
            }
            false
        });
        Ok(Target {
            node,
            asking: !moved,
        })
    }

    /// Starts a task that asks for the hash slots. Returns `false` if such a task is running.
    pub(super) fn refresh(self: &Arc<Self>) -> RedisResult<bool> {
        let runtime = runtime()?;
        self.is_wanted.store(true, SeqCst);
        let permit = self.refreshing.clone().try_acquire_owned();
        let started = permit.map(|permit| runtime.spawn(refresh(Arc::downgrade(self), permit)));
        Ok(started.is_ok())
    }

    /// Returns the servers to ask for the hash slots, with failing servers last.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let mut all = self.masters();
        let owners = self.owners.borrow();
        let count = all.len().max(1);
        // Each refresh asks another server, because one may have an old view.
        all.rotate_left(self.refreshes.fetch_add(1, Relaxed) % count);
        all.extend(owners.nodes.values().cloned());
        all.extend(self.seeds.iter().cloned());
        all.sort_by_key(|node| node.domain.is_open());
        let mut known = HashSet::new();
        all.retain(|node| known.insert(node.address.clone()));
        all
    }

    fn node(&self, nodes: &HashMap<String, Arc<Node>>, host: &str, port: u16) -> Arc<Node> {
        let address = format!("{host}:{port}");
        let known = nodes
            .get(&address)
            .or_else(|| self.seeds.iter().find(|seed| seed.address == address));
        known
            .cloned()
            .unwrap_or_else(|| Node::new(&self.connect, host, port))
    }

    /// Returns the owners of reported ranges. Known nodes keep their connections.
    fn owners_of(
        &self,
        ranges: &[HashSlotRange],
        known: &HashMap<String, Arc<Node>>,
    ) -> HashSlotOwners {
        let mut nodes = HashMap::new();
        let mut masters = vec![None; HASH_SLOTS.into()];
        for range in ranges {
            let servers = range.servers.iter().map(|(host, port)| {
                let node = self.node(known, host, *port);
                nodes.entry(node.address.clone()).or_insert(node).clone()
            });
            let servers: Vec<_> = servers.collect();
            masters[range.first.into()..=range.last.into()].fill(servers.first().cloned());
        }
        HashSlotOwners {
            masters,
            nodes,
            failed: None,
        }
    }

    fn update(&self, ranges: RedisResult<Vec<HashSlotRange>>) {
        let before = self.masters();
        let mut failed = None;
        self.owners.send_modify(|owners| match ranges {
            Ok(ranges) => *owners = self.owners_of(&ranges, &owners.nodes),
            Err(error) => {
                failed = owners.failed.is_none().then(|| error.clone());
                owners.failed = Some(error);
            }
        });
        // A log subscriber may run any code, so the lock is released first.
        if let Some(error) = failed {
            warn!("redis: no server of the cluster reports its hash slots: {error}");
        }
        let after = self.masters();
        for node in before {
            if !after.iter().any(|other| Arc::ptr_eq(&node, other)) {
                node.domain.retire();
            }
        }
        let is_missing = self.owners.borrow().masters.iter().any(Option::is_none);
        if !after.is_empty() && !is_missing {
            self.missing.retire();
        }
    }
}

/// Refreshes the hash slots until no caller needs another refresh. The permit is released at the end,
/// even if the runtime drops the task.
async fn refresh(weak: Weak<Routes>, permit: OwnedSemaphorePermit) {
    let mut pause = MIN_PAUSE;
    loop {
        let Some(routes) = weak.upgrade() else { return };
        routes.is_wanted.store(false, SeqCst);
        let ranges = ask(routes.candidates()).await;
        routes.update(ranges);
        drop(routes);
        sleep(jitter(pause)).await;
        pause = (2 * pause).min(MAX_PAUSE);
        let Some(routes) = weak.upgrade() else { return };
        if !routes.is_wanted.load(SeqCst) {
            drop(permit);
            // A caller that came before the permit was free has started no task.
            if routes.is_wanted.load(SeqCst) {
                drop(routes.refresh());
            }
            return;
        }
    }
}

/// Asks the servers for the hash slots, at most [`STAGGER`] apart, and returns the first valid reply.
async fn ask(candidates: Vec<Arc<Node>>) -> RedisResult<Vec<HashSlotRange>> {
    let mut candidates = candidates.into_iter();
    let mut asked = FuturesUnordered::new();
    let mut failed = not_connected("no server of the cluster replies");
    loop {
        match candidates.next() {
            Some(node) => asked.push(async move { node.hash_slots().await }),
            None if asked.is_empty() => return Err(failed),
            None => {}
        }
        match timeout(STAGGER, asked.next()).await {
            Ok(Some(Ok(ranges))) => return Ok(ranges),
            Ok(Some(Err(error))) => failed = error,
            Ok(None) | Err(_) => {}
        }
    }
}
