//! Leaves a store alone for a while when it fails.

mod circuit;
mod tally;

use std::{
    error::Error,
    fmt,
    ops::RangeInclusive,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use self::circuit::{Circuit, Permit, Settings};
use super::setting::{SettingError, literal};
use crate::{
    decision::Decision,
    store::{Answer, BoxError, BoxFuture, Charge, Condition, State, Store, Unsupported},
};

/// A store that is left alone when it fails: its breaker opens, and answers with an error at once.
///
/// It opens after 5 failures in a row, or when half of at least 20 answers within a second were
/// failures. It stays open for 100 ms first, and twice as long each time up to 1 s, of which a
/// random half is spared so that processes do not come back together. Then exactly one call goes
/// through while all others are still refused: its success closes the breaker, its failure opens it
/// again. Open, a call costs a load and a look at the clock.
///
/// Put it **outside** the deadline and inside what says what then becomes of a request:
/// `store.deadline(d).breaker().fallback(local)`. A time-out is a failure it must see, and a probe
/// that hangs would keep its place for good.
///
/// A call whose future is dropped before its answer tells nothing: clients who leave must not be
/// able to open the breaker. [`undo`](Store::undo) has no answer, so it tells nothing
/// either; open, it is dropped, and the charge stands. Nor does an error that is there at once: no
/// server was asked, and a client whose quota the store cannot count must not stop the others'.
///
/// A clone shares the breaker; a setting makes a new one, so set first.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, Store, store::Deadline};
///
/// let (first, longest) = (Duration::from_millis(200), Duration::from_secs(5));
/// let store = LocalStore::new() // in real life a remote one
///     .deadline(Deadline::DEFAULT)
///     .breaker()
///     .failures(10)
///     .rate(30, 100)
///     .open_for(first..=longest);
/// assert!(!store.is_open());
/// ```
#[derive(Clone, Debug)]
pub struct Breaker<S> {
    inner: S,
    circuit: Arc<Circuit>,
}

impl<S> Breaker<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, circuit: Arc::new(Circuit::new(Settings::default())) }
    }

    /// Opens after `in_a_row` failures without a success between them; 5 unless set.
    ///
    /// # Panics
    ///
    /// When `in_a_row` is 0.
    #[track_caller]
    #[must_use]
    pub fn failures(self, in_a_row: u32) -> Self {
        literal(self.try_failures(in_a_row))
    }

    /// [`failures`](Breaker::failures) for a number from outside.
    ///
    /// # Errors
    ///
    /// Where [`failures`](Breaker::failures) panics.
    pub fn try_failures(self, in_a_row: u32) -> Result<Self, SettingError> {
        if in_a_row == 0 {
            return Err(SettingError::new("breaker: failures", in_a_row, "give at least 1"));
        }
        Ok(self.with(|settings| settings.failures = in_a_row))
    }

    /// Opens when `percent` of at least `answers` answers within a second are failures; 50 % of 20
    /// unless set. The second is counted by its tenths.
    ///
    /// # Panics
    ///
    /// When `percent` is not 1 to 100, or `answers` is 0.
    #[track_caller]
    #[must_use]
    pub fn rate(self, percent: u32, answers: u32) -> Self {
        literal(self.try_rate(percent, answers))
    }

    /// [`rate`](Breaker::rate) for numbers from outside.
    ///
    /// # Errors
    ///
    /// Where [`rate`](Breaker::rate) panics.
    pub fn try_rate(self, percent: u32, answers: u32) -> Result<Self, SettingError> {
        if !(1..=100).contains(&percent) {
            const FIX: &str = "give 1 to 100 percent";
            return Err(SettingError::new("breaker: rate", percent, FIX));
        }
        if answers == 0 {
            return Err(SettingError::new("breaker: answers", answers, "give at least 1"));
        }
        Ok(self.with(|settings| (settings.percent, settings.answers) = (percent, answers)))
    }

    /// How long it stays open, the first time and at the longest; 100 ms to 1 s unless set. Each
    /// time is cut at random, to no less than half.
    ///
    /// # Panics
    ///
    /// When the first is zero, or the longest is shorter.
    #[track_caller]
    #[must_use]
    pub fn open_for(self, times: RangeInclusive<Duration>) -> Self {
        literal(self.try_open_for(times))
    }

    /// [`open_for`](Breaker::open_for) for times from outside.
    ///
    /// # Errors
    ///
    /// Where [`open_for`](Breaker::open_for) panics.
    pub fn try_open_for(self, times: RangeInclusive<Duration>) -> Result<Self, SettingError> {
        let (first, longest) = times.into_inner();
        if first.is_zero() {
            const FIX: &str = "give the store time to recover, as 100 ms";
            return Err(SettingError::new("breaker: first open time", "0 s", FIX));
        }
        if longest < first {
            let value = format_args!("{longest:?}, below the first of {first:?}").to_string();
            const FIX: &str = "give at least the first";
            return Err(SettingError::new("breaker: longest open time", value, FIX));
        }
        Ok(self.with(|settings| (settings.first, settings.longest) = (first, longest)))
    }

    /// Whether it is open, be it that a probe is on its way: for health checks.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.circuit.is_open()
    }

    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.circuit.settings();
        set(&mut settings);
        Self { circuit: Arc::new(Circuit::new(settings)), ..self }
    }

    /// Makes the call, if it may be made.
    fn guard<F, E>(&self, call: impl FnOnce(&S) -> Answer<F>) -> Answer<BreakerFuture<F>>
    where
        F: Future<Output = Result<Decision, E>>,
    {
        let permit = match self.circuit.enter() {
            Ok(permit) => permit,
            Err(retry_after) => return Answer::Now(Err(BreakerError::Open { retry_after })),
        };
        match call(&self.inner) {
            // nobody was asked, as with an error
            Answer::Now(Ok(decision)) if decision.source().is_known() => Answer::Now(Ok(decision)),
            Answer::Now(Ok(decision)) => {
                permit.answered(true);
                Answer::Now(Ok(decision))
            }
            Answer::Now(Err(error)) => Answer::Now(Err(BreakerError::Store(error))),
            Answer::Later(inner) => Answer::Later(BreakerFuture { inner, permit: Some(permit) }),
        }
    }
}

impl<S: Store> Store for Breaker<S>
where
    BreakerError<S::Error>: Into<BoxError>,
{
    type Error = BreakerError<S::Error>;
    type Future = BreakerFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.guard(|inner| inner.take(charges))
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.guard(|inner| inner.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.guard(|inner| inner.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.guard(|inner| inner.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.guard(|inner| inner.unblock(charge))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if !self.is_open() {
            self.inner.undo(charges, taken, units);
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        let (state, detail) = match self.is_open() {
            true => (State::Failing, "open: the store is left alone"),
            false => (State::Well, "closed"),
        };
        Condition::wrapping("breaker", self.inner.health(), move |_| (state, detail.to_owned()))
    }
}

/// Why a [`Breaker`] gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerError<E> {
    /// The store failed before and was not asked.
    Open {
        /// The time until it may be asked again.
        retry_after: Duration,
    },
    /// The store failed.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for BreakerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { retry_after } => {
                write!(f, "the store failed and is not asked again for {retry_after:?}")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// For every `E` that can be shown, a [`BoxError`] too, which is no [`Error`] itself.
impl<E: fmt::Debug + fmt::Display> Error for BreakerError<E> {}

pin_project! {
    /// The later answer of a [`Breaker`].
    #[derive(Debug)]
    pub struct BreakerFuture<F> {
        #[pin]
        inner: F,
        permit: Option<Permit>,
    }
}

impl<F, E> Future for BreakerFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Decision, BreakerError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decision = ready!(this.inner.poll(cx));
        if let Some(permit) = this.permit.take() {
            permit.answered(decision.is_ok());
        }
        Poll::Ready(decision.map_err(BreakerError::Store))
    }
}
