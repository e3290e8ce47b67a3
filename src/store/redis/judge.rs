//! The end of a call whose answer is late.

use std::{any::Any, sync::Arc, time::Duration};

use redis::aio::ConnectionLike;
use tokio::time::{Instant, timeout};

use super::{
    RedisStore,
    connection::{Link, TIMEOUT, runtime},
    error::{RedisError, RedisErrorKind},
    protocol::{Request, ScriptOp},
};
use crate::{
    decision::{Decision, Outcome, Source},
    log::warn,
    store::{BoxFuture, Context},
};

/// Answers are taken for this many times the limit of a call, unless the server is silent.
const PATIENCE: u32 = 10;
/// The wait of a denial because this process is busy.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The future of a decision.
pub(super) type Deciding = BoxFuture<Result<Decision, RedisError>>;

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Returns the connection to the server of a hash slot, if this store has opened it.
    pub(super) fn link(&self, hash_slot: u16) -> Option<Link> {
        let own: Option<&Link> = (&self.connection as &dyn Any).downcast_ref();
        match own {
            Some(own) => Some(own.clone()),
            None => Some(self.cluster_link()?.master(hash_slot)?.link.clone()),
        }
    }

    /// Returns the limit of a call that this store ends by itself, or `None` if its connections do not
    /// note silence.
    fn limit(&self, context: &Context<'_>) -> Option<Duration> {
        let is_judged = match self.cluster_link() {
            Some(cluster) => cluster.is_judged(),
            None => self.link(0)?.is_judged(),
        };
        is_judged.then(|| context.keep_limit().unwrap_or(TIMEOUT))
    }

    /// Returns the time after which one of the servers of a request can have been silent for `time`.
    fn until_silent_for(&self, request: &Request, time: Duration) -> Duration {
        let accounts = request.accounts.iter();
        let links = accounts.map(|account| self.link(account.hash_slot(true)));
        let left =
            links.map(|link| link.map_or(Duration::ZERO, |link| link.until_silent_for(time)));
        left.min().unwrap_or(time)
    }

    /// Returns a call that ends if a server is silent, which is an error, or after ten times the limit,
    /// which is a denial. Returns the call itself if the connections do not note silence.
    pub(super) fn judged(
        &self,
        context: &Context<'_>,
        request: Arc<Request>,
        op: ScriptOp<'static>,
        call: Deciding,
    ) -> Deciding {
        match self.limit(context) {
            Some(limit) => Box::pin(self.clone().judge(request, op, limit, call)),
            None => call,
        }
    }

    async fn judge(
        self,
        request: Arc<Request>,
        op: ScriptOp<'static>,
        limit: Duration,
        mut call: Deciding,
    ) -> Result<Decision, RedisError> {
        // The timers below need a runtime.
        let runtime = runtime()?;
        let start = Instant::now();
        let mut pause = limit;
        loop {
            if let Ok(decision) = timeout(pause, &mut call).await {
                return decision;
            }
            let left = self.until_silent_for(&request, limit);
            if left.is_zero() {
                return Err(silent(limit));
            }
            let longest = limit.saturating_mul(PATIENCE);
            let rest = longest.saturating_sub(start.elapsed());
            if rest.is_zero() {
                break;
            }
            pause = left.min(rest);
        }
        self.warn_busy(start.elapsed());
        let busy = busy(&request, op);
        runtime.spawn(self.undo_late(request, op, call));
        Ok(busy)
    }

    /// Undoes a charge that arrives after its request was denied. Slots are freed with the decision.
    async fn undo_late(self, request: Arc<Request>, op: ScriptOp<'static>, call: Deciding) {
        match call.await {
            Ok(late) if op.takes() && late.is_allowed() => {
                self.undo_in_background(&request, &late, None);
            }
            _ => {}
        }
    }

    fn warn_busy(&self, waited: Duration) {
        let now = Instant::now();
        let mut last = self.shared.busy_since.lock();
        if last.is_some_and(|last| now < last + WARNING_INTERVAL) {
            return;
        }
        *last = Some(now);
        // A log subscriber may run any code, so the lock is released first.
        drop(last);
        warn!(
            "redis: this process or the server is too busy: an answer was not read within {waited:?}, and \
             the request is rejected with 503"
        );
    }
}

/// Returns the error of a call whose server is silent.
fn silent(limit: Duration) -> RedisError {
    let text = format!(
        "the server is silent: no answer within {limit:?}; the charge may still have been made"
    );
    let error = RedisError::new(RedisErrorKind::Timeout, text);
    error.count();
    error
}

/// Returns the answer to a call whose answer is not read in time.
fn busy(request: &Request, op: ScriptOp<'_>) -> Decision {
    let decides = op.decides();
    let accounts = request.accounts.iter();
    let account = accounts
        .filter(|account| !decides || account.charges())
        .min_by_key(|account| decides && account.report_only);
    let Some(account) = account else {
        return Decision::allow().with_source(Source::Busy);
    };
    let report_only = decides && account.report_only;
    let decision = if report_only {
        Decision::allow()
    } else {
        Decision::deny()
    };
    let outcome = Outcome::unknown(account.rule, 0, Some(RETRY_AFTER));
    decision
        .with_source(Source::Busy)
        .with_outcome(outcome.with_report_only(report_only))
}
