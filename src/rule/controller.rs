//! Measured requests, and the limit that follows from their latency.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;

use super::quotas::Quotas;
use crate::{quota::Quota, store::Clock};

/// The shortest window, in nanoseconds.
const MIN_WINDOW: u64 = 100_000_000;
/// The smallest number of responses in a window.
const MIN_RESPONSES: u32 = 10;
/// A window is overloaded if one in this number of its responses shows an overload. With a smaller share,
/// a single client could lower the limit for all.
const OVERLOAD_SHARE: u64 = 10;
/// The part of the limit that is left after an overload.
const DECREASE: f64 = 0.9;

/// Measures requests, and replaces the limit of a plan.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(super) clock: Clock,
    /// The quotas of the plan.
    pub(super) quotas: Arc<ArcSwap<Quotas>>,
    /// The highest limit.
    pub(crate) max: u32,
    /// The slots of the requests that run.
    in_flight: AtomicU32,
    /// The largest number of these slots since the window began.
    peak: AtomicU32,
    state: Mutex<LimitState>,
}

#[derive(Clone, Copy, Debug)]
struct LimitState {
    finder: Finder,
    /// The limit with its fraction.
    limit: f64,
    /// The mean latency of the last window in which most requests had a response.
    typical: f64,
    window: LatencyWindow,
}

/// The responses of a window. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct LatencyWindow {
    start: u64,
    count: u32,
    sum: u64,
    /// The responses that showed an overload.
    overloaded: u32,
    /// The requests without a response.
    unanswered: u32,
}

/// Measurement of a request under an [`Adaptive`](super::Adaptive) limit.
///
/// A request whose measurement is dropped has no response. It counts only if it took longer than
/// usual, because clients that cancel early would otherwise lower the measured latency.
#[derive(Debug)]
#[must_use = "a measurement that is dropped has no response"]
pub struct Measurement {
    controller: Arc<Controller>,
    /// `None` until the work starts.
    since: Option<u64>,
    slots: u32,
    overloaded: Option<bool>,
}

impl Measurement {
    /// Starts the work.
    pub(crate) fn start(&mut self) {
        self.since = Some(self.controller.clock.now());
    }

    /// Ends the measurement with a response, or with `true` if the work failed because of an
    /// overload.
    pub fn complete(mut self, overloaded: bool) {
        self.overloaded = Some(overloaded);
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        self.controller.in_flight.fetch_sub(self.slots, Relaxed);
        if let Some(since) = self.since {
            self.controller.end(since, self.overloaded);
        }
    }
}

impl Controller {
    pub(super) fn new(clock: Clock, initial: u32, max: u32, finder: Finder) -> Self {
        let state = LimitState {
            finder,
            limit: initial.into(),
            typical: 0.0,
            window: LatencyWindow::starting(clock.now()),
        };
        Self {
            clock,
            quotas: Arc::new(ArcSwap::from_pointee(quotas(initial))),
            max,
            in_flight: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    pub(super) fn finder(&self) -> Finder {
        self.state().finder
    }

    /// Returns the current limit.
    pub(super) fn limit(&self) -> u32 {
        self.state().whole_limit()
    }

    /// Counts slots, whose work has not started yet.
    pub(crate) fn hold(self: &Arc<Self>, slots: u32) -> Measurement {
        let in_flight = self
            .in_flight
            .fetch_add(slots, Relaxed)
            .saturating_add(slots);
        self.peak.fetch_max(in_flight, Relaxed);
        Measurement {
            controller: self.clone(),
            since: None,
            slots,
            overloaded: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request that ends now. Its result is `None` without a response.
    fn end(&self, since: u64, overloaded: Option<bool>) {
        let now = self.clock.now();
        let latency = now.saturating_sub(since);
        let mut state = self.state();
        if overloaded.is_none() && !state.is_unusual(latency) {
            return;
        }
        state.add(latency, overloaded);
        if !state.window.is_complete(now) {
            return;
        }
        let peak = self.peak.swap(self.in_flight.load(Relaxed), Relaxed);
        state.end_window(now, peak, self.max);
        self.quotas.store(Arc::new(quotas(state.whole_limit())));
    }
}

/// Returns the quotas of a plan with this limit.
fn quotas(limit: u32) -> Quotas {
    Quota::concurrent(limit).shedding().into()
}

impl LatencyWindow {
    fn starting(start: u64) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    fn mean(&self) -> u64 {
        self.sum / u64::from(self.count)
    }

    fn is_complete(&self, now: u64) -> bool {
        // The effect of a change shows only after one latency.
        let is_long = now.saturating_sub(self.start) >= self.mean().max(MIN_WINDOW);
        is_long && self.count >= MIN_RESPONSES
    }

    fn is_overloaded(&self) -> bool {
        u64::from(self.overloaded) * OVERLOAD_SHARE >= self.count.into()
    }
}

impl LimitState {
    /// Returns `true` for a longer latency than the mean, if that is known.
    fn is_unusual(&self, latency: u64) -> bool {
        self.typical > 0.0 && latency as f64 > self.typical
    }

    /// Adds a request to the window. Its result is `None` without a response.
    fn add(&mut self, latency: u64, overloaded: Option<bool>) {
        let is_overloaded = overloaded == Some(true) || self.finder.is_too_slow(latency);
        let window = &mut self.window;
        window.unanswered += u32::from(overloaded.is_none());
        window.count += 1;
        window.sum = window.sum.saturating_add(latency);
        window.overloaded += u32::from(is_overloaded);
    }

    /// Finds the limit after the window, in which at most `peak` slots were held, and begins the next one.
    fn end_window(&mut self, now: u64, peak: u32, max: u32) {
        let window = mem::replace(&mut self.window, LatencyWindow::starting(now));
        let latency = window.mean().max(1) as f64;
        if window.unanswered * 2 <= window.count {
            self.typical = latency;
        }
        let limit = self.finder.next(&WindowResult {
            limit: self.limit,
            latency,
            peak: peak.into(),
            is_overloaded: window.is_overloaded(),
        });
        self.limit = limit.clamp(1.0, max.into());
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to max"
    )]
    fn whole_limit(&self) -> u32 {
        self.limit as u32
    }
}

/// The result of a window.
struct WindowResult {
    /// The limit during the window.
    limit: f64,
    /// The mean latency.
    latency: f64,
    /// The largest number of slots that were held.
    peak: f64,
    is_overloaded: bool,
}

impl WindowResult {
    /// Returns `true` if half of the slots were held.
    fn is_used(&self) -> bool {
        self.peak * 2.0 >= self.limit
    }

    /// Returns `true` if the limit was reached.
    fn is_full(&self) -> bool {
        self.peak >= self.limit.floor()
    }
}

/// An algorithm that finds the limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finder {
    Gradient(Gradient),
    /// The timeout is in nanoseconds.
    Aimd {
        timeout: u64,
    },
}

impl Finder {
    /// Returns `true` if a response of this latency shows an overload.
    fn is_too_slow(&self, latency: u64) -> bool {
        matches!(self, Self::Aimd { timeout } if latency > *timeout)
    }

    /// Returns the limit after a window.
    fn next(&mut self, window: &WindowResult) -> f64 {
        match self {
            Self::Aimd { .. } if window.is_overloaded => window.limit * DECREASE,
            Self::Aimd { .. } => window.limit + f64::from(u8::from(window.is_used())),
            Self::Gradient(gradient) => gradient.next(window),
        }
    }
}

/// The gradient of the latency, after Netflix's `Gradient2Limit`.
///
/// Unlike there, the long-term mean does not follow windows in which the limit was reached. In a
/// long overload, it would otherwise rise with the queue, and the limit with it. Such a window only
/// lowers a mean of more than twice its latency. If the limit was reached
/// while the mean was learned, the latency may be that of an overload: a [`Probe`] finds out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gradient {
    windows: u32,
    /// The windows of the warmup in which the limit was reached.
    full: u32,
    probe: Option<Probe>,
    /// The long-term mean of the latency.
    long: f64,
    /// The start of the windows in which the latency lowers the limit.
    lowering: Option<Lowering>,
}

/// The limit after a window with a higher latency than usual, and the latency of that window.
#[derive(Clone, Copy, Debug)]
struct Lowering {
    limit: f64,
    latency: f64,
}

/// A comparison of the latency with that of half of the limit, for some windows.
///
/// If half of the limit has about the same latency, no request waited in the service.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The limit and the latency before it was halved.
    limit: f64,
    latency: f64,
    windows: u32,
    /// The mean latency of the windows.
    mean: f64,
}

/// The number of windows until the long-term mean is known.
const WARMUP: u32 = 10;
/// A warmup with at least this many full windows may have learned an overload. The first windows have no
/// queue yet.
const MOST_OF_WARMUP: u32 = 8;
/// A latency of at least this part of another one is about the same: less than a tenth is noise.
const ABOUT_THE_SAME: f64 = 0.9;
/// If the latency at half of the limit is above this part of the latency before, halving did not help. A
/// queue would be half as long.
const NOT_LOWERED: f64 = 0.75;

impl Gradient {
    /// Returns the limit after a window.
    fn next(&mut self, window: &WindowResult) -> f64 {
        if let Some(probe) = self.probe {
            if !window.is_overloaded {
                return self.add_to_probe(probe, window);
            }
            // An overload lowers both limits at once. Its latency says nothing about half of the limit.
            let limit = probe.limit * DECREASE;
            self.probe = Some(Probe { limit, ..probe });
            return window.limit * DECREASE;
        }
        self.learn(window);
        let was_full = self.full >= MOST_OF_WARMUP;
        if self.windows == WARMUP && was_full && window.limit >= 2.0 {
            return self.halve(window.limit, self.long);
        }
        if window.is_overloaded {
            return window.limit * DECREASE;
        }
        self.follow(window)
    }

    /// Adds a window to the long-term mean.
    fn learn(&mut self, window: &WindowResult) {
        let is_full = window.is_full();
        self.windows = self.windows.saturating_add(1);
        self.long = long_term_mean(self.long, window.latency, self.windows, is_full);
        if self.windows <= WARMUP {
            self.full += u32::from(is_full);
        }
    }

    /// Returns the limit that follows from the gradient of the latency.
    fn follow(&mut self, window: &WindowResult) -> f64 {
        /// The ratio of the latencies above which a large limit falls. A small one still grows, because of
        /// `QUEUE`.
        const TOLERANCE: f64 = 1.5;
        /// The part of a window in the new limit.
        const SMOOTHING: f64 = 0.2;
        /// The requests by which the limit grows, before smoothing.
        const QUEUE: f64 = 4.0;
        let limit = window.limit;
        let gradient = (TOLERANCE * self.long / window.latency).clamp(0.5, 1.0);
        let next = if window.is_used() {
            (1.0 - SMOOTHING) * limit + SMOOTHING * (gradient * limit + QUEUE)
        } else {
            limit
        };
        if gradient < 1.0 {
            self.accept_if_not_lowered(next, window.latency);
        } else {
            self.lowering = None;
        }
        next
    }

    /// Accepts a higher latency as the usual one if half of the limit has not lowered it. A queue is then not
    /// its cause.
    fn accept_if_not_lowered(&mut self, limit: f64, latency: f64) {
        let now = Lowering { limit, latency };
        let start = *self.lowering.get_or_insert(now);
        let has_risen = start.latency < ABOUT_THE_SAME * latency;
        let has_grown = limit > start.limit;
        // In both cases, nothing shows what a lower limit does to the latency: the comparison starts again.
        if has_risen || has_grown {
            self.lowering = Some(now);
            return;
        }
        let is_halved = limit <= start.limit / 2.0;
        if !is_halved {
            return;
        }
        if latency > NOT_LOWERED * start.latency {
            self.long = latency;
        }
        self.lowering = None;
    }

    /// Starts to compare `latency` with that of half of the limit. Returns that half.
    fn halve(&mut self, limit: f64, latency: f64) -> f64 {
        self.probe = Some(Probe {
            limit,
            latency,
            windows: 0,
            mean: 0.0,
        });
        limit / 2.0
    }

    /// Adds a window to the comparison. Returns the next limit.
    fn add_to_probe(&mut self, mut probe: Probe, window: &WindowResult) -> f64 {
        /// The windows of a comparison. The first one still has requests of the larger limit.
        const WINDOWS: u32 = 6;
        probe.windows += 1;
        if probe.windows > 1 {
            probe.mean += (window.latency - probe.mean) / f64::from(probe.windows - 1);
        }
        if probe.windows < WINDOWS {
            self.probe = Some(probe);
            return window.limit;
        }
        self.probe = None;
        self.long = self.long.min(probe.mean);
        if probe.mean >= ABOUT_THE_SAME * probe.latency {
            probe.limit
        } else if window.limit >= 2.0 {
            self.halve(window.limit, probe.mean)
        } else {
            window.limit
        }
    }
}

/// Returns the long-term mean after the window with the number `windows`, whose latency was `short`.
fn long_term_mean(mut long: f64, short: f64, windows: u32, is_full: bool) -> f64 {
    /// The number of windows of the long-term mean.
    const LONG: f64 = 600.0;
    if windows <= WARMUP {
        long += (short - long) / f64::from(windows);
    } else if !is_full {
        long += (short - long) * 2.0 / (LONG + 1.0);
    }
    if long > 2.0 * short {
        long * 0.95
    } else {
        long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full warmup ends by halving the limit, even if its windows were overloaded.
    #[test]
    fn a_full_limit_is_halved_after_a_warmup_with_overloaded_windows() {
        for overloaded in [&[][..], &[10], &[1, 2, 3, 9, 10]] {
            let mut gradient = Gradient::default();
            let mut next = |limit, window| {
                gradient.next(&WindowResult {
                    limit,
                    latency: 100.0,
                    peak: limit,
                    is_overloaded: overloaded.contains(&window),
                })
            };
            let limit = (1..WARMUP).fold(20.0, &mut next);
            let last = next(limit, WARMUP);
            assert!(
                (last - limit / 2.0).abs() < 1e-9,
                "{overloaded:?}: from {limit} to {last}"
            );
        }
    }
}
