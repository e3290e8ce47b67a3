//! The store under test: Redis behind a timeout, a breaker and a policy.

use std::{convert::Infallible, sync::Arc, time::Duration};

use redis::aio::ConnectionLike;
use serde::{Deserialize, Serialize};
use tower_sluice::{
    LocalStore, Quota, RedisStore, StoreExt,
    store::{Breaker, DynStore, Link, RedisBuilder, RedisError, Timeout},
};

use crate::witness::{Heard, Witness};

/// The limit of every key. The load is twice as high.
pub(crate) const QUOTA: Quota = Quota::per_second(10).with_burst(10);
/// The burst of every key, which is the most that a loss of state or a fallback may add.
pub(crate) const BURST: u64 = 10;
/// The timeout of a decision.
pub(crate) const BUDGET: Duration = Duration::from_millis(100);
/// App processes, or their stand-ins.
pub(crate) const APPS: usize = 2;

/// The store under test, inside the policy.
pub(crate) type Guarded<C = Link> = Breaker<Timeout<RedisStore<C>>>;

/// The policy for decisions that Redis does not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Policy {
    Fallback,
    FailOpen,
    FailClosed,
}

/// The address of Redis for an app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Door {
    Server(String),
    Cluster(Vec<String>),
    Sentinels(Vec<String>, String),
}

/// A store, and its observable state beside its decisions.
pub(crate) struct Stack {
    pub(crate) store: Arc<DynStore<Infallible>>,
    pub(crate) heard: Heard,
    pub(crate) healed: Box<dyn Fn() -> u64>,
}

impl Stack {
    pub(crate) async fn build(door: &Door, policy: Policy) -> Result<Self, RedisError> {
        Ok(match door {
            Door::Server(url) => Self::open(RedisStore::connect(url), policy).await?,
            Door::Cluster(urls) => Self::open(RedisStore::cluster(&words(urls)), policy).await?,
            Door::Sentinels(urls, name) => {
                Self::open(RedisStore::sentinel(&words(urls), name), policy).await?
            }
        })
    }

    async fn open<C>(builder: RedisBuilder<C>, policy: Policy) -> Result<Self, RedisError>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        // Readable keys let a fault select accounts by name.
        let store = builder.readable_keys().await?;
        let (heard, counted) = (Heard::default(), store.clone());
        let guarded = Witness::new(store.timeout(BUDGET).breaker(), heard.clone());
        let processes = u32::try_from(APPS).expect("few");
        let store = match policy {
            Policy::Fallback => guarded.fallback(LocalStore::new(), processes).boxed(),
            Policy::FailOpen => guarded.fail_open().boxed(),
            Policy::FailClosed => guarded.fail_closed().boxed(),
        };
        Ok(Self { store, heard, healed: Box::new(move || counted.healed()) })
    }
}

fn words(urls: &[String]) -> Vec<&str> {
    urls.iter().map(String::as_str).collect()
}
