//! Requests of steady keys and of temporary keys, equally many of each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Interval, interval};
use tower_sluice::{Key, Limiter, Quota, Store};

/// A quota whose load is twice its rate. Two seconds without a request cost it nothing.
pub(crate) const STEADY: Quota = Quota::per_second(50).with_burst(100);
const CHURNING: Quota = Quota::per_minute(10);
pub(crate) const KEYS: usize = 32;
const TICK: Duration = Duration::from_millis(10);
/// Concurrent tasks, each with its part of the keys.
const TASKS: usize = 4;

pub(crate) struct Load<S> {
    limiter: Limiter<S>,
    counts: Arc<Counts>,
    ticks: Interval,
    /// The temporary keys so far.
    gone: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Units of each steady key.
    pub(crate) admitted: [AtomicU64; KEYS],
    pub(crate) decisions: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl<S> Load<S>
where
    S: Store<Future: Send, Error: Send> + Clone + Send + Sync + 'static,
{
    pub(crate) fn on(store: S) -> Self {
        let (limiter, counts) = (Limiter::named("default", store), Arc::default());
        Self { limiter, counts, ticks: interval(TICK), gone: 0 }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sends one request for every steady key, and as many for temporary keys: two for each of
    /// those.
    pub(crate) async fn tick(&mut self) {
        self.ticks.tick().await;
        let tasks = (0..TASKS).map(|task| {
            let (limiter, counts, gone) = (self.limiter.clone(), self.counts.clone(), self.gone);
            tokio::spawn(async move {
                let (part, limiter, counts) = ((task..KEYS).step_by(TASKS), &limiter, &counts);
                let asked = part.map(|key| async move {
                    let fresh = Key::from(gone + key as u64 / 2);
                    ask(limiter, counts, fresh, &CHURNING).await;
                    if ask(limiter, counts, steady(key), &STEADY).await {
                        counts.admitted[key].fetch_add(1, Relaxed);
                    }
                });
                join_all(asked).await;
            })
        });
        for task in join_all(tasks).await {
            task.expect("no panic");
        }
        self.gone += KEYS as u64 / 2;
    }

    /// Takes from every steady key until it is denied.
    pub(crate) async fn drain(&mut self) {
        for (key, admitted) in self.counts.admitted.iter().enumerate() {
            while ask(&self.limiter, &self.counts, steady(key), &STEADY).await {
                admitted.fetch_add(1, Relaxed);
            }
        }
    }
}

fn steady(key: usize) -> Key {
    Key::from(format!("steady {key}"))
}

async fn ask<S: Store>(limiter: &Limiter<S>, counts: &Counts, key: Key, quota: &Quota) -> bool {
    counts.decisions.fetch_add(1, Relaxed);
    match limiter.try_take(key, quota, 1).await {
        Ok(decision) => decision.is_allowed(),
        Err(_) => {
            counts.errors.fetch_add(1, Relaxed);
            false
        }
    }
}
