//! A server of a cluster.

use std::{
    io::{Error, ErrorKind},
    sync::Arc,
};

use redis::{
    Cmd, ErrorKind as Raw, RedisError, RedisResult, ServerErrorKind as Server, Value, cmd,
};
use tokio::time::{Instant, timeout_at};

use super::topology::{HashSlotRange, ranges};
use crate::store::{
    BoxFuture, FailureDomain,
    redis::connection::{Link, TIMEOUT, dial::OpenConnection},
};

/// Returns `true` for an error that a working server may return.
fn is_answer(error: &RedisError) -> bool {
    use Server::{Ask, Moved, NoScript, TryAgain};
    matches!(error.kind(), Raw::Server(Ask | Moved | NoScript | TryAgain))
}

/// Connects to the server at a host and a port.
pub(crate) type Connect =
    Arc<dyn Fn(&str, u16) -> BoxFuture<RedisResult<OpenConnection>> + Send + Sync>;

#[derive(Clone)]
pub(super) struct Connector {
    pub(super) connect: Connect,
    /// `true` if the connections note silence.
    pub(super) is_judged: bool,
}

/// A server of a cluster.
pub(crate) struct Node {
    pub(super) host: String,
    /// The host and the port.
    pub(crate) address: String,
    pub(super) domain: FailureDomain,
    pub(crate) link: Link,
}

impl Node {
    /// Creates a node that connects on its first call.
    pub(super) fn new(connector: &Connector, host: &str, port: u16) -> Arc<Self> {
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
    /// With `asking`, the server also accepts the keys of a hash slot that is still moving to it.
    pub(super) async fn call(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Instant,
    ) -> RedisResult<Value> {
        let start = Instant::now();
        let reply = self.send(command, asking, deadline).await;
        if reply.as_ref().err().is_none_or(is_answer) {
            self.domain.answered(start.into_std());
        }
        reply
    }

    /// Sends a command. A connection that does not note silence has until the deadline.
    async fn send(&self, command: &Cmd, asking: bool, deadline: Instant) -> RedisResult<Value> {
        let sent = self.link.call(command, asking);
        if self.link.is_judged() {
            return sent.await;
        }
        timeout_at(deadline, sent).await.unwrap_or_else(|_| {
            let text = format!("{} did not reply in time", self.address);
            Err(Error::new(ErrorKind::TimedOut, text).into())
        })
    }

    /// Asks the server for all hash slots of the cluster.
    pub(super) async fn hash_slots(&self) -> RedisResult<Vec<HashSlotRange>> {
        let mut command = cmd("CLUSTER");
        let deadline = Instant::now() + TIMEOUT;
        let reply = self.send(command.arg("SLOTS"), false, deadline).await?;
        ranges(&reply, &self.host)
    }
}
