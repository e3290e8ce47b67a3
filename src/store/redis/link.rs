//! One connection that many requests share and that comes back by itself.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    task::Poll,
    time::Duration,
};

use futures_util::poll;
use redis::{
    Cmd, ErrorKind as Raw, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{error::code, silence::Silence};
use crate::store::BoxFuture;

/// A connection attempt, and a command that nothing else ends, take at most so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// A command that finds no connection, and no attempt under way, waits so long for one.
const GRACE: Duration = Duration::from_millis(25);
/// The longest pause between attempts; each pause is a random share of its bound (full jitter).
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Pauses are no longer than this when somebody waits: the probe of a breaker, which comes once in
/// a second, would find the next attempt too far off again and again.
const WANTED_PAUSE: Duration = Duration::from_millis(100);

/// Makes a connection.
pub(super) type Dial = Box<dyn Fn() -> BoxFuture<RedisResult<MultiplexedConnection>> + Send + Sync>;

/// One multiplexed connection to a server, or to the master that sentinels name, that comes back
/// by itself: with exponential pauses and full jitter, one attempt at a time.
///
/// Made by [`RedisStore::connect`](super::RedisStore::connect) and its kin. A clone is the same
/// connection.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    dial: Dial,
    state: watch::Sender<State>,
    dialing: AtomicBool,
    /// Tells who pauses between attempts that somebody waits for a connection.
    wanted: Arc<Notify>,
    /// Attempts since a connection last held.
    attempts: AtomicU32,
    /// When the last of them began.
    last: Mutex<Instant>,
    silence: Silence,
}

#[derive(Clone)]
enum State {
    Up { connection: MultiplexedConnection, since: Instant },
    Down { failed: Option<RedisError>, trying: bool },
}

impl Link {
    /// Connects with the first command.
    pub(super) fn new(dial: Dial) -> Self {
        Self(Arc::new(Inner {
            dial,
            state: watch::Sender::new(State::Down { failed: None, trying: false }),
            dialing: AtomicBool::new(false),
            wanted: Arc::default(),
            attempts: AtomicU32::new(0),
            last: Mutex::new(Instant::now()),
            silence: Silence::new(),
        }))
    }

    /// The connection, after a short while if it is coming back.
    async fn up(&self) -> RedisResult<(MultiplexedConnection, Instant)> {
        let (start, mut states) = (Instant::now(), self.0.state.subscribe());
        let wait = async {
            loop {
                match &*states.borrow_and_update() {
                    State::Up { connection, since } => return Ok((connection.clone(), *since)),
                    State::Down { failed: Some(error), trying: false }
                        if start.elapsed() >= GRACE =>
                    {
                        return Err(error.clone());
                    }
                    State::Down { .. } => {}
                }
                self.redial()?;
                self.0.wanted.notify_one();
                // the next attempt may be far off; one that is under way may end with its runtime
                let left =
                    Some(GRACE.saturating_sub(start.elapsed())).filter(|left| !left.is_zero());
                let _ = timeout(left.unwrap_or(GRACE), states.changed()).await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| Err(gone("no connection in time")))
    }

    /// Starts to dial unless that is under way.
    fn redial(&self) -> RedisResult<()> {
        let runtime = runtime()?;
        if !self.0.dialing.swap(true, AcqRel) {
            drop(runtime.spawn(dial(Dialing(Arc::downgrade(&self.0)))));
        }
        Ok(())
    }

    /// Gives the connection of `since` up.
    fn lose(&self, since: Instant, why: &RedisError) {
        if since.elapsed() >= LONGEST_PAUSE {
            self.0.attempts.store(0, Relaxed);
        }
        let lost = self.0.state.send_if_modified(|state| {
            let current = matches!(state, State::Up { since: other, .. } if *other == since);
            if current {
                *state = State::Down { failed: Some(why.clone()), trying: false };
            }
            current
        });
        if lost {
            self.0.silence.answered();
            // where there is no runtime, the next command starts it
            drop(self.redial());
        }
    }

    /// Gives up the connection that there is, since its answers are not those to what was asked.
    pub(super) fn distrust(&self) {
        let current = match &*self.0.state.borrow() {
            State::Up { since, .. } => Some(*since),
            State::Down { .. } => None,
        };
        if let Some(since) = current {
            self.lose(since, &gone("an answer was none of ours"));
        }
    }
}

impl Inner {
    fn last(&self) -> MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to dial, which one task has at a time; it ends with the task, or with its runtime.
struct Dialing(Weak<Inner>);

impl Drop for Dialing {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.dialing.store(false, Release);
        }
    }
}

/// Dials until there is a connection, or nobody left who wants one.
async fn dial(right: Dialing) {
    loop {
        let Some(inner) = right.0.upgrade() else { return };
        let attempt = inner.attempts.fetch_add(1, Relaxed);
        if attempt > 0 {
            let (last, wanted) = (*inner.last(), inner.wanted.clone());
            drop(inner);
            rest(last, pause(attempt), &wanted).await;
        }
        let Some(inner) = right.0.upgrade() else { return };
        *inner.last() = Instant::now();
        inner.state.send_modify(|state| {
            if let State::Down { trying, .. } = state {
                *trying = true;
            }
        });
        let dialed = timeout(PATIENCE, (inner.dial)()).await;
        match dialed.unwrap_or_else(|_| Err(gone("no connection in time"))) {
            Ok(connection) => {
                inner.silence.answered();
                inner.state.send_replace(State::Up { connection, since: Instant::now() });
                return;
            }
            Err(error) => {
                let down = State::Down { failed: Some(error), trying: false };
                inner.state.send_replace(down);
            }
        }
    }
}

/// Until `pause` is over since the `last` attempt, or a part of it if somebody waits.
async fn rest(last: Instant, pause: Duration, wanted: &Notify) {
    sleep_until(last + pause.min(WANTED_PAUSE)).await;
    let _ = timeout_at(last + pause, wanted.notified()).await;
}

/// A random share of a bound that doubles with each attempt.
fn pause(attempt: u32) -> Duration {
    let bound = FIRST_PAUSE.saturating_mul(1 << attempt.min(16)).min(LONGEST_PAUSE);
    let random = RandomState::new().hash_one(attempt) % 1_000;
    bound * u32::try_from(random).unwrap_or(0) / 1_000
}

/// The runtime, without which there is no timer and no connection.
pub(super) fn runtime() -> RedisResult<Handle> {
    Handle::try_current().map_err(|_| gone("there is no tokio runtime"))
}

fn gone(why: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, why).into()
}

/// Whether nothing good comes of this connection any more.
fn is_lost(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || error.kind() == Raw::Parse
        || matches!(code(error), Some("READONLY" | "MASTERDOWN" | "NOAUTH"))
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (mut connection, mut since) = self.up().await?;
            if self.0.silence.asked() {
                self.lose(since, &gone("the connection was silent"));
                (connection, since) = self.up().await?;
            }
            let mut asked = connection.req_packed_command(command);
            let answer = match poll!(&mut asked) {
                // there before anything could be sent: the connection had ended while nobody asked
                Poll::Ready(Err(error)) if error.is_connection_dropped() => {
                    self.lose(since, &error);
                    drop(asked);
                    (connection, since) = self.up().await?;
                    connection.req_packed_command(command).await
                }
                Poll::Ready(answer) => answer,
                Poll::Pending => asked.await,
            };
            let answer = answer.and_then(Value::extract_error);
            match &answer {
                Err(error) if is_lost(error) => self.lose(since, error),
                Err(error) if error.is_timeout() => {}
                _ => self.0.silence.answered(),
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (mut connection, since) = self.up().await?;
            let answer = connection.req_packed_commands(commands, offset, count).await;
            if let Err(error) = &answer
                && is_lost(error)
            {
                self.lose(since, error);
            }
            answer
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = matches!(&*self.0.state.borrow(), State::Up { .. });
        f.debug_struct("Link").field("up", &up).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_shares_of_a_bound_that_doubles() {
        for attempt in 1..40 {
            let bound = FIRST_PAUSE.saturating_mul(1 << attempt.min(16)).min(LONGEST_PAUSE);
            let pauses: Vec<_> = (0..200).map(|_| pause(attempt)).collect();
            assert!(pauses.iter().all(|pause| *pause < bound), "{attempt}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause > bound / 2), "{attempt}");
            assert!(pauses.iter().any(|pause| *pause < bound / 2), "{attempt}");
        }
    }
}
