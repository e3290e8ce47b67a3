//! Published rate limiters for Redis: the race of each, which `RedisStore` does not have.
//!
//! Each race is shown in two ways, without luck. Two clients run their commands in an order that exceeds
//! the limit. Then [`rush`] sends concurrent requests, which all pass a limiter that needs two round
//! trips. The same number of processes with a `RedisStore` stays within the limit.

mod buckets;
mod counter;
mod eviction;
mod key_per_second;
mod list;
mod log;
mod optimistic;
mod read_then_write;
mod script_clock;

use std::{pin::pin, time::Duration};

use futures::future::join_all;
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection, pipe};
use tokio::{task::yield_now, time::timeout};
use tower_sluice::{Algorithm, Quota, RedisStore, testing::Subject};

use crate::{
    accounts::{Account, LONG, connect, keys, raw},
    servers::Server,
};

/// The limit of each limiter.
const LIMIT: u32 = 10;
/// The number of concurrent clients.
const CLIENTS: u32 = 50;
/// The first instant of a store with a driven clock: a whole number of days, and so of every window
/// here.
const START: Duration = Duration::from_secs(20_000 * 86_400);

/// A client of a published limiter, on its own connection.
#[derive(Clone)]
struct Client(MultiplexedConnection);

fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    words.split(' ').for_each(|word| {
        command.arg(word);
    });
    command
}

impl Client {
    async fn new(server: &Server) -> Self {
        Self(server.connection().await.expect("a connection"))
    }

    /// Creates clients, each on its own connection.
    async fn many(server: &Server, count: u32) -> Vec<Self> {
        join_all((0..count).map(|_| Self::new(server))).await
    }

    /// Runs a command, split at its spaces.
    async fn say<T: FromRedisValue>(&mut self, words: &str) -> T {
        let answer = command(words).query_async(&mut self.0).await;
        answer.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Runs commands between `MULTI` and `EXEC`.
    async fn multi<T: FromRedisValue>(&mut self, lines: &[&str]) -> T {
        let mut transaction = pipe();
        transaction.atomic();
        lines.iter().for_each(|line| {
            transaction.add_command(command(line));
        });
        let answer = transaction.query_async(&mut self.0).await;
        answer.unwrap_or_else(|error| panic!("{lines:?}: {error}"))
    }
}

/// Returns the number of requests that pass when all are sent while the server is stopped: it
/// receives the first command of each before it answers any.
async fn rush<F: Future<Output = bool>>(
    server: &Server,
    asking: impl IntoIterator<Item = F>,
) -> u32 {
    let mut all = pin!(join_all(asking));
    server.stop();
    let early = timeout(Duration::from_millis(100), &mut all).await;
    for _ in 0..100 {
        // Let every request reach the server, even on a busy machine.
        yield_now().await;
    }
    server.cont();
    assert!(early.is_err(), "no request is answered while the server is stopped");
    let passed = all.await.into_iter().filter(|passed| *passed).count();
    u32::try_from(passed).expect("few")
}

/// Returns the number of processes that a store lets through when all ask for this quota at once.
async fn rush_ours(server: &Server, algorithm: Algorithm) -> u32 {
    let url = server.url();
    let stores = join_all((0..CLIENTS).map(|_| connect(&url))).await;
    let account = Account::new("rush", ten_per(LONG).with_algorithm(algorithm));
    // A look first, after which the server knows the script.
    assert_eq!(account.left(&stores[0]).await, LIMIT);
    rush(server, stores.iter().map(|store| account.passes(store))).await
}

/// Opens a store with a driven clock, at [`START`].
async fn driven(server: &Server) -> (RedisStore, RedisStore) {
    let mut subject = connect(&server.url()).await;
    let store = subject.open();
    subject.set(START);
    (subject, store)
}

fn ten_per(period: Duration) -> Quota {
    Quota::new(LIMIT, period).expect("a quota")
}

/// Returns all keys of a server with their values, and the milliseconds until they expire.
async fn kept(server: &Server) -> Vec<(String, Vec<u8>, i64)> {
    let mut connection = raw(&server.url()).await;
    let mut found = Vec::new();
    for (name, left) in keys(&mut connection).await {
        let value = redis::cmd("DUMP").arg(&name).query_async(&mut connection).await;
        let name = String::from_utf8(name).expect("a text");
        found.push((name, value.expect("a value"), left));
    }
    found.sort();
    found
}

/// Asserts that a hundred denials change no value on the server and extend no expiry.
async fn denials_leave_no_trace(server: &Server, store: &RedisStore, account: &Account) {
    let before = kept(server).await;
    assert_eq!(account.passed(store, 100).await, 0);
    let after = kept(server).await;
    assert_eq!(after.len(), before.len());
    for (before, after) in before.iter().zip(after) {
        assert_eq!((&after.0, &after.1), (&before.0, &before.1));
        assert!((0..=before.2).contains(&after.2), "{}: {} of {}", after.0, after.2, before.2);
    }
}
