//! Charges to the inner store after an outage, for units that were allowed locally.

use std::{convert::Infallible, time::Duration};

use tokio::runtime::Handle;

use super::{
    Fallback, Immediate, Stores,
    journal::{AccountId, Admitted},
};
use crate::{
    decision::Decision,
    log::info,
    store::{Answer, Charge, Op, Store},
};

/// The time before late charges are tried again, if some servers of the inner store failed.
const REPLAY_PAUSE: Duration = Duration::from_secs(1);

impl<S, L> Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    /// Records the failure of a call to the inner store.
    pub(super) fn record_failure(&self, epoch: u64, error: S::Error) {
        let Stores { outages, journal, .. } = &*self.stores;
        if outages.record_failure(epoch, "the local fallback decides", error) {
            journal.mark_due();
        }
    }

    /// Records the success of a call to the inner store, and charges recorded units.
    pub(super) fn record_success(&self, epoch: u64) {
        let Stores { outages, journal, .. } = &*self.stores;
        let should_log = outages.record_success(epoch);
        // Without a runtime, the journal stays due.
        if (should_log || journal.is_due())
            && let Ok(runtime) = Handle::try_current()
            && journal.start_replay(should_log)
        {
            let replay = Replay(self.clone());
            drop(runtime.spawn(async move { replay.run().await }));
        }
    }

    /// Charges the recorded units of an account, except those that were refilled since the outage.
    ///
    /// Returns `true` if units were charged, or `None` if the inner store failed.
    async fn charge_account(&self, address: &AccountId, admitted: &mut Admitted) -> Option<bool> {
        let Admitted { quotas, units } = admitted;
        let charge = Charge::new(address.0, &address.1, quotas).with_cost(0);
        let local = self.call_share(Op::Take(&[charge]));
        let mut charged = false;
        for (outcome, units) in local.outcomes().iter().zip(units) {
            // Units that were refilled here would also have been refilled in the inner store.
            let late = outcome.owed().min(i64::try_from(*units).unwrap_or(i64::MAX));
            if late > 0 {
                self.charge_late(&charge.with_quota_index(outcome.place()), late).await?;
                charged = true;
            }
            *units = 0;
        }
        Some(charged)
    }

    async fn charge_late(&self, charge: &Charge<'_>, units: i64) -> Option<()> {
        let epoch = self.stores.outages.epoch();
        let record = |answer: Result<Decision, S::Error>| {
            answer.map(drop).map_err(|error| self.record_failure(epoch, error)).ok()
        };
        let later = match self.stores.inner.call(Op::Adjust(charge, units)) {
            Answer::Now(answer) => return record(answer),
            Answer::Later(later) => later,
        };
        record(later.await)
    }
}

/// A task that charges the recorded units to the inner store.
struct Replay<S, L>(Fallback<S, L>);

impl<S, L> Drop for Replay<S, L> {
    fn drop(&mut self) {
        self.0.stores.journal.end_replay();
    }
}

impl<S, L> Replay<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = Immediate> + Send + Sync + 'static,
{
    /// Charges accounts until the journal is empty or the inner store fails.
    async fn run(self) {
        let Self(store) = &self;
        let (journal, mut accounts, mut failed) = (&store.stores.journal, 0, false);
        while !failed {
            let addresses = journal.addresses();
            if addresses.is_empty() {
                break;
            }
            for address in addresses {
                let Some(mut admitted) = journal.remove(&address) else { continue };
                match store.charge_account(&address, &mut admitted).await {
                    Some(charged) => accounts += u64::from(charged),
                    None => {
                        failed = true;
                        journal.restore(address, admitted);
                        // The other accounts may be on servers that work.
                        if !store.stores.inner.isolates_failures() {
                            break;
                        }
                    }
                }
            }
        }
        if journal.should_log() {
            info!("the store recovered; accounts charged late: {accounts}");
        }
        if failed && store.stores.inner.isolates_failures() {
            // Other calls still succeed, and each of them would start a replay.
            journal.pause(REPLAY_PAUSE);
        }
    }
}
