//! Sends each call to the server of a cluster that stores its keys.

pub(crate) mod fan_out;
pub(crate) mod hash_slot;
mod node;
pub(crate) mod routes;

use std::{any::Any, fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{
    Arg, Cmd, ErrorKind as Raw, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind as Server, Value, aio::ConnectionLike,
};
use tokio::time::{Instant, sleep_until};

use self::{
    hash_slot::slot,
    node::{Connect, Node},
    routes::Routes,
};
use crate::{
    key::Key,
    store::redis::{RedisStore, connection::link::TIMEOUT},
};

/// The maximum number of redirections of a call.
const MAX_REDIRECTIONS: u32 = 5;
/// The pause before the first retry of a call whose keys are moving between servers. Each further
/// pause is twice as long, up to [`MAX_TRY_AGAIN`]. Then the call fails.
const TRY_AGAIN: Duration = Duration::from_millis(1);
const MAX_TRY_AGAIN: Duration = Duration::from_millis(16);

/// The maximum number of keys that a probe tries, to find one key for each server.
const MAX_PROBE_KEYS: u32 = 10_000;

/// Connections to the servers of a cluster. Follows moved slots and failovers.
///
/// Each server has one connection, which reconnects by itself. After several consecutive failures,
/// calls to a server fail immediately, as with a [`Breaker`](crate::store::Breaker). Other servers
/// are not affected.
///
/// After a failure or a redirection, one task asks the cluster which server has each slot. While
/// the failure lasts, the task asks again, with pauses of up to half a second.
///
/// Created by [`RedisStore::cluster`](crate::RedisStore::cluster) and
/// [`cluster_lazy`](crate::RedisStore::cluster_lazy). Clones share the connections.
#[derive(Clone)]
pub struct ClusterLink {
    routes: Arc<Routes>,
    /// The time that a caller waits for an answer, if it is known.
    budget: Option<Duration>,
}

impl ClusterLink {
    /// Creates a link that connects on the first command.
    pub(crate) fn new(seeds: &[(&str, u16)], connect: Connect) -> RedisResult<Self> {
        Ok(Self { routes: Routes::new(seeds, connect)?, budget: None })
    }

    /// Sets the time that a caller waits for an answer. A shorter known time is kept.
    fn set_budget(&mut self, budget: Duration) {
        self.budget = Some(self.budget.map_or(budget, |known| known.min(budget)));
    }

    /// Returns `true` if calls to a failing server fail before the caller's time budget ends.
    pub(crate) fn isolates_failures(&self) -> bool {
        self.budget.is_some()
    }

    /// Fails if the circuit breaker of a server with one of the `keys` is open.
    pub(crate) fn check<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> RedisResult<()> {
        let masters =
            keys.into_iter().filter_map(|key| self.routes.master(slot(key.as_bytes())).ok());
        let checked = masters.into_iter().try_for_each(|node| node.check());
        checked.inspect_err(|_| drop(self.routes.refresh()))
    }

    /// Returns the addresses of the masters whose circuit breaker is open.
    pub(crate) fn failing(&self) -> Vec<String> {
        let masters = self.routes.masters().into_iter();
        masters.filter(|node| node.is_failing()).map(|node| node.address.clone()).collect()
    }

    /// Returns the address of each master, with a key whose account is on that master.
    pub(crate) async fn key_per_server(
        &self,
        account: impl Fn(&Key) -> String,
    ) -> RedisResult<Vec<(String, Key)>> {
        self.routes.loaded(self.deadline()).await?;
        let (mut missing, mut found) = (self.routes.masters(), Vec::new());
        // A server with few slots may have none of these keys, and is then not probed.
        for key in (0..MAX_PROBE_KEYS).map(Key::from) {
            let Ok(master) = self.routes.master(slot(account(&key).as_bytes())) else { continue };
            if let Some(at) = missing.iter().position(|node| Arc::ptr_eq(node, &master)) {
                found.push((missing.swap_remove(at).address.clone(), key));
            }
            if missing.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the instant at which a call that starts now times out.
    fn deadline(&self) -> Instant {
        // The rest of the budget is enough to return the error in time.
        Instant::now() + self.budget.map_or(TIMEOUT, |budget| (budget / 10 * 9).min(TIMEOUT))
    }

    /// Sends a command to the master of `slot`. Follows redirections.
    async fn call(&self, slot: u16, command: &Cmd) -> RedisResult<Value> {
        let deadline = self.deadline();
        self.routes.loaded(deadline).await?;
        let mut node = self.routes.master(slot).inspect_err(|_| drop(self.routes.refresh()))?;
        let (mut asking, mut redirections, mut pause) = (false, 0, TRY_AGAIN);
        loop {
            let error = match node.call(command, asking, deadline).await {
                Err(error) => error,
                reply => return reply,
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
                Raw::Server(Server::NoScript) => return Err(error),
                _ => {
                    self.routes.refresh()?;
                    return Err(error);
                }
            }
        }
    }

    /// Sends a command to all masters, and returns their replies. Fails if no master replies.
    async fn call_all(&self, command: &Cmd) -> RedisResult<Value> {
        let deadline = self.deadline();
        self.routes.loaded(deadline).await?;
        let masters = self.routes.masters();
        let calls = masters.iter().map(|node| node.call(command, false, deadline));
        let (mut replies, mut failed) = (Vec::new(), None);
        for reply in join_all(calls).await {
            match reply {
                Ok(reply) => replies.push(reply),
                Err(error) => failed = Some(error),
            }
        }
        failed.filter(|_| replies.is_empty()).map_or(Ok(Value::Array(replies)), Err)
    }
}

/// Sets the time budget of the callers, if the connection is a [`ClusterLink`].
pub(crate) fn set_budget<C: 'static>(connection: &mut C, budget: Duration) {
    let connection: &mut dyn Any = connection;
    if let Some(cluster) = connection.downcast_mut::<ClusterLink>() {
        cluster.set_budget(budget);
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
                None => self.call_all(command).await,
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
        let addresses: Vec<_> = masters.iter().map(|node: &Arc<Node>| &node.address).collect();
        f.debug_struct("ClusterLink").field("masters", &addresses).finish_non_exhaustive()
    }
}

/// Returns the first key of a script call, or `None` for another command.
fn key(command: &Cmd) -> Option<&[u8]> {
    let mut args = command.args_iter();
    let (Some(Arg::Simple(b"EVALSHA" | b"EVAL")), Some(Arg::Simple(key))) =
        (args.next(), args.nth(2))
    else {
        return None;
    };
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_script_call_is_found() {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg("0123").arg(1).arg("{foo}").arg("plan");
        assert_eq!(key(&command), Some(&b"{foo}"[..]));
        assert_eq!(key(&redis::cmd("INFO")), None);
    }
}
