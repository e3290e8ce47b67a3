//! Limits of adaptive quotas, found from the latencies of their requests.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::{accounts::quota_id, clock::Clock, ledger::Ledger};
use crate::{
    algorithm::adaptive::{FindLimit, LatencyWindow, finder},
    decision::{Decision, MeasureLatency, NEVER, Outcome, Source, UNKNOWN_WAIT},
    quota::{Adaptive, Quota},
    store::Charge,
};

/// The shortest window, in nanoseconds.
const MIN_WINDOW: u64 = 100_000_000;
/// The smallest number of responses in a window.
const MIN_RESPONSES: u32 = 10;
/// A window shows an overload if one in this number of its responses does. With a smaller share, a
/// single client could lower the limit for all.
const DROPPED_SHARE: u64 = 10;

/// The limits of all keys with adaptive quotas.
#[derive(Debug)]
pub(super) struct AdaptiveLimits {
    /// The maximum number of keys. Beyond it, keys without running requests start again.
    capacity: usize,
    limits: RwLock<HashMap<u64, Arc<AdaptiveLimit>>>,
}

/// The limit of a key.
pub(super) struct AdaptiveLimit {
    clock: Clock,
    algorithm: Adaptive,
    limit: AtomicU32,
    max: AtomicU32,
    /// The largest number of requests in flight since the window began.
    peak: AtomicU32,
    /// `true` if the limit was reached since the window began.
    full: AtomicBool,
    state: Mutex<LimitState>,
}

#[derive(Debug)]
struct LimitState {
    finder: Box<dyn FindLimit>,
    /// The limit with its fraction.
    limit: f64,
    /// The mean latency of the last window in which most requests had a response.
    typical: f64,
    window: Responses,
}

/// The responses of the window so far. Times are in nanoseconds.
#[derive(Debug, Default)]
struct Responses {
    start: u64,
    count: u32,
    sum: u64,
    /// The responses that showed an overload.
    dropped: u32,
    /// The requests without a response.
    unanswered: u32,
}

impl AdaptiveLimits {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, limits: RwLock::default() }
    }

    fn get(
        &self,
        id: u64,
        quota: &Quota,
        algorithm: Adaptive,
        clock: &Clock,
    ) -> Arc<AdaptiveLimit> {
        let fits = |it: &&Arc<AdaptiveLimit>| it.algorithm == algorithm;
        if let Some(limit) = self.limits.read().get(&id).filter(fits) {
            return limit.clone();
        }
        let mut limits = self.limits.write();
        if limits.len() >= self.capacity {
            limits.retain(|_, limit| Arc::strong_count(limit) > 1);
        }
        let limit = Arc::new(AdaptiveLimit::new(quota, algorithm, clock.clone()));
        if limits.len() < self.capacity {
            limits.insert(id, limit.clone());
        }
        limit
    }

    /// Forgets the limit of a key.
    pub(super) fn reset(&self, id: u64) {
        self.limits.write().remove(&id);
    }
}

impl AdaptiveLimit {
    fn new(quota: &Quota, algorithm: Adaptive, clock: Clock) -> Self {
        let limit = quota.initial_limit();
        let window = Responses { start: clock.now(), ..Responses::default() };
        let state =
            LimitState { finder: finder(algorithm), limit: limit.into(), typical: 0.0, window };
        Self {
            clock,
            algorithm,
            limit: limit.into(),
            max: quota.burst().into(),
            peak: 0.into(),
            full: false.into(),
            state: Mutex::new(state),
        }
    }

    /// Returns the current limit, at most that of the quota.
    fn of(&self, quota: &Quota) -> u32 {
        self.max.store(quota.burst(), Relaxed);
        self.limit.load(Relaxed).min(quota.burst())
    }

    /// Adds a request that ends at `now`. Its result is `None` without a response, and otherwise
    /// `true` for one that shows an overload.
    fn add(&self, since: u64, overloaded: Option<bool>, now: u64) {
        let latency = now.saturating_sub(since);
        let mut state = self.state.lock();
        let LimitState { finder, limit, typical, window } = &mut *state;
        if overloaded.is_none() {
            // A client that cancels early could otherwise lower the measured latency.
            if *typical <= 0.0 || latency as f64 <= *typical {
                return;
            }
            window.unanswered += 1;
        }
        window.count += 1;
        window.sum = window.sum.saturating_add(latency);
        window.dropped += u32::from(overloaded == Some(true) || finder.is_drop(latency));
        let mean = window.sum / u64::from(window.count);
        let elapsed = now.saturating_sub(window.start);
        // The effect of a change shows only after one latency.
        if window.count < MIN_RESPONSES || elapsed < mean.max(MIN_WINDOW) {
            return;
        }
        let latency = mean.max(1) as f64;
        if window.unanswered * 2 <= window.count {
            *typical = latency;
        }
        let peak = f64::from(self.peak.swap(0, Relaxed));
        let dropped = u64::from(window.dropped) * DROPPED_SHARE >= window.count.into();
        let is_full = self.full.swap(false, Relaxed);
        let closed = LatencyWindow { latency, peak, is_full, dropped };
        *limit = finder.next(*limit, closed).clamp(1.0, f64::from(self.max.load(Relaxed)));
        *window = Responses { start: now, ..Responses::default() };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        self.limit.store(*limit as u32, Relaxed);
    }
}

impl MeasureLatency for AdaptiveLimit {
    fn end(&self, since: u64, overloaded: Option<bool>) {
        self.add(since, overloaded, self.clock.now());
    }
}

impl Ledger {
    /// Decides on charges of which some are of adaptive quotas, with the limits of now.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_adaptive(&self, charges: &[Charge<'_>], now: u64) -> Decision {
        let mut found = SmallVec::<[_; 2]>::new();
        let quotas: SmallVec<[SmallVec<[Quota; 4]>; 2]> = charges
            .iter()
            .map(|charge| {
                let id = self.hasher.id(charge);
                let fix = |(at, quota): (usize, &Quota)| {
                    let Some(algorithm) = quota.adaptive_algorithm() else { return *quota };
                    let id = quota_id(id, at);
                    let limit = self.adaptive.get(id, quota, algorithm, &self.clock);
                    let fixed = quota.fixed(limit.of(quota));
                    let fits_later = charge.demand().need() <= quota.raised_limit().into();
                    found.push((charge.rule(), at, id, limit, fits_later));
                    fixed
                };
                charge.quotas().iter().enumerate().map(fix).collect()
            })
            .collect();
        let fixed: SmallVec<[Charge<'_>; 4]> = charges
            .iter()
            .zip(&quotas)
            .map(|(charge, quotas)| charge.with_quotas(quotas))
            .collect();
        let mut decision = self.decide_all(&fixed, now);
        let is_adaptive = |rule, place| found.iter().any(|it| (it.0, it.1) == (rule, place));
        let mut denying =
            decision.outcomes().iter().filter(|it| it.is_denied() && !it.is_report_only());
        let sheds = !decision.is_allowed()
            && decision.source() == Source::Local
            && !decision.is_blocked()
            && denying.all(|it| is_adaptive(it.rule(), it.quota_index()));
        for (rule, place, id, limit, fits_later) in &found {
            decision.measure(*id, limit.clone(), now);
            let of_it = |it: &&mut Outcome| it.rule() == *rule && it.quota_index() == *place;
            let Some(outcome) = decision.outcomes_mut().iter_mut().find(of_it) else { continue };
            let held = u32::try_from(outcome.held().unwrap_or(0)).unwrap_or(u32::MAX);
            limit.peak.fetch_max(held, Relaxed);
            // A denied cost does not count as held, because a client may choose it.
            if held >= outcome.limit() || outcome.is_wait_unknown() {
                limit.full.store(true, Relaxed);
            }
            if *fits_later && outcome.retry_ns() == NEVER {
                outcome.set_retry_ns(UNKNOWN_WAIT);
            }
        }
        if sheds { decision.with_source(Source::Overload) } else { decision }
    }
}

impl Ledger {
    /// Returns the quota of slots that an adaptive quota is at this moment.
    pub(super) fn fixed(&self, id: u64, quota: &Quota) -> Option<Quota> {
        let limit = self.adaptive.get(id, quota, quota.adaptive_algorithm()?, &self.clock);
        Some(quota.fixed(limit.of(quota)))
    }
}

impl fmt::Debug for AdaptiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimit").field("limit", &self.limit).finish_non_exhaustive()
    }
}
