//! Counts the processes that run.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::aio::ConnectionLike;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    RedisStore,
    error::RedisError,
    protocol::{EncodedPlan, script::ScriptKind},
};
use crate::store::{Instances, instances::Part, nanos};

/// The time between two registrations of a process.
const PERIOD: Duration = Duration::from_secs(3);
/// The time after which a process that does not register is not counted.
const TTL: Duration = Duration::from_secs(10);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Counts the processes that share this store while they run, for
    /// [`fallback`](crate::StoreExt::fallback) and
    /// [`Leased::instances`](crate::store::Leased::instances).
    ///
    /// A task registers this process on the server every three seconds. It ends with the last clone of
    /// the value, or with the tokio runtime of this call. A process that no longer registers is counted
    /// for ten more seconds.
    ///
    /// A larger number applies at once. A smaller one applies when two registrations in a row have
    /// returned it, because a server that lost its data first counts too few. Until the first
    /// registration, the number is `expected`. While the server fails, the last number applies.
    ///
    /// The parts of all processes add up to each limit while their number does not change. If it does
    /// while the server fails, they do not. Create one value for each process, and clone it for several
    /// stores.
    ///
    /// ```no_run
    /// use tower_sluice::{LocalStore, RedisStore, StoreExt, store::Timeout};
    ///
    /// # async fn run() -> Result<(), tower_sluice::store::RedisError> {
    /// let redis = RedisStore::connect("redis://127.0.0.1").await?;
    /// let instances = redis.live_instances(4);
    /// let store = redis
    ///     .timeout(Timeout::DEFAULT)
    ///     .breaker()
    ///     .fallback(LocalStore::with_capacity(100_000), instances);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `expected` is 0, or outside of a tokio runtime.
    #[track_caller]
    #[must_use]
    pub fn live_instances(&self, expected: u32) -> Instances {
        let instances = Instances::from(expected);
        let counted = Arc::downgrade(&instances.0);
        tokio::spawn(self.clone().keep_registering(counted));
        instances
    }

    /// Registers this process while a clone of its value exists.
    async fn keep_registering(self, counted: Weak<AtomicU64>) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            ticks.tick().await;
            if counted.strong_count() == 0 {
                return;
            }
            let part = self.register().await.inspect_err(RedisError::count).ok();
            if let Some(counted) = counted.upgrade()
                && let Some(part) = part
            {
                adopt(&counted, part, last);
            }
            last = part;
        }
    }

    /// Registers this process. Returns its part.
    async fn register(&self) -> Result<Part, RedisError> {
        let ttl = EncodedPlan::default().int::<7>(nanos(TTL) / 1_000);
        let args = ttl.int::<8>(self.settings.slots.store).0;
        let script = self.script(ScriptKind::Instances, []);
        let key = self.settings.addresses.instances();
        self.run(script, &[key], vec![args], |reply| {
            let part = redis::from_redis_value(reply).ok();
            let part = part.and_then(|(rank, count)| Part::ranked(count, rank));
            part.ok_or_else(|| RedisError::invalid_reply("not a rank and a number"))
        })
        .await
    }
}

/// Stores the part of this process, unless the number of processes falls for the first time.
fn adopt(counted: &AtomicU64, part: Part, last: Option<Part>) {
    let current = Part::unpack(counted.load(Relaxed)).instances;
    let falls = part.instances < current;
    if !falls || last.is_some_and(|last| last.instances == part.instances) {
        counted.store(part.pack(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_number_applies_at_once_and_a_smaller_one_when_it_is_returned_again() {
        let (instances, mut last) = (Instances::from(4), None);
        let mut register = |count, rank| {
            let part = Part::ranked(count, rank).expect("a rank");
            adopt(&instances.0, part, last.replace(part));
            instances.count()
        };
        assert_eq!(
            [(9, 2), (9, 3)].map(|(count, rank)| register(count, rank)),
            [9, 9]
        );
        // The server lost its data, and the processes register again.
        assert_eq!(
            [(1, 0), (9, 2)].map(|(count, rank)| register(count, rank)),
            [9, 9]
        );
        assert_eq!(
            [(2, 0), (2, 0)].map(|(count, rank)| register(count, rank)),
            [9, 2]
        );
        assert_eq!(instances.part().of(5), 2);
        assert_eq!(Part::ranked(2, 2), None);
    }
}
