//! One server of a cluster, and its connection.

use std::{
    io::{Error, ErrorKind},
    sync::Arc,
};

use redis::{
    Cmd, ErrorKind as Raw, Pipeline, RedisResult, ServerErrorKind as Server, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::time::Instant;

use super::hash_slot::{SlotRange, ranges};
use crate::store::{
    BoxFuture, FailureDomain, redis::connection::link::Link, wrappers::timeout::within,
};

/// Connects to the server at a host and a port.
pub(crate) type Connect =
    Arc<dyn Fn(&str, u16) -> BoxFuture<RedisResult<MultiplexedConnection>> + Send + Sync>;

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
    pub(crate) fn new(connect: &Connect, host: &str, port: u16) -> Arc<Self> {
        let (address, host) = (format!("{host}:{port}"), host.to_owned());
        let domain = FailureDomain::new(address.clone());
        let (connect, name) = (connect.clone(), host.clone());
        let link = Link::new(Box::new(move || connect(&name, port)));
        Arc::new(Self { host, address, domain, link })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
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
        let left = deadline.saturating_duration_since(start);
        let reply = within(left, self.send(command, asking)).await.unwrap_or_else(|| {
            let text = format!("{} did not reply in time", self.address);
            Err(Error::new(ErrorKind::TimedOut, text).into())
        });
        if reply.as_ref().map_or_else(is_answer, |_| true) {
            self.domain.answered(start.into_std());
        }
        reply
    }

    /// Asks the server for all slots of the cluster.
    pub(crate) async fn slots(&self) -> RedisResult<Vec<SlotRange>> {
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        ranges(&self.link.clone().req_packed_command(&command).await?, &self.host)
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

/// Returns `true` if a working server may return this error.
fn is_answer(error: &redis::RedisError) -> bool {
    matches!(
        error.kind(),
        Raw::Server(Server::Moved | Server::Ask | Server::TryAgain | Server::NoScript)
    )
}
