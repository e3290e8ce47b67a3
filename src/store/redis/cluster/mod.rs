//! Sends each call to the server of a cluster that stores its keys.

pub(crate) mod fan_out;
pub(crate) mod routes;

use std::{any::Any, fmt, mem::forget, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{
    Arg, Cmd, ErrorKind as Raw, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind as Server, Value, aio::ConnectionLike,
};
use tokio::time::{Instant, sleep_until};

use self::routes::{Connect, Node, Routes, slot};
use crate::store::{
    FailureDomain,
    redis::{RedisStore, connection::TIMEOUT},
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
/// Created by [`RedisStore::cluster`](crate::RedisStore::cluster) and
/// [`cluster_lazy`](crate::RedisStore::cluster_lazy). Clones share the connections.
#[derive(Clone)]
pub struct ClusterLink {
    routes: Arc<Routes>,
}

impl ClusterLink {
    /// Creates a link that connects on the first command.
    pub(crate) fn new(seeds: &[(&str, u16)], connect: Connect) -> RedisResult<Self> {
        Ok(Self { routes: Routes::new(seeds, connect)? })
    }

    /// Returns the servers of these accounts.
    pub(crate) fn servers(&self, accounts: impl Iterator<Item = String>) -> Vec<FailureDomain> {
        let mut servers = Vec::new();
        for node in accounts.filter_map(|key| self.routes.master(slot(key.as_bytes())).ok()) {
            if !servers.contains(&node.domain) {
                servers.push(node.domain.clone());
            }
        }
        if servers.iter().any(FailureDomain::is_open) {
            // A replica may have replaced the server.
            drop(self.routes.refresh());
        }
        servers
    }

    /// Returns the addresses of the masters whose circuit breaker is open.
    pub(crate) fn failing(&self) -> Vec<String> {
        let masters = self.routes.masters().into_iter();
        masters.filter(|node| node.domain.is_open()).map(|node| node.address.clone()).collect()
    }

    /// Sends a command to the master of `slot`. Follows redirections.
    async fn call(&self, slot: u16, command: &Cmd) -> RedisResult<Value> {
        let deadline = Instant::now() + TIMEOUT;
        self.routes.loaded(deadline).await?;
        let unanswered = RefreshOnDrop(&self.routes);
        let mut node = self.routes.master(slot)?;
        let (mut asking, mut redirections, mut pause) = (false, 0, TRY_AGAIN);
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
        let calls = masters
            .iter()
            .map(async |node| (node.address.clone(), node.call(command, false, deadline).await));
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
