//! Limits of concurrent requests that follow the measured latency.

use std::{sync::Arc, time::Duration};

use super::{
    LivePlan,
    controller::{Controller, Finder, Gradient, Measurement},
};
use crate::store::Clock;

/// Limit of concurrent requests that follows the measured latency, against overload.
///
/// The controller measures the requests of a rule, and replaces the [plan](Adaptive::plan) of the
/// rule. A request beyond the limit is shed: it gets a 503, and is charged under no other quota. The
/// slots of an admitted request are free when the head of the response is ready.
///
/// The limit starts at [`initial`](Adaptive::initial), by default 20, and stays between 1 and
/// [`max`](Adaptive::max), by default 1 000. Clones share the limit. The
/// [guide](crate::guide::slots#adaptive-limits) has the details.
///
/// The first ten windows define the usual latency of [`gradient`](Adaptive::gradient). If the limit is
/// reached in most of them, as under an overload, the limit is halved for six windows, and again while
/// that lowers the latency. The lowest latency is then the usual one.
///
/// ```
/// use tower_sluice::{LocalStore, RateLimitLayer, key::Everyone, rule::Adaptive};
///
/// let overload = Adaptive::gradient().initial(50).max(400);
/// let layer = RateLimitLayer::new(Everyone, overload.plan(), LocalStore::new());
/// assert_eq!(overload.limit(), 50);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Adaptive {
    plan: LivePlan,
    controller: Arc<Controller>,
}

impl Adaptive {
    /// Creates a limit that follows the mean latency of a window, and falls by a tenth when a tenth of
    /// its responses show an overload.
    ///
    /// If half of the slots were held, a latency up to 1.5 times its long-term mean raises the limit by
    /// less than one. A higher latency lowers a large limit: one above 64 at 1.6 times the mean, above 16
    /// at twice, and above 8 at three times or more. A smaller limit still grows.
    pub fn gradient() -> Self {
        Self::new(
            Clock::shared(),
            20,
            1_000,
            Finder::Gradient(Gradient::default()),
        )
    }

    /// Creates a limit that falls by a tenth when a tenth of the responses show an overload or take
    /// longer than `timeout`, and otherwise grows by one if half of the slots were held (additive
    /// increase, multiplicative decrease).
    ///
    /// # Panics
    ///
    /// Panics if `timeout` is zero.
    #[track_caller]
    pub fn aimd(timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "adaptive: timeout is 0; give at least 1 ms"
        );
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        Self::new(Clock::shared(), 20, 1_000, Finder::Aimd { timeout })
    }

    fn new(clock: Clock, initial: u32, max: u32, finder: Finder) -> Self {
        let controller = Arc::new(Controller::new(clock, initial, max, finder));
        let plan = LivePlan::of(controller.clone());
        Self { plan, controller }
    }

    /// Creates a limit like this one, with these settings.
    fn with(self, clock: Clock, initial: u32, max: u32) -> Self {
        Self::new(clock, initial, max, self.controller.finder())
    }

    /// Sets the limit before the first window ends. Call it before the limit is used.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0 or above the [`max`](Adaptive::max).
    #[track_caller]
    pub fn initial(self, limit: u32) -> Self {
        let clock = self.controller.clock.clone();
        let max = self.controller.max;
        assert!(
            (1..=max).contains(&limit),
            "adaptive: initial is {limit}; give 1 to max, which is {max}"
        );
        self.with(clock, limit, max)
    }

    /// Sets the highest limit, and lowers [`initial`](Adaptive::initial) to it. Call it before the
    /// limit is used.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[track_caller]
    pub fn max(self, limit: u32) -> Self {
        assert!(limit > 0, "adaptive: max is 0; give at least 1");
        let clock = self.controller.clock.clone();
        let initial = self.limit().min(limit);
        self.with(clock, initial, limit)
    }

    /// Creates a limit like this one, which measures with `clock`.
    #[cfg(feature = "testing")]
    pub(crate) fn on(self, clock: Clock) -> Self {
        let initial = self.limit();
        let max = self.controller.max;
        self.with(clock, initial, max)
    }

    /// Returns the plan for a rule, with one [concurrent](crate::Quota::concurrent) quota.
    #[must_use]
    pub fn plan(&self) -> &LivePlan {
        &self.plan
    }

    /// Returns the current limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.controller.limit()
    }

    /// Starts to measure work that holds `slots` slots, outside of a layer.
    ///
    /// ```
    /// use tower_sluice::{Limiter, rule::Adaptive};
    ///
    /// let limiter = Limiter::local();
    /// let limit = Adaptive::gradient();
    /// let running = limiter.take("all", &limit.plan().quotas(), 1).now();
    /// if running.is_allowed() {
    ///     let measurement = limit.start(1);
    ///     // … the work
    ///     measurement.complete(false);
    /// }
    /// ```
    pub fn start(&self, slots: u32) -> Measurement {
        let mut measurement = self.controller.hold(slots);
        measurement.start();
        measurement
    }
}
