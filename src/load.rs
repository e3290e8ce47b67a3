//! Values that are changed or read at run time: a flag, a capacity signal and counters.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

/// A flag that can be changed at run time. Clones share the flag.
///
/// [`switch`](crate::RateLimitLayer::enabled) turns a whole layer on and off. While the layer is
/// off, requests pass and the store is not called. [`Rule::report_only`](crate::Rule) and
/// [`RateLimitLayer::report_only`](crate::RateLimitLayer) make a rule or a layer count
/// requests without denying any while the flag is on.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, middleware::Toggle};
///
/// let (limits, trial) = (Toggle::on(), Toggle::off());
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
///     .enabled(&limits)
///     .report_only(&trial);
///
/// trial.set(true); // from the next request on, no request is denied
/// limits.set(false); // and none is counted
/// ```
#[derive(Clone, Debug)]
pub struct Toggle {
    flag: Arc<AtomicBool>,
    /// The toggle was created from a `bool`, so that no handle of it is kept.
    fixed: bool,
}

impl Toggle {
    /// Creates a flag that is on.
    #[must_use]
    pub fn on() -> Self {
        Self { fixed: false, ..Self::from(true) }
    }

    /// Creates a flag that is off.
    #[must_use]
    pub fn off() -> Self {
        Self { fixed: false, ..Self::from(false) }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Turns the flag on or off, from the next request on.
    pub fn set(&self, on: bool) {
        self.flag.store(on, Release);
    }

    /// Returns `true` if the flag is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.flag.load(Acquire)
    }
}

impl From<bool> for Toggle {
    fn from(on: bool) -> Self {
        Self { flag: Arc::new(AtomicBool::new(on)), fixed: true }
    }
}

impl From<&Self> for Toggle {
    fn from(toggle: &Self) -> Self {
        toggle.clone()
    }
}

/// Allows requests beyond their quota while the system has capacity. Such a request is not charged,
/// and is marked as [overage](crate::Decision::is_overage). A cost that can never fit, a blocked
/// key and a failed store stay denied.
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
    /// Capacity is available while `room` returns `true`.
    pub fn when(room: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Signal::When(Arc::new(room)))
    }

    /// Capacity is available while fewer than `max` requests are in flight behind the layers that
    /// share this value. A request is in flight until the head of its response is available.
    #[must_use]
    pub fn in_flight(max: usize) -> Self {
        Self(Signal::InFlight { max, now: Arc::default() })
    }

    /// Counts a request if capacity is available. The test and the count are one atomic step, so
    /// concurrent requests do not exceed the capacity together.
    pub(crate) fn try_enter(&self) -> Option<InFlight> {
        match &self.0 {
            Signal::When(room) => room().then_some(InFlight(None)),
            Signal::InFlight { max, now } => CountGuard::try_new(now, *max).map(InFlight::from),
        }
    }

    /// Counts a request, even beyond the capacity.
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

/// A request in flight. Holds a count if the capacity is a number of requests.
#[derive(Debug)]
pub(crate) struct InFlight(
    #[expect(dead_code, reason = "counts until it is dropped")] Option<CountGuard>,
);

impl From<CountGuard> for InFlight {
    fn from(guard: CountGuard) -> Self {
        Self(Some(guard))
    }
}

/// Counts one until it is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    fn new(now: &Arc<AtomicUsize>) -> Self {
        now.fetch_add(1, AcqRel);
        Self(now.clone())
    }

    /// Counts one more, unless the count has reached `max`.
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

/// Statistics of the decisions of a layer. Clones share the counts. Pass a reference to
/// [`count`](crate::RateLimitLayer::count), and keep the value to read it.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<AtomicCounts>);

#[derive(Debug, Default)]
struct AtomicCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    would_deny: AtomicU64,
    overage: AtomicU64,
    delayed: AtomicU64,
    unkeyed: AtomicU64,
}

/// A snapshot of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that were allowed, including overage.
    pub allowed: u64,
    /// Requests that were denied by a decision of the store.
    pub denied: u64,
    /// Requests that passed only because a rule or the layer is report-only.
    pub would_deny: u64,
    /// Requests that were allowed as overage.
    pub overage: u64,
    /// Requests that were allowed after a wait in the queue.
    pub delayed: u64,
    /// Requests that were rejected without a call to the store: without an identity, with an
    /// identity that cannot be used, or by a deny list.
    pub unkeyed: u64,
}

/// An event of one request that is counted.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Allowed,
    Denied,
    WouldDeny,
    Overage,
    Delayed,
    Unkeyed,
}

impl Counters {
    /// Creates counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current counts. Each count is exact, but they are not read at the same instant.
    #[must_use]
    pub fn snapshot(&self) -> Counts {
        let AtomicCounts { allowed, denied, would_deny, overage, delayed, unkeyed } = &*self.0;
        Counts {
            allowed: allowed.load(Relaxed),
            denied: denied.load(Relaxed),
            would_deny: would_deny.load(Relaxed),
            overage: overage.load(Relaxed),
            delayed: delayed.load(Relaxed),
            unkeyed: unkeyed.load(Relaxed),
        }
    }

    pub(crate) fn add(&self, event: Event) {
        let counts = &self.0;
        let counter = match event {
            Event::Allowed => &counts.allowed,
            Event::Denied => &counts.denied,
            Event::WouldDeny => &counts.would_deny,
            Event::Overage => &counts.overage,
            Event::Delayed => &counts.delayed,
            Event::Unkeyed => &counts.unkeyed,
        };
        counter.fetch_add(1, Relaxed);
    }
}
