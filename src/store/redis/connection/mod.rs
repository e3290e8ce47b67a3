//! A shared connection that reconnects by itself, and how a store opens and tests it.

pub(crate) mod dial;
mod first_line;
pub(crate) mod open;
mod probe;
mod silence;
pub(crate) mod stream;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use futures_util::poll;
use parking_lot::Mutex;
use redis::{
    Cmd, ErrorKind as Raw, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{
    runtime::Handle,
    sync::{self, Notify, OwnedMutexGuard, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use self::{dial::OpenConnection, silence::Silence};
use crate::store::{BoxFuture, redis::error::code};

/// The timeout of a connection attempt, and the silence after which a server has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);
/// The time after which a command, and the wait for a call, ends, even if the server is not silent. A
/// call that is judged has ended before, so the runtime of another one is blocked.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);
/// The time that a command waits for the next connection attempt.
const RECONNECT_GRACE: Duration = Duration::from_millis(25);
/// The maximum pause between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(1);
const BASE_BACKOFF: Duration = Duration::from_millis(10);
/// The maximum pause between attempts while a command waits for a connection.
///
/// During a longer pause, every probe of a breaker could fail.
const MAX_BACKOFF_WHEN_WANTED: Duration = Duration::from_millis(100);
/// The time without a reply after which a connection is replaced if it does not note silence.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// The time without a reply after which any connection is replaced, because the runtime of its task
/// may be blocked.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The minimum number of requests without a reply before a connection is replaced. One such request
/// may belong to a dropped caller.
const MIN_REQUESTS: u32 = 2;

/// Opens a connection.
pub(crate) type Dial = Box<dyn Fn() -> BoxFuture<RedisResult<OpenConnection>> + Send + Sync>;

/// Multiplexed connection to one server, or to the master that sentinels report.
///
/// The connection reconnects by itself, with exponential backoff and full jitter. Created by
/// [`RedisStore::connect`](crate::RedisStore::connect) and
/// [`sentinel`](crate::RedisStore::sentinel). Clones share the connection.
#[derive(Clone)]
pub struct Link(Arc<LinkInner>);

struct LinkInner {
    dial: Dial,
    /// `true` if the connections note silence.
    is_judged: bool,
    state: watch::Sender<LinkState>,
    /// The instant at which the last attempt started. At most one task holds the lock, and opens a
    /// connection.
    dialing: Arc<sync::Mutex<Instant>>,
    /// Notified when a command waits for a connection.
    wanted: Arc<Notify>,
    /// The number of attempts since the last stable connection.
    attempts: AtomicU32,
    watchdog: Watchdog,
}

#[derive(Clone)]
enum LinkState {
    Up(OpenConnection),
    /// The error of the last attempt, unless another attempt is running.
    Down(Option<RedisError>),
}

impl OpenConnection {
    /// Sends a command. Returns an outer error if the connection had ended while it was idle, so that
    /// nothing was sent.
    async fn send(
        &mut self,
        command: &Cmd,
        is_asking: bool,
    ) -> Result<RedisResult<Value>, RedisError> {
        let silence = self.silence.clone();
        let mut sent = if is_asking {
            Box::pin(send_asking(&mut self.connection, command))
        } else {
            self.connection.req_packed_command(command)
        };
        match poll!(&mut sent) {
            Poll::Ready(Err(error)) if error.is_connection_dropped() => Err(error),
            Poll::Ready(reply) => Ok(reply),
            Poll::Pending => Ok(judge(silence, sent).await),
        }
    }
}

/// Sends a command for a hash slot that is still moving to the server.
async fn send_asking(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<Value> {
    // Other commands must not come in between.
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    let mut replies = connection.req_packed_commands(&both, 1, 1).await?;
    Ok(replies.pop().unwrap_or(Value::Nil))
}

/// Returns the reply, or an error if the server is silent.
async fn judge(
    silence: Option<Arc<Silence>>,
    mut reply: RedisFuture<'_, Value>,
) -> RedisResult<Value> {
    let Some(silence) = silence else {
        return reply.await;
    };
    let end = Instant::now() + LONGEST;
    let mut pause = TIMEOUT;
    loop {
        if let Ok(reply) = timeout(pause, &mut reply).await {
            return reply;
        }
        pause = silence.until_silent_for(TIMEOUT);
        if pause.is_zero() || Instant::now() >= end {
            let text = "the server is silent";
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text).into());
        }
    }
}

impl Link {
    /// Creates a link that connects on the first command. `is_judged` is `true` if the connections
    /// note silence.
    pub(crate) fn new(dial: Dial, is_judged: bool) -> Self {
        Self(Arc::new(LinkInner {
            dial,
            is_judged,
            state: watch::Sender::new(LinkState::Down(None)),
            dialing: Arc::new(sync::Mutex::new(Instant::now())),
            wanted: Arc::default(),
            attempts: AtomicU32::new(0),
            watchdog: Watchdog::default(),
        }))
    }

    /// Returns the connection. Waits for a short time while the link reconnects.
    async fn connected(&self) -> RedisResult<OpenConnection> {
        timeout(TIMEOUT, self.reconnected())
            .await
            .unwrap_or_else(|_| Err(not_connected("no connection in time")))
    }

    /// Returns the connection, or the error of an attempt that ends after a short time.
    async fn reconnected(&self) -> RedisResult<OpenConnection> {
        let start = Instant::now();
        let mut states = self.0.state.subscribe();
        loop {
            match &*states.borrow_and_update() {
                LinkState::Up(open) => return Ok(open.clone()),
                LinkState::Down(Some(error)) if start.elapsed() >= RECONNECT_GRACE => {
                    return Err(error.clone());
                }
                LinkState::Down(_) => {}
            }
            self.ensure_dialing()?;
            self.0.wanted.notify_one();
            // The next attempt may start much later, and the current one may end with its runtime.
            let pause = match RECONNECT_GRACE.saturating_sub(start.elapsed()) {
                Duration::ZERO => RECONNECT_GRACE,
                left => left,
            };
            let _ = timeout(pause, states.changed()).await;
        }
    }

    /// Returns `true` if the connections note silence.
    pub(crate) fn is_judged(&self) -> bool {
        self.0.is_judged
    }

    /// Returns the time after which the server can have been silent for `time`. It is zero if the server
    /// is silent, no connection is open, or the connection does not note silence.
    pub(crate) fn until_silent_for(&self, time: Duration) -> Duration {
        match &*self.0.state.borrow() {
            LinkState::Up(OpenConnection {
                silence: Some(silence),
                ..
            }) => silence.until_silent_for(time),
            _ => Duration::ZERO,
        }
    }

    /// Records a request. Returns `true` if the connection must be replaced first.
    fn is_dead(&self, open: &OpenConnection) -> bool {
        let silence = open.silence.as_ref();
        let is_silent = silence.is_some_and(|silence| silence.until_silent_for(TIMEOUT).is_zero());
        let longest = if silence.is_some() {
            STALL_TIMEOUT
        } else {
            MAX_SILENCE
        };
        self.0.watchdog.request_sent(longest) || is_silent
    }

    /// Starts a task that opens a connection, unless such a task is running.
    fn ensure_dialing(&self) -> RedisResult<()> {
        let runtime = runtime()?;
        if let Ok(last) = self.0.dialing.clone().try_lock_owned() {
            drop(runtime.spawn(reconnect(Arc::downgrade(&self.0), last)));
        }
        Ok(())
    }

    /// Discards the connection that was opened at `since`.
    fn discard(&self, since: Instant, error: &RedisError) {
        if since.elapsed() >= MAX_BACKOFF {
            self.0.attempts.store(0, Relaxed);
        }
        let was_current = self.0.state.send_if_modified(|state| {
            let current = matches!(state, LinkState::Up(open) if open.since == since);
            if current {
                *state = LinkState::Down(Some(error.clone()));
            }
            current
        });
        if was_current {
            self.0.watchdog.reply_received();
            // Without a runtime, the next command starts to dial.
            drop(self.ensure_dialing());
        }
    }

    /// Discards the current connection after an invalid reply.
    pub(crate) fn discard_current(&self) {
        let LinkState::Up(open) = self.0.state.borrow().clone() else {
            return;
        };
        self.discard(open.since, &not_connected("a reply was invalid"));
    }

    /// Calls the server, again on another connection if the first one had ended while it was idle.
    ///
    /// With `is_asking`, the server also accepts the keys of a hash slot that is still moving to it.
    pub(crate) async fn call(&self, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        let mut open = self.connected().await?;
        if self.is_dead(&open) {
            self.discard(open.since, &not_connected("the connection did not reply"));
            open = self.connected().await?;
        }
        let reply = match open.send(command, is_asking).await {
            Ok(reply) => reply,
            // It is safe to send the command again.
            Err(error) => {
                self.discard(open.since, &error);
                open = self.connected().await?;
                open.send(command, is_asking).await.unwrap_or_else(Err)
            }
        };
        let reply = reply.and_then(Value::extract_error);
        match &reply {
            Err(error) if is_unusable(error) => self.discard(open.since, error),
            Err(error) if error.is_timeout() => {}
            _ => self.0.watchdog.reply_received(),
        }
        reply
    }
}

/// Repeats connection attempts until one succeeds or the link is dropped. The lock is released at
/// the end, even if the runtime drops the task.
async fn reconnect(link: Weak<LinkInner>, mut last: OwnedMutexGuard<Instant>) {
    loop {
        let Some(inner) = link.upgrade() else { return };
        let attempt = inner.attempts.fetch_add(1, Relaxed);
        let wanted = inner.wanted.clone();
        drop(inner);
        if attempt > 0 {
            let pause = backoff(attempt);
            sleep_until(*last + pause.min(MAX_BACKOFF_WHEN_WANTED)).await;
            let _ = timeout_at(*last + pause, wanted.notified()).await;
        }
        let Some(inner) = link.upgrade() else { return };
        // Another task has connected in the meantime.
        if matches!(*inner.state.borrow(), LinkState::Up(_)) {
            return;
        }
        *last = Instant::now();
        if inner.dial().await {
            return;
        }
        drop(inner);
        // Callers that waited for the attempt see its error before the next attempt starts.
        sleep(BASE_BACKOFF / 10).await;
    }
}

impl LinkInner {
    /// Attempts to connect. Returns `true` if the link is up.
    async fn dial(&self) -> bool {
        self.state.send_replace(LinkState::Down(None));
        let dialed = timeout(TIMEOUT, (self.dial)()).await;
        let dialed = dialed.unwrap_or_else(|_| Err(not_connected("no connection in time")));
        let is_up = dialed.is_ok();
        self.state.send_replace(match dialed {
            Ok(open) => {
                self.watchdog.reply_received();
                LinkState::Up(open)
            }
            Err(error) => LinkState::Down(Some(error)),
        });
        is_up
    }
}

/// Returns a random time up to a bound. The bound doubles with each attempt.
fn backoff(attempt: u32) -> Duration {
    let bound = BASE_BACKOFF
        .saturating_mul(1 << attempt.min(16))
        .min(MAX_BACKOFF);
    let random = RandomState::new().hash_one(attempt) % 1_000;
    bound * u32::try_from(random).unwrap_or(0) / 1_000
}

/// Returns the current tokio runtime. Fails outside of a runtime.
pub(crate) fn runtime() -> RedisResult<Handle> {
    Handle::try_current()
        .map_err(|_| not_connected("no tokio runtime; call the store from within one"))
}

pub(crate) fn not_connected(why: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, why).into()
}

/// Returns `true` if the connection must be replaced after this error.
fn is_unusable(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || error.kind() == Raw::Parse
        || matches!(code(error), Some("READONLY" | "MASTERDOWN" | "NOAUTH"))
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.call(command, false))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Err(no_pipeline()) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Returns the error of a pipeline, which the store does not send.
pub(crate) fn no_pipeline() -> RedisError {
    (Raw::InvalidClientConfig, "a pipeline is not supported").into()
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

/// Detects a connection that looks alive but no longer replies.
#[derive(Debug, Default)]
struct Watchdog(Mutex<Option<Unanswered>>);

/// The requests without a reply.
#[derive(Debug)]
struct Unanswered {
    since: Instant,
    requests: u32,
}

impl Watchdog {
    /// Records a request. Returns `true` if the connection has not replied for `longest`.
    fn request_sent(&self, longest: Duration) -> bool {
        let mut state = self.0.lock();
        let unanswered = state.get_or_insert_with(|| Unanswered {
            since: Instant::now(),
            requests: 0,
        });
        unanswered.requests = unanswered.requests.saturating_add(1);
        unanswered.requests > MIN_REQUESTS && unanswered.since.elapsed() >= longest
    }

    fn reply_received(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[test]
    fn backoff_is_a_random_share_of_a_bound_that_doubles() {
        for attempt in 1..40 {
            let bound = BASE_BACKOFF
                .saturating_mul(1 << attempt.min(16))
                .min(MAX_BACKOFF);
            let backoffs: Vec<_> = (0..200).map(|_| backoff(attempt)).collect();
            assert!(
                backoffs.iter().all(|backoff| *backoff < bound),
                "{attempt}: {backoffs:?}"
            );
            assert!(
                backoffs.iter().any(|backoff| *backoff > bound / 2),
                "{attempt}"
            );
            assert!(
                backoffs.iter().any(|backoff| *backoff < bound / 2),
                "{attempt}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_dropped_caller_does_not_trigger_the_watchdog() {
        let watchdog = Watchdog::default();
        for _ in 0..3 {
            assert!(!watchdog.request_sent(MAX_SILENCE), "the first request");
            advance(Duration::from_secs(60)).await;
            assert!(
                !watchdog.request_sent(MAX_SILENCE),
                "the caller before may be dropped"
            );
            watchdog.reply_received();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_reply_for_a_second_trigger_the_watchdog() {
        let watchdog = Watchdog::default();
        for _ in 0..3 {
            assert!(!watchdog.request_sent(MAX_SILENCE));
        }
        advance(MAX_SILENCE - Duration::from_millis(1)).await;
        assert!(!watchdog.request_sent(MAX_SILENCE));
        advance(Duration::from_millis(1)).await;
        assert!(watchdog.request_sent(MAX_SILENCE));
        watchdog.reply_received();
        assert!(!watchdog.request_sent(MAX_SILENCE));
    }
}
