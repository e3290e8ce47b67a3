//! Sends each call to the server of a cluster that stores its keys.

pub(crate) mod fan_out;
mod node;
mod routes;
mod topology;

use std::{any::Any, fmt, mem::forget, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{
    Arg, Cmd, ErrorKind as Raw, Pipeline, RedisFuture, RedisResult, ServerErrorKind as Server,
    Value, aio::ConnectionLike,
};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::{
    node::Connect,
    topology::{HASH_SLOTS, hash_slot},
};
use self::{
    node::{Connector, Node},
    routes::{Routes, Target},
};
use crate::store::{
    FailureDomain,
    redis::{
        RedisStore,
        connection::{TIMEOUT, no_pipeline},
    },
};

/// The maximum number of redirections of a call.
const MAX_REDIRECTIONS: u32 = 5;
/// The pause before the first retry of a call whose keys are moving between servers. Each further
/// pause is twice as long, up to [`MAX_TRY_AGAIN`]. Then the call fails.
const TRY_AGAIN: Duration = Duration::from_millis(1);
const MAX_TRY_AGAIN: Duration = Duration::from_millis(16);

/// Connections to the servers of a cluster. Follows moved hash slots and failovers.
///
/// Each server has one connection, which reconnects by itself. A server that does not reply delays no
/// calls to other servers. A [`Breaker`](crate::store::Breaker) stops the calls to this server only.
///
/// After a failure, a timeout or a redirection, one task asks the cluster which server has each hash
/// slot. While the failure lasts, the task asks again, with pauses of up to half a second.
///
/// Created by [`RedisStore::cluster`](crate::RedisStore::cluster). Clones share the connections.
#[derive(Clone)]
pub struct ClusterLink {
    routes: Arc<Routes>,
}

impl ClusterLink {
    /// Creates a link that connects on the first command, to one of the `seeds`, by host and port.
    /// `is_judged` is `true` if the connections note silence.
    pub(crate) fn new(seeds: &[(&str, u16)], connect: Connect, is_judged: bool) -> Self {
        let connect = Connector { connect, is_judged };
        Self {
            routes: Arc::new(Routes::new(seeds, connect)),
        }
    }

    /// Returns the servers of these accounts.
    pub(crate) fn servers(&self, accounts: impl Iterator<Item = String>) -> Vec<FailureDomain> {
        let mut servers = Vec::new();
        for key in accounts {
            let master = self.routes.master(hash_slot(key.as_bytes()));
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

    /// Returns the master of a hash slot.
    pub(super) fn master(&self, hash_slot: u16) -> Option<Arc<Node>> {
        self.routes.master(hash_slot).ok()
    }

    /// Returns `true` if the connections note silence.
    pub(crate) fn is_judged(&self) -> bool {
        self.routes.connect.is_judged
    }

    /// Returns the addresses of the masters whose circuit breaker is open.
    pub(crate) fn failing(&self) -> Vec<String> {
        let masters = self.routes.masters().into_iter();
        masters
            .filter(|node| node.domain.is_open())
            .map(|node| node.address.clone())
            .collect()
    }

    /// Sends a command to the master of `hash_slot`. Follows redirections.
    async fn call(&self, hash_slot: u16, command: &Cmd) -> RedisResult<Value> {
        let deadline = Instant::now() + TIMEOUT;
        self.routes.loaded(deadline).await?;
        let unanswered = RefreshOnDrop(&self.routes);
        let mut target = Target {
            node: self.routes.master(hash_slot)?,
            asking: false,
        };
        let mut redirections = 0;
        let mut pause = TRY_AGAIN;
        loop {
            let reply = target.node.call(command, target.asking, deadline).await;
            let error = match reply {
                Err(error) if error.kind() != Raw::Server(Server::NoScript) => error,
                reply => {
                    forget(unanswered);
                    return reply;
                }
            };
            match error.kind() {
                Raw::Server(Server::Moved | Server::Ask) if redirections < MAX_REDIRECTIONS => {
                    redirections += 1;
                    target = self.routes.redirect(&error, &target.node)?;
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

/// Asks for the hash slots if a call fails, or is dropped before its reply because it took too long.
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
                Some(key) => self.call(hash_slot(key), command).await,
                None => Err((Raw::InvalidClientConfig, "a command without a key").into()),
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Err(no_pipeline()) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for ClusterLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterLink").finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;

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
