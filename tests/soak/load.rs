//! Requests of keys that stay and keys that come and go, as many of these as of those.

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

/// Asked for twice as often as it admits; two seconds without a request cost it nothing.
pub(crate) const STEADY: Quota = Quota::per_second(50).burst(100);
const CHURNING: Quota = Quota::per_minute(10);
pub(crate) const KEYS: usize = 32;
const TICK: Duration = Duration::from_millis(10);
/// Tasks at a time, each of which asks for its part of the keys.
const TASKS: usize = 4;

pub(crate) struct Load<S> {
    limiter: Limiter<S>,
    counts: Arc<Counts>,
    ticks: Interval,
    /// Keys so far that came and went.
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
        let (limiter, counts) = (Limiter::new(store), Arc::default());
        Self { limiter, counts, ticks: interval(TICK), gone: 0 }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// One request of every steady key, and as many of others: each of those is asked for twice.
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

    /// Asks for every steady key until it is refused.
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
    match limiter.take(key, quota, 1).await {
        Ok(decision) => decision.is_allowed(),
        Err(_) => {
            counts.errors.fetch_add(1, Relaxed);
            false
        }
    }
}
