//! The store under test: its clock, and its memory.

use std::time::Duration;

use tower_sluice::{LocalStore, RedisStore, Store};

use crate::servers::Server;

pub(crate) trait Subject {
    type Store: Store<Future: Send, Error: Send> + Clone + Send + Sync + 'static;

    fn store(&self) -> Self::Store;

    /// The time by the clock of the store. Another clock runs at another pace.
    async fn now(&self) -> Duration;

    /// Bytes outside this process.
    async fn memory(&self) -> u64;
}

pub(crate) struct Local {
    store: LocalStore,
    clock: quanta::Clock,
    start: quanta::Instant,
}

impl Local {
    pub(crate) fn new() -> Self {
        let clock = quanta::Clock::new();
        Self { store: LocalStore::with_capacity(131_072), start: clock.now(), clock }
    }
}

impl Subject for Local {
    type Store = LocalStore;

    fn store(&self) -> LocalStore {
        self.store.clone()
    }

    async fn now(&self) -> Duration {
        self.clock.now() - self.start
    }

    async fn memory(&self) -> u64 {
        0
    }
}

pub(crate) struct Redis {
    server: Server,
    store: RedisStore,
}

impl Redis {
    pub(crate) async fn new() -> Self {
        let server = Server::redis().await;
        let store = RedisStore::connect(&server.url()).await.expect("a connection");
        Self { server, store }
    }
}

impl Subject for Redis {
    type Store = RedisStore;

    fn store(&self) -> RedisStore {
        self.store.clone()
    }

    async fn now(&self) -> Duration {
        let (seconds, micros): (u64, u64) = self.server.command("TIME").await;
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    async fn memory(&self) -> u64 {
        let used = self.server.info("memory", "used_memory").await;
        used.and_then(|used| used.parse().ok()).expect("a number of bytes")
    }
}
