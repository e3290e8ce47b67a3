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
/// The longest time for which answers are taken. It is shorter than [`LONGEST`](super::connection::LONGEST),
/// after which a call is an error.
const MAX_PATIENCE: Duration = Duration::from_secs(20);
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

    /// Returns a call that ends if a server is silent, which is an error, or after ten times the limit
    /// and at most 20 s, which is a denial. Returns the call itself if the connections do not note silence.
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
        let longest = limit.saturating_mul(PATIENCE).min(MAX_PATIENCE);
        let mut pause = limit.min(longest);
        loop {
            if let Ok(decision) = timeout(pause, &mut call).await {
                return decision;
            }
            let left = self.until_silent_for(&request, limit);
            if left.is_zero() {
                return Err(silent(limit));
            }
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

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
    };

    use futures_util::future::join;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::Quota,
        store::{Answer, Charge, Op, Status, Store, redis::RedisStream},
    };

    const QUOTAS: [Quota; 1] = [Quota::per_day(10)];

    /// Opens a stream that never returns an answer to a script, although some bytes wait.
    async fn open() -> io::Result<RedisStream> {
        let (near, far) = duplex(4_096);
        tokio::spawn(answer_login(far));
        Ok(RedisStream::new(near).with_unread(|| true))
    }

    async fn answer_login(mut server: DuplexStream) {
        let mut bytes = [0; 4_096];
        while let Ok(length @ 1..) = server.read(&mut bytes).await {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            for _ in text.matches("SETINFO") {
                server.write_all(b"+OK\r\n").await.expect("room");
            }
        }
    }

    fn store() -> RedisStore {
        RedisStore::from_stream(open).lazy().expect("a store")
    }

    fn charge(key: &Key) -> Charge<'_> {
        Charge::new(RuleName::default(), key, &QUOTAS)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_a_denial_after_ten_times_the_limit() {
        let key = Key::from("a");
        for (limit, seconds) in [(100, 1), (1_000, 10), (2_000, 20), (60_000, 20)] {
            let (store, start) = (store(), Instant::now());
            let context = Context {
                limit: Some(Duration::from_millis(limit)),
                ..Context::default()
            };
            // The second call is one of the queue.
            let calls = [(); 2].map(|()| store.call(Op::Take(&[charge(&key)]), &context));
            let [Answer::Later(first), Answer::Later(second)] = calls else {
                panic!("{limit} ms: a call is sent")
            };
            let decisions = join(first, second).await;
            for decision in [decisions.0, decisions.1] {
                let decision = decision.expect("a decision");
                assert_eq!(decision.source(), Source::Busy, "{limit} ms");
            }
            assert_eq!(start.elapsed().as_secs(), seconds, "{limit} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_whose_answers_are_not_read_is_not_healthy() {
        let health = store().health().await;
        assert_eq!(health.status, Status::Failing, "{health:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_undo_without_an_answer_keeps_no_slot() {
        let key = Key::from("a");
        let is_freed = Arc::new(AtomicBool::new(false));
        let freed = is_freed.clone();
        let taken = Decision::allow()
            .with_outcome(Outcome::full(RuleName::default(), 0, 10))
            .with_slot(move || freed.store(true, Relaxed));
        store().undo(&[charge(&key)], &taken, None);
        drop(taken);
        assert!(is_freed.load(Relaxed));
    }
}
