//! A flag that can be changed at run time.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

/// Flag that can be changed at run time. Clones share the flag.
///
/// [`RateLimitLayer::enabled`](crate::RateLimitLayer::enabled) turns a layer on and off. With
/// [`RateLimitLayer::report_only`](crate::RateLimitLayer) or [`Rule::report_only`](crate::Rule),
/// the layer or the rule denies no request while the flag is on.
///
/// ```
/// use tower_sluice::{Quota, RateLimitLayer, middleware::Toggle};
///
/// let limits = Toggle::on();
/// let trial = Toggle::off();
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
    /// `true` if the flag is a constant, created from a `bool`.
    fixed: bool,
}

impl Toggle {
    /// Creates a flag that is on.
    #[must_use]
    pub fn on() -> Self {
        Self {
            fixed: false,
            ..Self::from(true)
        }
    }

    /// Creates a flag that is off.
    #[must_use]
    pub fn off() -> Self {
        Self {
            fixed: false,
            ..Self::from(false)
        }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Turns the flag on or off. Applies to the next request.
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
        Self {
            flag: Arc::new(AtomicBool::new(on)),
            fixed: true,
        }
    }
}

impl From<&Self> for Toggle {
    fn from(toggle: &Self) -> Self {
        toggle.clone()
    }
}
