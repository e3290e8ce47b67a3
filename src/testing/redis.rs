//! The Redis store with a fake clock.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use redis::aio::ConnectionLike;

use super::Subject;
use crate::store::{BoxFuture, RedisStore, nanos};

/// The time to live of slots in cases with one process.
const UNLIMITED: Duration = Duration::from_secs(365 * 86_400);

/// A store with a fake clock on a real server.
///
/// Each opened store has a random prefix, so that tests can share a server. The keys of a store
/// expire within a quarter of an hour.
///
/// ```no_run
/// use tower_sluice::{RedisStore, testing::properties};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut redis = RedisStore::connect("redis://127.0.0.1").await?;
/// properties::all_or_nothing(&mut redis).await?;
/// # Ok(())
/// # }
/// ```
impl<C> Subject for RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Store = Self;

    fn open(&mut self) -> Self {
        let random = RandomState::new().hash_one(0);
        let store = self.clone().with_test_clock(format!("test-{random:x}"));
        *self = store.with_slot_ttl(UNLIMITED);
        self.clone()
    }

    fn join(&mut self, lease: Duration) -> Option<Self> {
        Some(self.clone().with_slot_ttl(lease))
    }

    fn renew(&mut self, store: &Self) -> BoxFuture<()> {
        let store = store.clone();
        Box::pin(async move { drop(store.renew_slots().await) })
    }

    fn finish(&mut self, store: &Self) -> BoxFuture<()> {
        let store = store.clone();
        // The next decision shows the accounts, or fails, too.
        Box::pin(async move { drop(store.free_slots().await) })
    }

    fn set(&mut self, now: Duration) {
        self.set_test_clock(nanos(now));
    }

    fn steps_back(&self) -> bool {
        true
    }
}
