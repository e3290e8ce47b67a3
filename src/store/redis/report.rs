//! Settings of slots, and the task that reports freed slots and renews held ones.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    RedisStore,
    error::RedisError,
    holds::{OnLost, Reporter},
    link::runtime,
    request::{Request, ScriptOp},
    slot_call::SlotCall,
};
use crate::store::{
    BoxFuture,
    setting::{SettingError, literal},
};

/// The maximum number of calls that report at the same time.
const MAX_CALLS: usize = 16;
/// The pause after a report that failed.
const RETRY: Duration = Duration::from_millis(250);

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Sets the time to live of [slots](crate::Quota::concurrent) without a report. Defaults to 10 s.
    ///
    /// A process reports the slots that it holds every third of this time. The slots of a process
    /// that ends without freeing them, or that cannot reach the server, are free after this time.
    ///
    /// All processes that share accounts need the same time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is less than 1 s or more than one day.
    #[track_caller]
    #[must_use]
    pub fn slot_ttl(self, time: Duration) -> Self {
        literal(self.try_slot_ttl(time))
    }

    /// Fallible form of [`slot_ttl`](RedisStore::slot_ttl), for a time that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if `time` is less than 1 s or more than one day. The error contains the field, its
    /// value and the fix.
    pub fn try_slot_ttl(self, time: Duration) -> Result<Self, SettingError> {
        const FIX: &str = "give 1 s to one day, such as 10 s; slots of a lost process are not free \
                           before";
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time) {
            return Err(SettingError::new("redis: slot_ttl", format_args!("{time:?}"), FIX));
        }
        Ok(self.with_slot_ttl(time))
    }

    /// Sets what happens to requests whose [slots](crate::Quota::concurrent) were lost. Defaults to
    /// [`OnLost::Fence`].
    #[must_use]
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.reporter = Arc::new(settings.reporter.with_on_lost(on_lost));
        self
    }

    /// Returns a store on the same accounts, which holds slots as another process.
    pub(crate) fn with_slot_ttl(mut self, time: Duration) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.reporter = Arc::new(settings.reporter.with_life(time));
        self
    }

    /// Creates the reports of a call.
    pub(super) fn report_slots_with(
        &self,
        request: &Request,
        op: ScriptOp<'_>,
    ) -> Result<SlotCall, RedisError> {
        let reporter = &self.settings.reporter;
        if !op.reports_slots() {
            return Ok(reporter.without_reports());
        }
        let call = reporter.begin(request, matches!(op, ScriptOp::Take));
        if !call.reports.is_empty() && reporter.should_start() {
            let task: BoxFuture<()> = Box::pin(ReportTask(reporter.clone()).run(self.clone()));
            // A runtime that shuts down drops the task, which then starts again with the next call.
            drop(runtime()?.spawn(task));
        }
        Ok(call)
    }

    /// Reports the accounts with changes, or with `all` all accounts with held slots. Returns `None`
    /// if no account is left, or the number of reports.
    async fn report_due(&self, all: bool) -> Option<Result<usize, RedisError>> {
        let requests = self.settings.reporter.due(all, self.settings.sharded)?;
        let mut failed = None;
        for some in requests.chunks(MAX_CALLS) {
            let calls = some.iter().map(|request| self.execute(request, ScriptOp::Take));
            failed = join_all(calls).await.into_iter().find_map(Result::err).or(failed);
        }
        Some(failed.map_or(Ok(requests.len()), Err))
    }

    /// Reports all held and freed slots now.
    #[cfg(feature = "testing")]
    pub(crate) async fn report_now(&self) -> Result<(), RedisError> {
        self.report_due(true).await.unwrap_or(Ok(0)).map(drop)
    }
}

/// The task of a process. It ends when the process holds no slots.
struct ReportTask(Arc<Reporter>);

impl Drop for ReportTask {
    fn drop(&mut self) {
        self.0.stopped();
    }
}

impl ReportTask {
    async fn run<C>(self, store: RedisStore<C>)
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let (reporter, period) = (&self.0, self.0.life / 3);
        let mut renew_at = Instant::now() + period;
        loop {
            let renews = Instant::now() >= renew_at;
            if renews {
                renew_at = Instant::now() + period;
            }
            match store.report_due(renews).await {
                None => return,
                Some(Ok(0)) => drop(timeout_at(renew_at, reporter.wake.notified()).await),
                Some(Ok(_)) => {}
                Some(Err(_)) => sleep(RETRY).await,
            }
        }
    }
}
