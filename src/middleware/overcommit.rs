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
/// failed or does not support it.
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
    /// Layers with clones of this value count their requests together, also those that are not charged. A
    /// request is in flight until the head of its response is available.
    #[must_use]
    pub fn in_flight(max: usize) -> Self {
        Self(Signal::InFlight {
            max,
            now: Arc::default(),
        })
    }

    /// Counts a request as in flight if capacity is available.
    pub(crate) fn try_enter(&self) -> Option<InFlight> {
        match &self.0 {
            Signal::When(room) => room().then_some(InFlight(None)),
            Signal::InFlight { max, now } => {
                let one_more = |n| (n < *max).then_some(n + 1);
                now.fetch_update(AcqRel, Acquire, one_more)
                    .ok()
                    .map(|_| InFlight(Some(now.clone())))
            }
        }
    }

    /// Counts a request as in flight, even beyond the capacity.
    pub(crate) fn enter(&self) -> InFlight {
        let Signal::InFlight { now, .. } = &self.0 else {
            return InFlight(None);
        };
        now.fetch_add(1, AcqRel);
        InFlight(Some(now.clone()))
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

/// A request in flight. If it is counted, it is counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Option<Arc<AtomicUsize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(now) = &self.0 {
            now.fetch_sub(1, AcqRel);
        }
    }
}
