//! A circuit breaker around a store.

pub(in crate::store) mod circuit;

use std::{
    error::Error,
    fmt,
    ops::RangeInclusive,
    slice,
    time::{self, Duration},
};

use smallvec::SmallVec;
use tokio::time::Instant;

use self::circuit::{BreakerConfig, FailureDomain, Permit};
use tower::BoxError;

use super::forward;
use crate::{
    decision::Decision,
    store::{Answer, BoxFuture, Charge, Context, Health, Op, Status, Store},
};

/// Store with a circuit breaker: after several failures, calls fail immediately.
///
/// The breaker opens after 5 consecutive failures. The breaker also opens if at least half of the
/// answers in a second are failures, and there are at least 20 answers. The first open time is
/// 100 ms. Each further open time is twice as long, up to 1 s. Every open time is shortened at
/// random by up to a half.
///
/// After the open time, one call is permitted: the probe. If the probe succeeds, the breaker
/// closes. Otherwise the breaker opens again.
///
/// Apply the breaker **outside** the timeout, and inside the wrapper that handles failures:
/// `store.timeout(d).breaker().fallback(local, n)`. Without a timeout, a probe that never completes
/// would prevent every other probe.
///
/// The breaker ignores:
///
/// - Calls whose future is dropped. Otherwise, clients that disconnect could open the breaker.
/// - [`undo`](Store::undo), which has no answer. While the breaker is open, an undo is dropped and
///   the charge remains.
/// - Immediate answers, which do not come from a server: the store does not support the quota, or the
///   request charges nothing.
///
/// Around a store of several [servers](Store::failure_domains), such as a Redis Cluster, each server
/// has its own state. A call is sent only if none of its servers has failed.
///
/// Clones share the breaker. Call the setters before you clone, because each creates a new breaker.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, StoreExt, store::Timeout};
///
/// let min = Duration::from_millis(200);
/// let max = Duration::from_secs(5);
/// let store = LocalStore::new() // In production: a remote store.
///     .timeout(Timeout::DEFAULT)
///     .breaker()
///     .failures(10)
///     .rate(30, 100)
///     .open_for(min..=max);
/// assert!(!store.is_open());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Breaker<S> {
    inner: S,
    config: BreakerConfig,
    /// The store, if it names no servers.
    whole: FailureDomain,
}

impl<S> Breaker<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            config: BreakerConfig::default(),
            whole: FailureDomain::new(""),
        }
    }

    /// Sets the number of consecutive failures after which the breaker opens. Defaults to 5.
    ///
    /// # Panics
    ///
    /// Panics if `consecutive` is 0.
    #[track_caller]
    pub fn failures(self, consecutive: u32) -> Self {
        assert!(consecutive > 0, "breaker: failures is 0; give at least 1");
        self.with(|config| config.failures = consecutive)
    }

    /// Sets the failure rate at which the breaker opens. Defaults to 50 % and 20 answers.
    ///
    /// The breaker opens if at least `percent` percent of the answers of the current second are
    /// failures. At least `answers` answers are needed.
    ///
    /// # Panics
    ///
    /// Panics if `percent` is not 1 to 100, or if `answers` is 0.
    #[track_caller]
    pub fn rate(self, percent: u32, answers: u32) -> Self {
        let valid = (1..=100).contains(&percent);
        assert!(valid, "breaker: rate is {percent}; give 1 to 100 percent");
        assert!(answers > 0, "breaker: answers is 0; give at least 1");
        self.with(|config| (config.percent, config.answers) = (percent, answers))
    }

    /// Sets the first and the longest time that the breaker stays open. Defaults to 100 ms and 1 s.
    ///
    /// Each time is shortened at random by up to a half.
    ///
    /// # Panics
    ///
    /// Panics if the first time is zero, or if the longest is shorter than the first.
    #[track_caller]
    pub fn open_for(self, times: RangeInclusive<Duration>) -> Self {
        let (first, longest) = times.into_inner();
        assert!(
            !first.is_zero(),
            "breaker: first open time is 0 s; give the store time to recover, such as 100 ms"
        );
        assert!(
            longest >= first,
            "breaker: longest open time is {longest:?}, below the first of {first:?}; give at least \
             the first"
        );
        self.with(|config| (config.min_open, config.max_open) = (first, longest))
    }

    /// Returns `true` if the breaker is open or probing, for health checks.
    ///
    /// Around a store of several [servers](Store::failure_domains), ask the servers instead.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.whole.is_open()
    }

    fn with(mut self, set: impl FnOnce(&mut BreakerConfig)) -> Self {
        set(&mut self.config);
        Self {
            whole: FailureDomain::new(""),
            ..self
        }
    }
}

impl<S: Store> Breaker<S> {
    /// Permits a call of each server, or returns the time until all of them may be called.
    fn acquire(&self, op: Op<'_>) -> Result<SmallVec<[Permit; 1]>, Duration> {
        let servers = self.inner.failure_domains(op);
        let whole = slice::from_ref(&self.whole);
        let servers = if servers.is_empty() { whole } else { &servers };
        let permits = servers.iter().map(|server| server.acquire(&self.config));
        permits.collect::<Option<_>>().ok_or_else(|| {
            let waits = servers
                .iter()
                .filter_map(|server| server.wait(&self.config));
            waits.max().unwrap_or_default()
        })
    }
}

/// Records an answer to a call that was sent at `start`.
fn record<E>(
    permits: SmallVec<[Permit; 1]>,
    answer: &Result<Decision, E>,
    config: &BreakerConfig,
    start: time::Instant,
) {
    // No server was called, or none has failed and none has answered.
    if answer
        .as_ref()
        .is_ok_and(|decision| !decision.cause().is_answer())
    {
        return;
    }
    let several = permits.len() > 1;
    // Of several servers, one that has answered a call sent since the start did not cause the failure.
    for permit in permits {
        let ok = answer.is_ok() || several && permit.domain.has_answered_since(start);
        permit.record(config, ok);
    }
}

impl<S: Store + 'static> Store for Breaker<S>
where
    BreakerError<S::Error>: Into<BoxError>,
{
    type Error = BreakerError<S::Error>;
    type Future = BoxFuture<Result<Decision, Self::Error>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let permits = match self.acquire(op) {
            Ok(permits) => permits,
            Err(retry_after) => return Answer::Now(Err(BreakerError::Open { retry_after })),
        };
        let config = self.config;
        let start = Instant::now().into_std();
        match self.inner.call(op, context) {
            // No server was called, so nothing is recorded.
            Answer::Now(answer) => Answer::Now(answer.map_err(BreakerError::Store)),
            answer => answer.then(move |answer| {
                record(permits, &answer, &config, start);
                answer.map_err(BreakerError::Store)
            }),
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let servers = self.inner.failure_domains(Op::Take(charges));
        let is_open = servers.is_empty() && self.is_open();
        if !is_open && !servers.iter().any(FailureDomain::is_open) {
            self.inner.undo(charges, taken, units);
        }
    }

    forward!(self => self.inner; supports, register, known_rules, failure_domains);

    fn health(&self) -> BoxFuture<Health> {
        let (state, detail) = match self.is_open() {
            true => (Status::Failing, "open: the store is not called"),
            false => (Status::Healthy, "closed"),
        };
        Health::wrapping("breaker", self.inner.health(), Some(state), detail)
    }
}

/// Error of a [`Breaker`].
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerError<E> {
    /// The breaker is open, so the store was not called.
    Open {
        /// The time until the store may be called again. While a call probes it, this is an estimate.
        retry_after: Duration,
    },
    /// The store failed.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for BreakerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { retry_after } => {
                write!(
                    f,
                    "the store failed and is not called again for {retry_after:?}"
                )
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// Requires only `Display` of `E`, because [`BoxError`] does not implement [`Error`].
impl<E: fmt::Debug + fmt::Display> Error for BreakerError<E> {}
