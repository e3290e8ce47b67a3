//! The servers of a cluster and their slots. At most one task at a time refreshes them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, Release},
        },
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{ErrorKind as Raw, RedisError, RedisResult};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    hash_slot::{SLOTS, SlotRange, split_address},
    node::{Connect, Node},
};
use crate::{
    log::warn,
    store::{redis::connection::link::runtime, wrappers::breaker::circuit::jitter},
};

/// The pause after the first refresh of a task. Each further pause is twice as long, up to
/// [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The time without a reply after which the next server is asked, too.
const STAGGER: Duration = Duration::from_millis(25);

/// The servers of a cluster, and the master of each slot.
pub(crate) struct Routes {
    seeds: Vec<Arc<Node>>,
    connect: Connect,
    owners: watch::Sender<SlotOwners>,
    /// The permit to refresh the slots. At most one task holds the permit.
    refreshing: Arc<Semaphore>,
    is_wanted: AtomicBool,
    refreshes: AtomicUsize,
}

#[derive(Default)]
struct SlotOwners {
    /// The master of each slot. Empty until a server has reported the slots.
    masters: Vec<Option<Arc<Node>>>,
    /// All servers by address, with replicas.
    nodes: HashMap<String, Arc<Node>>,
    /// The error of the last refresh, if it failed.
    failed: Option<RedisError>,
}

impl Routes {
    /// Creates routes that are loaded from one of the `seeds`, by host and port.
    pub(crate) fn new(seeds: &[(&str, u16)], connect: Connect) -> RedisResult<Arc<Self>> {
        if seeds.is_empty() {
            return Err((Raw::InvalidClientConfig, "no address of a cluster is given").into());
        }
        Ok(Arc::new(Self {
            seeds: seeds.iter().map(|(host, port)| Node::new(&connect, host, *port)).collect(),
            connect,
            owners: watch::Sender::default(),
            refreshing: Arc::new(Semaphore::new(1)),
            is_wanted: AtomicBool::new(false),
            refreshes: AtomicUsize::new(0),
        }))
    }

    /// Waits until a server has reported the slots.
    pub(crate) async fn loaded(self: &Arc<Self>, deadline: Instant) -> RedisResult<()> {
        if !self.owners.borrow().masters.is_empty() {
            return Ok(());
        }
        // A later call does not wait for a cluster that was not there.
        let (mut updates, mut waits) = (self.owners.subscribe(), self.refresh()?);
        loop {
            match &*updates.borrow_and_update() {
                owners if !owners.masters.is_empty() => return Ok(()),
                SlotOwners { failed: Some(failed), .. } if !waits => return Err(failed.clone()),
                _ => waits = false,
            }
            if timeout_at(deadline, updates.changed()).await.is_err() {
                return Err(error("no server of the cluster has reported its slots in time"));
            }
        }
    }

    /// Returns the master of a slot.
    pub(crate) fn master(&self, slot: u16) -> RedisResult<Arc<Node>> {
        let master = self.owners.borrow().masters.get(usize::from(slot)).cloned().flatten();
        master.ok_or_else(|| error("no server of the cluster has the slot"))
    }

    /// Returns the masters of all slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let owners = self.owners.borrow();
        let masters = owners.masters.iter().flatten().map(|node| (&node.address, node));
        masters.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
    }

    /// Returns the server that a redirection names. Updates the master of the slot if the slot has
    /// `moved`.
    pub(crate) fn redirect(
        &self,
        redirection: &RedisError,
        from: &Node,
        moved: bool,
    ) -> RedisResult<Arc<Node>> {
        let target = redirection.redirect_node();
        let target = target.and_then(|(to, slot)| Some((split_address(to)?, slot)));
        let Some(((host, port), slot)) = target else { return Err(redirection.clone()) };
        let host = if host.is_empty() { from.host() } else { host };
        let mut found = None;
        self.owners.send_if_modified(|owners| {
            let node = self.node(&owners.nodes, host, port);
            owners.nodes.insert(node.address.clone(), node.clone());
            if let Some(master) = owners.masters.get_mut(usize::from(slot)).filter(|_| moved) {
                *master = Some(node.clone());
            }
            found = Some(node);
            false
        });
        found.ok_or_else(|| redirection.clone())
    }

    /// Starts a task that asks for the slots. Returns `false` if such a task is running.
    pub(crate) fn refresh(self: &Arc<Self>) -> RedisResult<bool> {
        let runtime = runtime()?;
        self.is_wanted.store(true, Release);
        let permit = self.refreshing.clone().try_acquire_owned();
        let started = permit.map(|permit| runtime.spawn(refresh(Arc::downgrade(self), permit)));
        Ok(started.is_ok())
    }

    /// Returns the servers to ask for the slots, with failing servers last.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let (mut all, owners) = (self.masters(), self.owners.borrow());
        let count = all.len().max(1);
        // Each refresh asks another server, because one may have an old view.
        all.rotate_left(self.refreshes.fetch_add(1, Relaxed) % count);
        all.extend(owners.nodes.values().cloned());
        all.extend(self.seeds.iter().cloned());
        all.sort_by_key(|node| node.domain.is_open());
        let mut distinct: Vec<Arc<Node>> = Vec::new();
        for node in all {
            if distinct.iter().all(|known| known.address != node.address) {
                distinct.push(node);
            }
        }
        distinct
    }

    fn node(&self, nodes: &HashMap<String, Arc<Node>>, host: &str, port: u16) -> Arc<Node> {
        let address = format!("{host}:{port}");
        let seed = || self.seeds.iter().find(|seed| seed.address == address);
        let known = nodes.get(&address).or_else(seed);
        known.cloned().unwrap_or_else(|| Node::new(&self.connect, host, port))
    }

    fn update(&self, ranges: RedisResult<Vec<SlotRange>>) {
        let before = self.masters();
        self.owners.send_modify(|owners| {
            let ranges = match ranges {
                Ok(ranges) => ranges,
                Err(error) => {
                    if owners.failed.is_none() {
                        log_unreachable(&error);
                    }
                    return owners.failed = Some(error);
                }
            };
            let (mut nodes, mut masters) = (HashMap::new(), vec![None; SLOTS.into()]);
            for range in &ranges {
                let servers = range.servers.iter().map(|(host, port)| {
                    let node = self.node(&owners.nodes, host, *port);
                    nodes.entry(node.address.clone()).or_insert(node).clone()
                });
                let servers: Vec<_> = servers.collect();
                masters[range.first.into()..=range.last.into()].fill(servers.first().cloned());
            }
            *owners = SlotOwners { masters, nodes, failed: None };
        });
        let after = self.masters();
        let is_gone = |node: &&Arc<Node>| !after.iter().any(|other| Arc::ptr_eq(node, other));
        before.iter().filter(is_gone).for_each(|node| node.domain.retire());
    }
}

/// Refreshes the slots until no caller needs another refresh. The permit is released at the end,
/// even if the runtime drops the task.
async fn refresh(weak: Weak<Routes>, _permit: OwnedSemaphorePermit) {
    let mut pause = MIN_PAUSE;
    loop {
        let Some(routes) = weak.upgrade() else { return };
        routes.is_wanted.store(false, Release);
        let ranges = ask(routes.candidates()).await;
        routes.update(ranges);
        drop(routes);
        sleep(jitter(pause)).await;
        pause = (2 * pause).min(MAX_PAUSE);
        match weak.upgrade() {
            Some(routes) if routes.is_wanted.load(Relaxed) => {}
            _ => return,
        }
    }
}

/// Asks the servers for the slots, at most [`STAGGER`] apart, and returns the first valid reply.
async fn ask(candidates: Vec<Arc<Node>>) -> RedisResult<Vec<SlotRange>> {
    let (mut candidates, mut asked) = (candidates.into_iter(), FuturesUnordered::new());
    let mut failed = error("no server of the cluster replies");
    loop {
        match candidates.next() {
            Some(node) => asked.push(async move { node.slots().await }),
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

fn error(text: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, text).into()
}

fn log_unreachable(error: &RedisError) {
    warn!("redis: no server of the cluster reports its slots: {error}");
}
