//! The store, from flags: `--store local`, or the address of a Redis or Valkey.

use std::{convert::Infallible, sync::Arc};

use clap::{Args, ValueEnum};
use tower_sluice::{LocalStore, StoreExt, store::DynStore};

#[derive(Args)]
pub(crate) struct StoreFlags {
    /// The store: local, or the address of a Redis or Valkey, as `redis://127.0.0.1` (with the
    /// feature `redis`)
    #[arg(long, value_name = "local|URL", default_value = "local")]
    store: String,
    /// Decisions while Redis does not answer: open allows, closed rejects with 503, fallback
    /// decides locally
    #[arg(long, value_name = "HOW", default_value = "fallback")]
    outage: Outage,
    /// Timeout of a Redis decision, in milliseconds
    #[arg(long, value_name = "MS", default_value = "100",
        value_parser = clap::value_parser!(u64).range(1..=60_000))]
    budget: u64,
    /// Maximum number of keys in debt in the embedded store
    #[arg(long, value_name = "N", default_value = "131072",
        value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    capacity: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Outage {
    Open,
    Closed,
    Fallback,
}

impl StoreFlags {
    /// Opens the selected store.
    pub(crate) async fn open(&self) -> Result<Arc<DynStore<Infallible>>, String> {
        let local = LocalStore::with_capacity(self.capacity as usize);
        match self.store.as_str() {
            "local" => Ok(local.boxed()),
            url if url.contains("://") => self.shared(url, local).await,
            other => Err(format!("--store {other}: give local or redis://host[:port][/db]")),
        }
    }

    #[cfg(not(feature = "redis"))]
    async fn shared(&self, _: &str, _: LocalStore) -> Result<Arc<DynStore<Infallible>>, String> {
        // The address may contain a password.
        Err("--store is an address: build with --features redis, or give local".to_owned())
    }

    #[cfg(feature = "redis")]
    async fn shared(
        &self,
        url: &str,
        local: LocalStore,
    ) -> Result<Arc<DynStore<Infallible>>, String> {
        use std::time::Duration;
        use tower_sluice::{RedisStore, store::RedisErrorKind};

        let redis = match RedisStore::connect(url).await {
            Ok(redis) => redis,
            // The server may start later.
            Err(error) if error.kind() == RedisErrorKind::Disconnected => {
                eprintln!("starting without it: {error}");
                RedisStore::connect(url).lazy().map_err(|error| error.to_string())?
            }
            Err(error) => return Err(error.to_string()),
        };
        let redis = redis.timeout(Duration::from_millis(self.budget)).breaker();
        Ok(match self.outage {
            Outage::Open => redis.fail_open().boxed(),
            Outage::Closed => redis.fail_closed().boxed(),
            Outage::Fallback => redis.fallback(local, 1).boxed(),
        })
    }
}
