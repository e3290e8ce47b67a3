//! Values that are flipped or read while the server runs: a switch, a load signal, counters.

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

/// What is flipped while the server runs: a handle to keep, and what it is given to goes by it. A
/// clone is the same switch.
///
/// Given to [`switch`](crate::RateLimitLayer::switch), it turns a whole layer off and on: off,
/// requests pass and no store is asked. Given to [`Rule::report_only_while`](crate::Rule) or
/// [`RateLimitLayer::report_only_while`](crate::RateLimitLayer), the rule or the layer counts and
/// refuses nobody while it is on.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, Switch};
///
/// let (limits, trial) = (Switch::on(), Switch::off());
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10))
///     .switch(&limits)
///     .report_only_while(&trial);
///
/// trial.set(true); // from the next request on nobody is refused
/// limits.set(false); // and nobody counted
/// ```
#[derive(Clone, Debug)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    /// A switch that is on.
    #[must_use]
    pub fn on() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A switch that is off.
    #[must_use]
    pub fn off() -> Self {
        Self(Arc::default())
    }

    /// Turns it on or off, from the next request on.
    pub fn set(&self, on: bool) {
        self.0.store(on, Release);
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.load(Acquire)
    }
}

/// Lets a request pass that a quota refuses, while a signal says the system has room: uncharged,
/// and marked as [overage](crate::Decision::is_overage). A cost that can never fit stays refused.
///
/// ```
/// use tower_sluice::{Elastic, Quota, RateLimitLayer};
///
/// // limits bind only while 100 requests or more are in flight
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).elastic(Elastic::in_flight(100));
/// ```
#[derive(Clone)]
pub struct Elastic(Signal);

#[derive(Clone)]
enum Signal {
    When(Arc<dyn Fn() -> bool + Send + Sync>),
    InFlight { most: usize, now: Arc<AtomicUsize> },
}

impl Elastic {
    /// There is room while `room` says so.
    pub fn when(room: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Signal::When(Arc::new(room)))
    }

    /// There is room while fewer than `most` requests are in flight behind the layers that share
    /// this value, counted until their response's head is there.
    #[must_use]
    pub fn in_flight(most: usize) -> Self {
        Self(Signal::InFlight { most, now: Arc::default() })
    }

    /// Lets one more in if there is room, and takes its place there: those who ask at one moment
    /// see one another.
    pub(crate) fn try_enter(&self) -> Option<InFlight> {
        match &self.0 {
            Signal::When(room) => room().then_some(InFlight(None)),
            Signal::InFlight { most, now } => Counted::try_new(now, *most).map(InFlight::from),
        }
    }

    /// One more, whether or not there is room.
    pub(crate) fn enter(&self) -> InFlight {
        match &self.0 {
            Signal::When(_) => InFlight(None),
            Signal::InFlight { now, .. } => Counted::new(now).into(),
        }
    }
}

impl fmt::Debug for Elastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Signal::When(_) => f.write_str("Elastic(fn)"),
            Signal::InFlight { most, now } => {
                write!(f, "Elastic({} of {most} in flight)", now.load(Acquire))
            }
        }
    }
}

/// A request behind a layer that is elastic, counted where its room is a number of them.
#[derive(Debug)]
pub(crate) struct InFlight(
    #[expect(dead_code, reason = "counts until it is dropped")] Option<Counted>,
);

impl From<Counted> for InFlight {
    fn from(counted: Counted) -> Self {
        Self(Some(counted))
    }
}

/// One of a number of things that are going on.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(now: &Arc<AtomicUsize>) -> Self {
        now.fetch_add(1, AcqRel);
        Self(now.clone())
    }

    /// One more, unless there are `most` already.
    pub(crate) fn try_new(now: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |n| (n < most).then_some(n + 1);
        now.fetch_update(AcqRel, Acquire, one_more).ok().map(|_| Self(now.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

/// What a layer has decided so far: a handle to read, and a clone for
/// [`count`](crate::RateLimitLayer::count).
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    allowed: AtomicU64,
    denied: AtomicU64,
    would_deny: AtomicU64,
    overage: AtomicU64,
    delayed: AtomicU64,
    unkeyed: AtomicU64,
}

/// The [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused by a store.
    pub denied: u64,
    /// Requests that passed because a rule or the layer only reports.
    pub would_deny: u64,
    /// Requests that passed as overage.
    pub overage: u64,
    /// Requests that waited for their place.
    pub delayed: u64,
    /// Requests that were refused without asking a store: for want of an identity, with one that
    /// cannot be used, or by a deny list.
    pub unkeyed: u64,
}

/// What is counted of one request.
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
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The numbers now; each is exact, and together they are not one moment's.
    #[must_use]
    pub fn read(&self) -> Counts {
        let Numbers { allowed, denied, would_deny, overage, delayed, unkeyed } = &*self.0;
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
        let numbers = &self.0;
        let counter = match event {
            Event::Allowed => &numbers.allowed,
            Event::Denied => &numbers.denied,
            Event::WouldDeny => &numbers.would_deny,
            Event::Overage => &numbers.overage,
            Event::Delayed => &numbers.delayed,
            Event::Unkeyed => &numbers.unkeyed,
        };
        counter.fetch_add(1, Relaxed);
    }
}
