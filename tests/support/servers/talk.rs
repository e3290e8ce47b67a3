//! Commands of a test to a server.

use std::net::SocketAddr;

use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, aio::MultiplexedConnection,
};

use super::{PATIENCE, Server, eventually};

impl Server {
    /// Opens a connection that waits long for answers.
    pub(crate) async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        Client::open(self.url())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Returns the answer to a command, over a separate connection.
    pub(crate) async fn run<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query_async(&mut self.connection().await?).await
    }

    /// [`Server::run`] for a command that is split at its spaces.
    pub(crate) async fn attempt<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        let mut command = Cmd::new();
        words.split_whitespace().for_each(|word| {
            command.arg(word);
        });
        self.run(&command).await
    }

    /// [`Server::attempt`] for a command that must not fail.
    pub(crate) async fn command<T: FromRedisValue>(&self, words: &str) -> T {
        self.attempt(words).await.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Returns a field of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = self.attempt(&format!("INFO {section}")).await.ok()?;
        let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned);
        text.lines().find_map(value)
    }

    /// Returns the script calls so far, including those that found no script.
    pub(crate) async fn script_calls(&self) -> u32 {
        self.calls_of("eval").await + self.calls_of("evalsha").await
    }

    /// Returns the calls of a command so far, by clients and by scripts.
    pub(crate) async fn calls_of(&self, command: &str) -> u32 {
        let text: String = self.command("INFO commandstats").await;
        let prefix = format!("cmdstat_{command}:calls=");
        let count = |line: &str| line.strip_prefix(&prefix)?.split(',').next()?.parse::<u32>().ok();
        text.lines().filter_map(count).sum()
    }

    /// Returns `true` if the server is a replica that has its master's data and follows it.
    pub(crate) async fn follows(&self) -> bool {
        self.info("replication", "master_link_status").await.as_deref() == Some("up")
    }

    /// Makes the server a replica of `master`, a server or a proxy, and waits for the data.
    pub(crate) async fn replica_of(&self, master: SocketAddr) {
        let () = self.command(&format!("REPLICAOF {} {}", master.ip(), master.port())).await;
        eventually("a replica follows", async || self.follows().await.then_some(())).await;
    }

    /// Promotes a replica with its data.
    pub(crate) async fn promote(&self) {
        let () = self.command("REPLICAOF NO ONE").await;
    }
}
