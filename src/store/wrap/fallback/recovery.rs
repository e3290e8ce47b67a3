//! Charges the inner store late for what was admitted without it.

use std::convert::Infallible;

use tokio::runtime::Handle;

use super::{
    AtOnce, Fallback, Stores,
    journal::{Address, Admitted},
    share::shares,
};
use crate::{
    decision::Decision,
    store::{Answer, BoxError, Charge, Store},
};

impl<S, L> Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = AtOnce> + Send + Sync + 'static,
{
    /// The inner store failed in a call that began at `begun`.
    pub(super) fn failed(&self, begun: u64, error: S::Error) {
        if self.stores.health.fails(begun) {
            self.stores.journal.remind();
            if self.stores.health.tells() {
                log_failed(&error.into());
            }
        }
    }

    /// The inner store answered a call that began at `begun`.
    pub(super) fn answered(&self, begun: u64) {
        let Stores { health, journal, .. } = &*self.stores;
        let tell = health.recovers(begun) && health.told();
        // without a runtime it stays due
        if (tell || journal.is_due())
            && let Ok(runtime) = Handle::try_current()
            && journal.open(tell)
        {
            let reader = Reader(self.clone());
            drop(runtime.spawn(async move { reader.read().await }));
        }
    }

    /// Charges what is still owed, and strikes it out; whether it was anything, `None` where the
    /// inner store failed.
    async fn charge_account(&self, address: &Address, admitted: &mut Admitted) -> Option<bool> {
        let Admitted { quotas, units } = admitted;
        let charge = Charge::new(address.0, &address.1, quotas).cost(0);
        let look = |shares: &[Charge<'_>]| self.stores.local.take(shares).now();
        let here = shares(&[charge], self.processes, look);
        let mut charged = false;
        for (outcome, units) in here.outcomes().iter().zip(units) {
            // what has flowed back would have come back to the inner store's account too
            let late = outcome.owed().min(i64::try_from(*units).unwrap_or(i64::MAX));
            if late > 0 {
                self.settle_late(&charge.only(outcome.place()), -late).await?;
                charged = true;
            }
            *units = 0;
        }
        Some(charged)
    }

    async fn settle_late(&self, charge: &Charge<'_>, units: i64) -> Option<()> {
        let begun = self.stores.health.now();
        let settled = |answer: Result<Decision, S::Error>| {
            answer.map(drop).map_err(|error| self.failed(begun, error)).ok()
        };
        let later = match self.stores.inner.settle(charge, units) {
            Answer::Now(answer) => return settled(answer),
            Answer::Later(later) => later,
        };
        settled(later.await)
    }
}

/// Who reads the journal. Dropped, be it with its runtime, it leaves the rest to the next one.
struct Reader<S, L>(Fallback<S, L>);

impl<S, L> Drop for Reader<S, L> {
    fn drop(&mut self) {
        self.0.stores.journal.close();
    }
}

impl<S, L> Reader<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = AtOnce> + Send + Sync + 'static,
{
    /// Reads until the journal is empty, or the inner store fails again.
    async fn read(self) {
        let Self(store) = &self;
        let journal = &store.stores.journal;
        let mut accounts = 0;
        'reading: loop {
            let addresses = journal.addresses();
            if addresses.is_empty() {
                break;
            }
            for address in addresses {
                let Some(mut admitted) = journal.tear_out(&address) else { continue };
                match store.charge_account(&address, &mut admitted).await {
                    Some(charged) => accounts += u64::from(charged),
                    None => {
                        journal.put_back(address, admitted);
                        break 'reading;
                    }
                }
            }
        }
        if journal.tells() {
            log_recovered(accounts);
        }
    }
}

#[cfg(feature = "tracing")]
fn log_failed(error: &BoxError) {
    tracing::warn!("the store fails, and its local fallback decides: {error}");
}

#[cfg(not(feature = "tracing"))]
fn log_failed(_: &BoxError) {}

#[cfg(feature = "tracing")]
fn log_recovered(accounts: u64) {
    tracing::info!("the store answers again; accounts charged late: {accounts}");
}

#[cfg(not(feature = "tracing"))]
fn log_recovered(_: u64) {}
