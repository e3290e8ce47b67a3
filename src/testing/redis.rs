//! The Redis store with a fake clock.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
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
    store: RedisStore<C>,
    /// The last opened store.
    opened: Option<RedisStore<C>>,
    hands: Arc<AtomicU64>,
    /// Has one owner for the opened store, and one for each call that undoes charges.
    undoing: Weak<()>,
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

impl<C> Redis<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Creates a subject that uses the servers of `store`.
    #[must_use]
    pub fn new(store: RedisStore<C>) -> Self {
        Self { store, opened: None, hands: Arc::default(), undoing: Weak::new() }
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
        let store = store.with_test_clock(self.hands.clone()).with_slot_ttl(UNLIMITED);
        self.undoing = store.undoing();
        self.opened = Some(store.clone());
        store
    }

    fn join(&mut self, lease: Duration) -> Option<RedisStore<C>> {
        self.opened.clone().map(|store| store.with_slot_ttl(lease))
    }

    fn freed(&mut self, store: &RedisStore<C>) -> BoxFuture<()> {
        let store = store.clone();
        // The next decision shows the accounts, or fails, too.
        Box::pin(async move { drop(store.free_slots().await) })
    }

    fn renew(&mut self, store: &RedisStore<C>) -> BoxFuture<()> {
        let store = store.clone();
        Box::pin(async move { drop(store.renew_slots(None).await) })
    }

    fn undone(&mut self) -> BoxFuture<()> {
        let undoing = self.undoing.clone();
        Box::pin(async move {
            while undoing.strong_count() > 1 {
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
