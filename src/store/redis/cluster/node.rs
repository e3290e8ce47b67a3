//! One server of a cluster: its connection and its circuit breaker.

use std::{
    io::{Error, ErrorKind},
    sync::Arc,
    time::Duration,
};

use redis::{
    Cmd, ErrorKind as Raw, Pipeline, RedisResult, ServerErrorKind as Server, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::time::Instant;

use super::hash_slot::{SlotRange, ranges};
use crate::store::{
    BoxFuture,
    breaker::circuit::{BreakerConfig, Circuit},
    patience::within,
    redis::connection::link::Link,
};

/// Connects to the server at a host and a port.
pub(crate) type Connect =
    Arc<dyn Fn(&str, u16) -> BoxFuture<RedisResult<MultiplexedConnection>> + Send + Sync>;

/// A server of a cluster.
pub(crate) struct Node {
    host: String,
    /// The host and the port.
    pub(crate) address: String,
    link: Link,
    circuit: Arc<Circuit>,
}

impl Node {
    /// Creates a node that connects on its first call.
    pub(crate) fn new(connect: &Connect, host: &str, port: u16) -> Arc<Self> {
        let (address, host) = (format!("{host}:{port}"), host.to_owned());
        let circuit = Circuit::of_server(BreakerConfig::default(), address.clone());
        let (connect, name) = (connect.clone(), host.clone());
        let link = Link::new(Box::new(move || connect(&name, port)));
        Arc::new(Self { host, address, link, circuit: Arc::new(circuit) })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sends a command, unless the circuit is open.
    ///
    /// With `asking`, the server also accepts the keys of a slot that is still moving to it.
    pub(crate) async fn call(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Instant,
    ) -> RedisResult<Value> {
        let permit = self.circuit.acquire().map_err(|left| self.not_called(left))?;
        let left = deadline.saturating_duration_since(Instant::now());
        let reply = within(left, self.send(command, asking)).await.unwrap_or_else(|| {
            let text = format!("{} did not reply in time", self.address);
            Err(Error::new(ErrorKind::TimedOut, text).into())
        });
        permit.record(reply.as_ref().map_or_else(is_answer, |_| true));
        reply
    }

    /// Returns an error if the circuit is open.
    pub(crate) fn check(&self) -> RedisResult<()> {
        self.circuit.retry_after().map_or(Ok(()), |left| Err(self.not_called(left)))
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.circuit.is_open()
    }

    /// Closes the circuit, because the server has left the cluster.
    pub(crate) fn retire(&self) {
        self.circuit.retire();
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

    fn not_called(&self, left: Duration) -> redis::RedisError {
        let text = format!("{} failed and is not called again for {left:?}", self.address);
        Error::new(ErrorKind::NotConnected, text).into()
    }
}

/// Returns `true` if a working server may return this error.
fn is_answer(error: &redis::RedisError) -> bool {
    matches!(
        error.kind(),
        Raw::Server(Server::Moved | Server::Ask | Server::TryAgain | Server::NoScript)
    )
}
