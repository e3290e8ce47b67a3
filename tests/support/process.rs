//! Processes that share a store which may fail, each with its own fallback store.

use std::convert::Infallible;

use tower_sluice::{
    Decision, Limiter, LocalStore, Quota, StoreExt,
    decision::Outcome,
    store::{Answer, Fallback, LocalShare},
};

use super::{
    driven::Time,
    shaky::{Mood, Shaky},
};

pub(crate) const HOURLY: Quota = Quota::per_hour(100);

/// One process: the shared store, and its own.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) shared: Shaky,
    pub(crate) local: LocalStore,
    pub(crate) store: Fallback<Shaky, LocalShare<LocalStore>>,
}

impl Process {
    /// Creates one of `n` processes without earlier requests.
    pub(crate) fn one_of(n: u32, time: &Time) -> Self {
        Self::beside(&Shaky::new(time.0.store(1_024)), n, time)
    }

    /// Creates another process that shares the store.
    pub(crate) fn beside(shared: &Shaky, n: u32, time: &Time) -> Self {
        let (shared, local) = (shared.clone(), time.0.store(1_024));
        let store = shared.clone().fallback(local.clone(), n);
        Self { shared, local, store }
    }

    pub(crate) fn limiter(&self) -> Limiter<Fallback<Shaky, LocalShare<LocalStore>>> {
        Limiter::named("default", self.store.clone())
    }

    pub(crate) async fn take(&self, key: &str, quotas: impl AsRef<[Quota]>, cost: u32) -> Decision {
        self.limiter().take(key, &quotas, cost).await
    }

    pub(crate) async fn adjust(
        &self,
        key: &str,
        quotas: impl AsRef<[Quota]>,
        units: i64,
    ) -> Decision {
        let count = u32::try_from(units.unsigned_abs()).expect("few");
        match units {
            ..0 => self.limiter().refund(key, &quotas, count).await,
            _ => self.limiter().charge(key, &quotas, count).await,
        }
    }

    /// Returns the number of single units that pass, at most `most`.
    pub(crate) async fn admits(&self, key: &str, quota: Quota, most: u32) -> u32 {
        let mut passed = 0;
        while passed < most && self.take(key, quota, 1).await.is_allowed() {
            passed += 1;
        }
        passed
    }

    /// Restores the shared store, and waits until all late charges have reached it.
    pub(crate) async fn recover(&self) {
        self.shared.set_mood(Mood::Well);
        drop(self.take("recovery", HOURLY, 0).await);
        settled().await;
    }

    /// Returns the units left in the shared store.
    pub(crate) fn shared_left(&self, key: &str, quotas: impl AsRef<[Quota]>) -> Vec<u32> {
        left(&Limiter::named("default", self.shared.store.clone()).peek(key, &quotas).now())
    }

    /// Returns the units used in this process's store, against the whole quota: each unit of the
    /// share counts.
    pub(crate) fn local_owes(&self, key: &str, quota: Quota) -> u32 {
        let look = Limiter::named("default", self.local.clone()).peek(key, &quota).now();
        quota.limit() - left(&look)[0]
    }
}

pub(crate) async fn decided<F: Future<Output = Result<Decision, Infallible>>>(
    answer: Answer<F>,
) -> Decision {
    answer.await.expect("infallible")
}

pub(crate) fn left(decision: &Decision) -> Vec<u32> {
    decision.outcomes().iter().map(Outcome::remaining).collect()
}

/// Lets detached tasks run.
pub(crate) async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
