//! The end of a call whose answer is late.

use std::{any::Any, sync::Arc, time::Duration};

use redis::aio::ConnectionLike;
use tokio::time::{Instant, timeout};

use super::{
    RedisStore,
    connection::{Link, ServerState, TIMEOUT, runtime},
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
    fn link(&self) -> Option<&Link> {
        (&self.connection as &dyn Any).downcast_ref()
    }

    /// Returns the limit of a call that this store ends by itself, or `None` if its connections do not
    /// note silence.
    fn limit(&self, context: &Context<'_>) -> Option<Duration> {
        let is_judged = match (self.link(), self.cluster_link()) {
            (Some(link), _) => link.is_judged(),
            (None, Some(cluster)) => cluster.is_judged(),
            (None, None) => false,
        };
        is_judged.then(|| context.keep_limit().unwrap_or(TIMEOUT))
    }

    fn server_state(&self, request: &Request, limit: Duration) -> ServerState {
        let hash_slots = request
            .accounts
            .iter()
            .map(|account| account.hash_slot(true));
        match (self.link(), self.cluster_link()) {
            (Some(link), _) => link.server_state(limit),
            (None, Some(cluster)) => cluster.server_state(hash_slots, limit),
            (None, None) => ServerState::Unknown,
        }
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
        let Some(limit) = self.limit(context) else {
            return call;
        };
        let judged = JudgedCall {
            start: Instant::now(),
            limit,
            request,
            op,
        };
        Box::pin(self.clone().judge(judged, call))
    }

    async fn judge(self, judged: JudgedCall, mut call: Deciding) -> Result<Decision, RedisError> {
        let JudgedCall { start, limit, .. } = judged;
        // The timers below need a runtime.
        let runtime = runtime()?;
        let mut pause = limit.saturating_sub(start.elapsed());
        loop {
            if let Ok(decision) = timeout(pause, &mut call).await {
                return decision;
            }
            let ServerState::Answers(left) = self.server_state(&judged.request, limit) else {
                return Err(silent(limit));
            };
            let longest = limit.saturating_mul(PATIENCE);
            let rest = longest.saturating_sub(start.elapsed());
            if rest.is_zero() {
                break;
            }
            pause = left.min(rest);
        }
        self.warn_busy(start.elapsed());
        let busy = busy(&judged.request, judged.op);
        runtime.spawn(self.undo_late(judged, call));
        Ok(busy)
    }

    /// Undoes a charge that arrives after its request was denied. Slots are freed with the decision.
    async fn undo_late(self, judged: JudgedCall, call: Deciding) {
        match call.await {
            Ok(late) if judged.op.takes() && late.is_allowed() => {
                self.undo_in_background(&judged.request, &late, None);
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

/// A call that this store ends by itself.
struct JudgedCall {
    start: Instant,
    limit: Duration,
    request: Arc<Request>,
    op: ScriptOp<'static>,
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
