//! The store under test: Redis behind a budget, a breaker and a policy.

use std::{convert::Infallible, sync::Arc, time::Duration};

use redis::aio::ConnectionLike;
use serde::{Deserialize, Serialize};
use tower_sluice::{
    LocalStore, Quota, RedisStore, Store,
    store::{Breaker, Deadline, DynStore, Link, RedisError},
};

use crate::witness::{Heard, Witness};

/// The limit of every key, which asks for twice as much.
pub(crate) const QUOTA: Quota = Quota::per_second(10).burst(10);
/// Its burst: what a loss of state, or a fallback as a whole, may admit above it.
pub(crate) const BURST: u64 = 10;
/// What a decision may take.
pub(crate) const BUDGET: Duration = Duration::from_millis(100);
/// App processes, or what stands for them.
pub(crate) const APPS: usize = 2;

/// What is under test, inside the policy.
pub(crate) type Guarded<C = Link> = Breaker<Deadline<RedisStore<C>>>;

/// What becomes of a decision that Redis did not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Policy {
    Fallback,
    FailOpen,
    FailClosed,
}

/// Where an app finds Redis.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Door {
    Server(String),
    Cluster(Vec<String>),
    Sentinels(Vec<String>, String),
}

/// A store, and what can be learnt of it beside its decisions.
pub(crate) struct Stack {
    pub(crate) store: Arc<DynStore<Infallible>>,
    pub(crate) heard: Heard,
    pub(crate) healed: Box<dyn Fn() -> u64>,
}

impl Stack {
    pub(crate) async fn build(door: &Door, policy: Policy) -> Result<Self, RedisError> {
        Ok(match door {
            Door::Server(url) => Self::dress(RedisStore::connect(url).await?, policy),
            Door::Cluster(urls) => Self::dress(RedisStore::cluster(&words(urls)).await?, policy),
            Door::Sentinels(urls, name) => {
                Self::dress(RedisStore::sentinel(&words(urls), name).await?, policy)
            }
        })
    }

    fn dress<C>(store: RedisStore<C>, policy: Policy) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        // readable, so that a fault can tell whose account it does something to
        let store = store.readable_keys();
        let (heard, counted) = (Heard::default(), store.clone());
        let guarded = Witness::new(store.deadline(BUDGET).breaker(), heard.clone());
        let processes = u32::try_from(APPS).expect("few");
        let store = match policy {
            Policy::Fallback => guarded.fallback(LocalStore::new()).one_of(processes).boxed(),
            Policy::FailOpen => guarded.fail_open().boxed(),
            Policy::FailClosed => guarded.fail_closed().boxed(),
        };
        Self { store, heard, healed: Box::new(move || counted.healed()) }
    }
}

fn words(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}
