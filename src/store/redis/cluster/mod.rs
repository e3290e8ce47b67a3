//! Sends each call to the server of a cluster that stores its keys. At most one task at a time asks the
//! cluster for the servers and their slots.

pub(crate) mod fan_out;

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    io::{Error, ErrorKind},
    mem::forget,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, Release},
        },
    },
    time::Duration,
};

use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt},
};
use redis::{
    Arg, Cmd, ErrorKind as Raw, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind as Server, Value, aio::ConnectionLike, cmd, from_redis_value_ref,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use crate::{
    log::warn,
    store::{
        BoxFuture, FailureDomain,
        redis::{
            RedisStore,
            connection::{Link, ServerState, TIMEOUT, dial::Dialed, not_connected, runtime},
        },
        wrappers::breaker::circuit::jitter,
    },
};

/// The maximum number of redirections of a call.
const MAX_REDIRECTIONS: u32 = 5;
/// The pause before the first retry of a call whose keys are moving between servers. Each further
/// pause is twice as long, up to [`MAX_TRY_AGAIN`]. Then the call fails.
const TRY_AGAIN: Duration = Duration::from_millis(1);
const MAX_TRY_AGAIN: Duration = Duration::from_millis(16);

/// Connections to the servers of a cluster. Follows moved slots and failovers.
///
/// Each server has one connection, which reconnects by itself. A server that does not reply delays no
/// calls to other servers. A [`Breaker`](crate::store::Breaker) stops the calls to this server only.
///
/// After a failure, a timeout or a redirection, one task asks the cluster which server has each slot. While
/// the failure lasts, the task asks again, with pauses of up to half a second.
///
/// Created by [`RedisStore::cluster`](crate::RedisStore::cluster). Clones share the connections.
#[derive(Clone)]
pub struct ClusterLink {
    routes: Arc<Routes>,
}

impl ClusterLink {
    /// Creates a link that connects on the first command, to one of the `seeds`, by host and port.
    /// `is_judged` is `true` if the connections note silence.
    pub(crate) fn new(
        seeds: &[(&str, u16)],
        connect: Connect,
        is_judged: bool,
    ) -> RedisResult<Self> {
        let connect = Connector { connect, is_judged };
        if seeds.is_empty() {
            return Err((Raw::InvalidClientConfig, "no address of a cluster is given").into());
        }
        let routes = Routes {
            seeds: seeds
                .iter()
                .map(|(host, port)| Node::new(&connect, host, *port))
                .collect(),
            connect,
            owners: watch::Sender::default(),
            missing: FailureDomain::new("a slot without a server"),
            refreshing: Arc::new(Semaphore::new(1)),
            is_wanted: AtomicBool::new(false),
            refreshes: AtomicUsize::new(0),
        };
        Ok(Self {
            routes: Arc::new(routes),
        })
    }

    /// Returns the servers of these accounts.
    pub(crate) fn servers(&self, accounts: impl Iterator<Item = String>) -> Vec<FailureDomain> {
        let mut servers = Vec::new();
        for key in accounts {
            let master = self.routes.master(slot(key.as_bytes()));
            let server =
                master.map_or_else(|_| self.routes.missing.clone(), |node| node.domain.clone());
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        if servers.iter().any(FailureDomain::is_open) {
            // A replica may have replaced the server.
            drop(self.routes.refresh());
        }
        servers
    }

    /// Returns the address of the master of a slot.
    pub(crate) fn server(&self, slot: u16) -> Option<String> {
        Some(self.routes.master(slot).ok()?.address.clone())
    }

    /// Returns `true` if the connections note silence.
    pub(crate) fn is_judged(&self) -> bool {
        self.routes.connect.is_judged
    }

    /// Returns the state of the worst of the servers of some slots.
    pub(crate) fn server_state(
        &self,
        slots: impl Iterator<Item = u16>,
        time: Duration,
    ) -> ServerState {
        let states = slots.map(|slot| match self.routes.master(slot) {
            Ok(node) => node.link.server_state(time),
            Err(_) => ServerState::Silent,
        });
        states.min().unwrap_or(ServerState::Answers(time))
    }

    /// Returns the addresses of the masters whose circuit breaker is open.
    pub(crate) fn failing(&self) -> Vec<String> {
        let masters = self.routes.masters().into_iter();
        masters
            .filter(|node| node.domain.is_open())
            .map(|node| node.address.clone())
            .collect()
    }

    /// Sends a command to the master of `slot`. Follows redirections.
    async fn call(&self, slot: u16, command: &Cmd) -> RedisResult<Value> {
        let deadline = Instant::now() + TIMEOUT;
        self.routes.loaded(deadline).await?;
        let unanswered = RefreshOnDrop(&self.routes);
        let mut node = self.routes.master(slot)?;
        let mut asking = false;
        let mut redirections = 0;
        let mut pause = TRY_AGAIN;
        loop {
            let error = match node.call(command, asking, deadline).await {
                Err(error) if error.kind() != Raw::Server(Server::NoScript) => error,
                reply => {
                    forget(unanswered);
                    return reply;
                }
            };
            match error.kind() {
                Raw::Server(kind @ (Server::Moved | Server::Ask))
                    if redirections < MAX_REDIRECTIONS =>
                {
                    redirections += 1;
                    asking = kind == Server::Ask;
                    if !asking {
                        self.routes.refresh()?;
                    }
                    node = self.routes.redirect(&error, &node, !asking)?;
                }
                Raw::Server(Server::TryAgain)
                    if pause <= MAX_TRY_AGAIN && Instant::now() + pause < deadline =>
                {
                    sleep_until(Instant::now() + pause).await;
                    pause *= 2;
                }
                _ => return Err(error),
            }
        }
    }

    /// Sends a command to all masters. Returns the reply of each, with its address.
    pub(crate) async fn call_all(&self, command: &Cmd) -> Vec<(String, RedisResult<Value>)> {
        let deadline = Instant::now() + TIMEOUT;
        drop(self.routes.loaded(deadline).await);
        let masters = self.routes.masters();
        let calls = masters.iter().map(async |node| {
            (
                node.address.clone(),
                node.call(command, false, deadline).await,
            )
        });
        join_all(calls).await
    }
}

/// Asks for the slots if a call fails, or is dropped before its reply because it took too long.
struct RefreshOnDrop<'a>(&'a Arc<Routes>);

impl Drop for RefreshOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.0.refresh());
    }
}

impl<C: 'static> RedisStore<C> {
    /// Returns the connection, if it is a [`ClusterLink`].
    pub(crate) fn cluster_link(&self) -> Option<&ClusterLink> {
        (&self.connection as &dyn Any).downcast_ref()
    }
}

impl ConnectionLike for ClusterLink {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            match key(command) {
                Some(key) => self.call(slot(key), command).await,
                None => Err((Raw::InvalidClientConfig, "a command without a key").into()),
            }
        })
    }

    /// Fails, because the commands of a pipeline may belong to different servers.
    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        const PROBLEM: &str = "a pipeline on a cluster is not supported";
        Box::pin(async { Err(RedisError::from((Raw::InvalidClientConfig, PROBLEM))) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.routes.masters();
        let addresses: Vec<_> = masters
            .iter()
            .map(|node: &Arc<Node>| &node.address)
            .collect();
        f.debug_struct("ClusterLink")
            .field("masters", &addresses)
            .finish_non_exhaustive()
    }
}

/// Returns the first key of a command that the store sends, or `None` for another command.
fn key(command: &Cmd) -> Option<&[u8]> {
    let mut args = command.args_iter();
    let before = match args.next() {
        Some(Arg::Simple(b"EVALSHA" | b"EVAL")) => 2,
        Some(Arg::Simple(b"ZREM")) => 0,
        _ => return None,
    };
    match args.nth(before) {
        Some(Arg::Simple(key)) => Some(key),
        _ => None,
    }
}

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;
/// The pause after the first refresh of a task. Each further pause is twice as long, up to
/// [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The time without a reply after which the next server is asked, too.
const STAGGER: Duration = Duration::from_millis(25);

/// The servers of a cluster, and the master of each slot.
pub(crate) struct Routes {
    seeds: Vec<Arc<Node>>,
    connect: Connector,
    owners: watch::Sender<SlotOwners>,
    /// Stands for the server of a slot whose server is unknown.
    missing: FailureDomain,
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
    /// Waits until a server has reported the slots.
    pub(crate) async fn loaded(self: &Arc<Self>, deadline: Instant) -> RedisResult<()> {
        if !self.owners.borrow().masters.is_empty() {
            return Ok(());
        }
        // A later call does not wait for a cluster that was not there.
        let mut updates = self.owners.subscribe();
        let mut waits = self.refresh()?;
        loop {
            match &*updates.borrow_and_update() {
                owners if !owners.masters.is_empty() => return Ok(()),
                SlotOwners {
                    failed: Some(failed),
                    ..
                } if !waits => return Err(failed.clone()),
                _ => waits = false,
            }
            if timeout_at(deadline, updates.changed()).await.is_err() {
                return Err(not_connected(
                    "no server of the cluster has reported its slots in time",
                ));
            }
        }
    }

    /// Returns the master of a slot.
    pub(crate) fn master(&self, slot: u16) -> RedisResult<Arc<Node>> {
        let master = self
            .owners
            .borrow()
            .masters
            .get(usize::from(slot))
            .cloned()
            .flatten();
        master.ok_or_else(|| not_connected("no server of the cluster has the slot"))
    }

    /// Returns the masters of all slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
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
        let Some(((host, port), slot)) = target else {
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
            if let Some(master) = owners.masters.get_mut(usize::from(slot)).filter(|_| moved) {
                *master = Some(node.clone());
            }
            false
        });
        Ok(node)
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
    fn owners_of(&self, ranges: &[SlotRange], known: &HashMap<String, Arc<Node>>) -> SlotOwners {
        let mut nodes = HashMap::new();
        let mut masters = vec![None; SLOTS.into()];
        for range in ranges {
            let servers = range.servers.iter().map(|(host, port)| {
                let node = self.node(known, host, *port);
                nodes.entry(node.address.clone()).or_insert(node).clone()
            });
            let servers: Vec<_> = servers.collect();
            masters[range.first.into()..=range.last.into()].fill(servers.first().cloned());
        }
        SlotOwners {
            masters,
            nodes,
            failed: None,
        }
    }

    fn update(&self, ranges: RedisResult<Vec<SlotRange>>) {
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
            warn!("redis: no server of the cluster reports its slots: {error}");
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

/// Returns `true` for an error that a working server may return.
fn is_answer(error: &RedisError) -> bool {
    use Server::{Ask, Moved, NoScript, TryAgain};
    matches!(error.kind(), Raw::Server(Ask | Moved | NoScript | TryAgain))
}

/// Asks the servers for the slots, at most [`STAGGER`] apart, and returns the first valid reply.
async fn ask(candidates: Vec<Arc<Node>>) -> RedisResult<Vec<SlotRange>> {
    let mut candidates = candidates.into_iter();
    let mut asked = FuturesUnordered::new();
    let mut failed = not_connected("no server of the cluster replies");
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

/// Connects to the server at a host and a port.
pub(crate) type Connect = Arc<dyn Fn(&str, u16) -> BoxFuture<RedisResult<Dialed>> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Connector {
    connect: Connect,
    /// `true` if the connections note silence.
    is_judged: bool,
}

/// A server of a cluster.
pub(crate) struct Node {
    host: String,
    /// The host and the port.
    pub(crate) address: String,
    pub(crate) domain: FailureDomain,
    link: Link,
}

impl Node {
    /// Creates a node that connects on its first call.
    pub(crate) fn new(connector: &Connector, host: &str, port: u16) -> Arc<Self> {
        let address = format!("{host}:{port}");
        let host = host.to_owned();
        let domain = FailureDomain::new(address.clone());
        let connect = connector.connect.clone();
        let name = host.clone();
        let link = Link::new(Box::new(move || connect(&name, port)), connector.is_judged);
        Arc::new(Self {
            host,
            address,
            domain,
            link,
        })
    }

    /// Sends a command.
    ///
    /// With `asking`, the server also accepts the keys of a slot that is still moving to it.
    pub(crate) async fn call(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Instant,
    ) -> RedisResult<Value> {
        let start = Instant::now();
        let sent = self.send(command, asking);
        let reply = if self.link.is_judged() {
            sent.await
        } else {
            timeout_at(deadline, sent).await.unwrap_or_else(|_| {
                let text = format!("{} did not reply in time", self.address);
                Err(Error::new(ErrorKind::TimedOut, text).into())
            })
        };
        if reply.as_ref().err().is_none_or(is_answer) {
            self.domain.answered(start.into_std());
        }
        reply
    }

    /// Asks the server for all slots of the cluster.
    pub(crate) async fn slots(&self) -> RedisResult<Vec<SlotRange>> {
        let mut command = cmd("CLUSTER");
        ranges(
            &self
                .link
                .clone()
                .req_packed_command(command.arg("SLOTS"))
                .await?,
            &self.host,
        )
    }

    async fn send(&self, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut link = self.link.clone();
        if !asking {
            return link.req_packed_command(command).await;
        }
        // Other commands must not come in between.
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let mut replies = link.req_packed_commands(&both, 1, 1).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }
}

/// Consecutive slots with one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// The address of the master, then those of its replicas.
    pub(crate) servers: Vec<(String, u16)>,
}

/// Returns the slot of a key: its CRC-16, as defined by Redis Cluster.
pub(crate) fn slot(key: &[u8]) -> u16 {
    // Each key of this store contains braces, and the text inside of them selects the slot.
    let inside = key
        .split(|byte| *byte == b'{')
        .nth(1)
        .and_then(|rest| rest.split(|b| *b == b'}').next());
    let mut crc = 0;
    for byte in inside.unwrap_or(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
        }
    }
    crc % SLOTS
}

/// Parses the reply to `CLUSTER SLOTS`. An empty host in the reply stands for `host`, the host of
/// the server that replied.
pub(crate) fn ranges(reply: &Value, host: &str) -> Result<Vec<SlotRange>, RedisError> {
    let ranges = reply.as_sequence().unwrap_or_default().iter();
    let ranges: Vec<_> = ranges.filter_map(|range| read(range, host)).collect();
    if ranges.is_empty() {
        return Err(std::io::Error::other("the server reports no slots; is it a cluster?").into());
    }
    Ok(ranges)
}

/// Splits an address `host:port`. The host of an IPv6 address contains colons, too.
pub(crate) fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn read(range: &Value, host: &str) -> Option<SlotRange> {
    let [first, last, servers @ ..] = range.as_sequence()? else {
        return None;
    };
    let first = int(first)?;
    let last = int(last)?;
    // Without its master, a range has no server for writes.
    read_address(servers.first()?, host)?;
    let servers = servers
        .iter()
        .filter_map(|server| read_address(server, host))
        .collect();
    (first <= last && last < SLOTS).then_some(SlotRange {
        first,
        last,
        servers,
    })
}

fn read_address(server: &Value, host: &str) -> Option<(String, u16)> {
    let [name, port, ..] = server.as_sequence()? else {
        return None;
    };
    let name = from_redis_value_ref::<Option<String>>(name)
        .ok()?
        .unwrap_or_default();
    let name = if name.is_empty() {
        host.to_owned()
    } else {
        name
    };
    // A question mark is the host of a server that the replying server does not know.
    (name != "?").then_some((name, int(port)?))
}

fn int(value: &Value) -> Option<u16> {
    from_redis_value_ref(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: i64) -> Value {
        let name = Value::BulkString(host.into());
        Value::Array(vec![name, Value::Int(port), Value::BulkString("id".into())])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
    }

    #[test]
    fn slots_match_those_of_redis_cluster() {
        // The output of CLUSTER KEYSLOT.
        for (key, expected) in [
            ("sluice:3:{foo}", 12_182),
            ("{bar}:0", 5_061),
            ("a", 15_495),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn ranges_without_a_known_master_are_dropped() {
        let reply = Value::Array(vec![
            range(0, 99, vec![server("10.0.0.1", 7_000), server("", 7_001)]),
            range(100, 199, vec![server("?", 0), server("10.0.0.1", 7_000)]),
            range(200, 199, vec![server("10.0.0.1", 7_000)]),
            range(200, 16_384, vec![server("10.0.0.1", 7_000)]),
            range(300, 399, vec![]),
            Value::Nil,
        ]);
        let servers = vec![("10.0.0.1".into(), 7_000), ("me".into(), 7_001)];
        let expected = [SlotRange {
            first: 0,
            last: 99,
            servers,
        }];
        assert_eq!(ranges(&reply, "me").expect("one range"), expected);
        assert!(ranges(&Value::Array(vec![]), "me").is_err());
        assert!(ranges(&Value::Int(1), "me").is_err());
    }

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split_address("10.0.0.1:7000"), Some(("10.0.0.1", 7_000)));
        assert_eq!(
            split_address("2001:db8::1:7000"),
            Some(("2001:db8::1", 7_000))
        );
        assert_eq!(split_address(":7000"), Some(("", 7_000)));
        assert!(split_address("7000").is_none() && split_address("a:70000").is_none());
    }

    #[test]
    fn the_key_of_a_command_is_found() {
        let mut command = Cmd::new();
        command
            .arg("EVALSHA")
            .arg("0123")
            .arg(1)
            .arg("{foo}")
            .arg("plan");
        assert_eq!(key(&command), Some(&b"{foo}"[..]));
        command = redis::cmd("ZREM");
        command.arg("{foo}").arg("member");
        assert_eq!(key(&command), Some(&b"{foo}"[..]));
        assert_eq!(key(&redis::cmd("INFO")), None);
    }
}
