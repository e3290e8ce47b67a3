//! Requests beyond their quota while the system has capacity.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
    },
};

/// Setting that allows requests beyond their quota while the system has capacity.
///
/// Such requests are not charged. They are marked as [overage](crate::Decision::is_overage).
///
/// A request is still denied if its cost can never fit, if its key is blocked, or if the store
/// failed.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, middleware::Overcommit};
///
/// // limits apply only while 100 or more requests are in flight
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).overcommit(Overcommit::in_flight(100));
/// ```
#[derive(Clone)]
pub struct Overcommit(Signal);

#[derive(Clone)]
enum Signal {
    When(Arc<dyn Fn() -> bool + Send + Sync>),
    InFlight { max: usize, now: Arc<AtomicUsize> },
}

impl Overcommit {
    /// Creates a setting that reports capacity while `room` returns `true`.
    pub fn when(room: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Signal::When(Arc::new(room)))
    }

    /// Creates a setting that reports capacity while fewer than `max` requests are in flight.
    ///
    /// Layers with clones of this value count their requests together. A request is in flight until
    /// the head of its response is available.
    #[must_use]
    pub fn in_flight(max: usize) -> Self {
        Self(Signal::InFlight { max, now: Arc::default() })
    }

    /// Counts a request as in flight if capacity is available.
    pub(crate) fn try_enter(&self) -> Option<InFlight> {
        match &self.0 {
            Signal::When(room) => room().then_some(InFlight(None)),
            Signal::InFlight { max, now } => CountGuard::try_new(now, *max).map(InFlight::from),
        }
    }

    /// Counts a request as in flight, even beyond the capacity.
    pub(crate) fn enter(&self) -> InFlight {
        match &self.0 {
            Signal::When(_) => InFlight(None),
            Signal::InFlight { now, .. } => CountGuard::new(now).into(),
        }
    }
}

impl fmt::Debug for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Signal::When(_) => f.write_str("Overcommit(fn)"),
            Signal::InFlight { max, now } => {
                write!(f, "Overcommit({} of {max} in flight)", now.load(Acquire))
            }
        }
    }
}

/// A request in flight, counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(
    #[expect(dead_code, reason = "counts until it is dropped")] Option<CountGuard>,
);

impl From<CountGuard> for InFlight {
    fn from(guard: CountGuard) -> Self {
        Self(Some(guard))
    }
}

/// Counts one request until this value is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn new(now: &Arc<AtomicUsize>) -> Self {
        now.fetch_add(1, AcqRel);
        Self(now.clone())
    }

    /// Counts one more request, unless `max` requests are already counted.
    pub(crate) fn try_new(now: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let one_more = |n| (n < max).then_some(n + 1);
        now.fetch_update(AcqRel, Acquire, one_more).ok().map(|_| Self(now.clone()))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}
