//! The rate limiters that people publish for Redis, as they are published: the race of each, and
//! that ours has none of them. `src/guide/patterns.md` tells the stories.
//!
//! A race is shown in two ways, neither of which needs luck. Two clients go through their commands
//! in the order of the story. And a crowd asks at once ([`rush`]), a client as published first, then
//! as many processes with a `RedisStore`: whatever takes two trips to decide lets the whole crowd
//! pass.

#[path = "../support/accounts.rs"]
mod accounts;
mod buckets;
mod counter;
mod eviction;
mod guide;
mod key_per_second;
mod list;
mod log;
mod optimistic;
mod read_then_write;
mod script_clock;
#[path = "../support/servers/mod.rs"]
mod servers;

use std::{pin::pin, time::Duration};

use accounts::{Account, LONG, connect, keys, raw};
use futures::future::join_all;
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection, pipe};
use servers::Server;
use tokio::{task::yield_now, time::timeout};
use tower_sluice::{
    Algorithm, Quota, RedisStore,
    testing::{Redis, Subject},
};

/// What may pass.
const LIMIT: u32 = 10;
/// Who ask at once.
const CROWD: u32 = 50;
/// Where a store with a driven clock begins: a whole number of days, and so of any window here.
const START: Duration = Duration::from_secs(20_000 * 86_400);

/// A client of a published limiter, on a connection of its own.
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

    /// So many, each on a connection of its own.
    async fn crowd(server: &Server, count: u32) -> Vec<Self> {
        join_all((0..count).map(|_| Self::new(server))).await
    }

    /// A command, split at its blanks.
    async fn say<T: FromRedisValue>(&mut self, words: &str) -> T {
        let answer = command(words).query_async(&mut self.0).await;
        answer.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// Commands between `MULTI` and `EXEC`.
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

/// How many pass of those who ask while the server is held: it hears the first command of each
/// before it answers any.
async fn rush<F: Future<Output = bool>>(
    server: &Server,
    asking: impl IntoIterator<Item = F>,
) -> u32 {
    let mut crowd = pin!(join_all(asking));
    server.stop();
    let early = timeout(Duration::from_millis(100), &mut crowd).await;
    for _ in 0..100 {
        // however busy the machine is: what is to be sent is sent
        yield_now().await;
    }
    server.cont();
    assert!(early.is_err(), "nobody is answered while the server is held");
    let passed = crowd.await.into_iter().filter(|passed| *passed).count();
    u32::try_from(passed).expect("few")
}

/// How many of a crowd of processes a store lets through that asks for this quota.
async fn rush_ours(server: &Server, algorithm: Algorithm) -> u32 {
    let url = server.url();
    let stores = join_all((0..CROWD).map(|_| connect(&url))).await;
    let account = Account::new("rush", ten_per(LONG).algorithm(algorithm));
    // a look, after which the server knows the script
    assert_eq!(account.left(&stores[0]).await, LIMIT);
    rush(server, stores.iter().map(|store| account.passes(store))).await
}

/// A store whose time is driven, at [`START`].
async fn driven(server: &Server) -> (Redis, RedisStore) {
    let mut subject = Redis::new(connect(&server.url()).await);
    let store = subject.open();
    subject.set(START);
    (subject, store)
}

fn ten_per(period: Duration) -> Quota {
    Quota::new(LIMIT, period).expect("a quota")
}

/// Everything that lies on a server, and when it ends, in milliseconds from now.
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

/// That a hundred refusals change nothing of what lies on the server, and put no end off.
async fn refusals_leave_no_trace(server: &Server, store: &RedisStore, account: &Account) {
    let before = kept(server).await;
    assert_eq!(account.passed(store, 100).await, 0);
    let after = kept(server).await;
    assert_eq!(after.len(), before.len());
    for (before, after) in before.iter().zip(after) {
        assert_eq!((&after.0, &after.1), (&before.0, &before.1));
        assert!((0..=before.2).contains(&after.2), "{}: {} of {}", after.0, after.2, before.2);
    }
}
