//! The Redis store with a fake clock.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::aio::ConnectionLike;
use tokio::task::yield_now;

use super::Subject;
use crate::store::{BoxFuture, Link, RedisError, RedisStore};

/// The time to live of slots in cases with one process.
const UNLIMITED: Duration = Duration::from_secs(365 * 86_400);

/// [`RedisStore`] with a fake clock, for tests with a real server.
///
/// Each opened store has a random prefix, so that tests can share a server. The keys of a store
/// expire within a quarter of an hour.
///
/// ```no_run
/// use tower_sluice::testing::{Redis, properties};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let mut redis = Redis::connect("redis://127.0.0.1").await?;
/// properties::all_or_nothing(&mut redis).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Redis<C = Link> {
    /// The last opened store.
    store: RedisStore<C>,
    hands: Arc<AtomicU64>,
}

impl Redis {
    /// Connects to the server at `url`.
    ///
    /// # Errors
    ///
    /// Fails if [`RedisStore::connect`] fails.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        Ok(Self::new(RedisStore::connect(url).await?))
    }
}

impl<C> Redis<C> {
    /// Creates a subject that uses the servers of `store`.
    #[must_use]
    pub fn new(store: RedisStore<C>) -> Self {
        Self { store, hands: Arc::default() }
    }
}

impl<C> Subject for Redis<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    type Store = RedisStore<C>;

    fn open(&mut self) -> RedisStore<C> {
        let random = RandomState::new().hash_one(0);
        self.hands = Arc::default();
        let store = self.store.clone().prefix(&format!("test-{random:x}"));
        self.store = store.with_test_clock(self.hands.clone()).with_slot_ttl(UNLIMITED);
        self.store.clone()
    }

    fn join(&mut self, lease: Duration) -> Option<RedisStore<C>> {
        Some(self.store.clone().with_slot_ttl(lease))
    }

    fn renew(&mut self, store: &RedisStore<C>) -> BoxFuture<()> {
        let store = store.clone();
        Box::pin(async move { drop(store.renew_slots(None).await) })
    }

    fn finish(&mut self, store: &RedisStore<C>) -> BoxFuture<()> {
        let store = store.clone();
        Box::pin(async move {
            // The next decision shows the accounts, or fails, too.
            drop(store.free_slots().await);
            while store.is_undoing() {
                yield_now().await;
            }
        })
    }

    fn set(&mut self, now: Duration) {
        self.hands.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn steps_back(&self) -> bool {
        true
    }
}
