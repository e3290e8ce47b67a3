//! Finds quotas without effect, because another quota of the rule denies first.
//!
//! A request is charged to all quotas of a rule or to none. A looser quota therefore sees only
//! requests that a tighter quota allows. The looser quota has no effect in these cases:
//!
//! - The looser quota never has more used units than the tighter one, and has no lower capacity.
//! - The looser quota allows the arrival curve of the tighter one (network calculus, Le Boudec and
//!   Thiran, chapter 1).

use crate::quota::{Algorithm, Quota};

/// Returns pairs of indices: a quota without effect, and the quota that denies first.
///
/// With `only_alike`, compares only quotas with equal settings. Set `only_alike` if charges can be
/// adjusted or requests can queue.
pub(super) fn pairs(quotas: &[Quota], only_alike: bool) -> Vec<(usize, usize)> {
    let is_dominated = |loose: usize, tight: usize| {
        let (loose, tight) = (&quotas[loose], &quotas[tight]);
        loose.counts_like(tight) || (!only_alike && never_denies(loose, tight))
    };
    let pair = |loose: usize| {
        let dominates = |tight: &usize| {
            *tight != loose
                && is_dominated(loose, *tight)
                && (*tight < loose || !is_dominated(*tight, loose))
        };
        (0..quotas.len()).find(dominates).map(|tight| (loose, tight))
    };
    (0..quotas.len()).filter_map(pair).collect()
}

/// Returns `true` if `loose` provably allows every request that `tight` allows.
fn never_denies(loose: &Quota, tight: &Quota) -> bool {
    if tight.is_blocked() || loose.is_blocked() {
        return tight.is_blocked();
    }
    if loose.is_concurrent() || tight.is_concurrent() {
        // A rate never bounds the number of running requests, nor the reverse.
        let both = loose.is_concurrent() && tight.is_concurrent();
        return both
            && !loose.is_adaptive()
            && loose.limit() >= tight.limit()
            && loose.raised_limit() >= tight.raised_limit();
    }
    // With a low `initial`, a new account has fewer units than the tighter account.
    starts_full(loose) && (uses_no_more(loose, tight) || allows_curve(loose, tight))
}

fn starts_full(quota: &Quota) -> bool {
    quota.initial_units().is_none_or(|initial| initial == quota.limit())
}

/// Returns `true` if `loose` never has more used units than `tight`, and has no lower capacity.
fn uses_no_more(loose: &Quota, tight: &Quota) -> bool {
    use Algorithm::{AnchoredWindow, FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};

    let (period, other) = (loose.period_nanos(), tight.period_nanos());
    let keeps_up = match (loose.counted_by(), tight.counted_by()) {
        (Gcra, Gcra) => loose.interval_nanos() <= tight.interval_nanos(),
        // With other refills, the buckets refill at different instants.
        (TokenBucket, TokenBucket) => {
            period == other && loose.units() == tight.units() && starts_full(tight)
        }
        (AnchoredWindow, AnchoredWindow) | (SlidingLog, SlidingLog) => period == other,
        (SlidingWindow { buckets: a }, SlidingWindow { buckets: b }) => period == other && a == b,
        (FixedWindow { paced: false, .. }, FixedWindow { .. }) => {
            return contains_windows(loose, tight);
        }
        _ => false,
    };
    keeps_up && loose.limit() >= tight.limit() && loose.raised_limit() >= tight.raised_limit()
}

/// Returns `true` if the aligned window `loose` allows every request that `tight` allows.
///
/// Compares only windows whose periods are multiples of one another.
fn contains_windows(loose: &Quota, tight: &Quota) -> bool {
    let (period, other) = (loose.period_nanos(), tight.period_nanos());
    let windows = match (other.is_multiple_of(period), period.is_multiple_of(other)) {
        (true, _) => 1,
        (_, true) => u128::from(period / other),
        _ => return false,
    };
    // Overage may have filled the previous windows.
    let before = (windows - 1) * most_at_once(tight);
    let raised = before + most_at_once(tight);
    let plain = raised - u128::from(tight.soft_units());
    plain <= loose.limit().into() && raised <= loose.raised_limit().into()
}

/// Returns the maximum units that `quota` allows at one instant.
fn most_at_once(quota: &Quota) -> u128 {
    let carried = match quota.counted_by() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over.min(quota.units()),
        _ => 0,
    };
    u128::from(quota.raised_limit()) + u128::from(carried)
}

/// Returns `true` if `loose` allows every burst and rate that `tight` allows.
fn allows_curve(loose: &Quota, tight: &Quota) -> bool {
    let limit = u128::from(loose.limit());
    let period = loose.period_nanos();
    let within = |span: u64| most_in(tight, span) <= limit;
    match loose.counted_by() {
        // GCRA gives back one unit per interval, nanosecond by nanosecond.
        Algorithm::Gcra => {
            let (burst, units, time) = line(tight);
            burst <= limit && units * u128::from(loose.interval_nanos()) <= time
        }
        // As for GCRA, but directly before a refill the units of a whole period are missing.
        Algorithm::TokenBucket => {
            let (burst, units, time) = line(tight);
            burst + units * u128::from(period - 1) / time <= limit
                && units * u128::from(period) <= u128::from(loose.units()) * time
        }
        Algorithm::FixedWindow { paced: true, .. } | Algorithm::Concurrent => false,
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow | Algorithm::SlidingLog => {
            within(period)
        }
        // The span includes the bucket that is leaving the window.
        Algorithm::SlidingWindow { buckets } => within(period + period / u64::from(buckets)),
    }
}

/// Returns the maximum units that `quota` allows within `span` nanoseconds.
fn most_in(quota: &Quota, span: u64) -> u128 {
    let (period, after) = (quota.period_nanos(), span - 1);
    let at_once = most_at_once(quota);
    let times = |n: u64| at_once * u128::from(n);
    match quota.counted_by() {
        Algorithm::Gcra => at_once + u128::from(after / quota.interval_nanos()),
        Algorithm::TokenBucket => {
            at_once + u128::from(quota.units()) * u128::from(after.div_ceil(period))
        }
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
            times(after.div_ceil(period) + 1)
        }
        Algorithm::SlidingWindow { buckets } => {
            let touched = after.div_ceil(period / u64::from(buckets)) + 1;
            times(touched.div_ceil(buckets.into()))
        }
        Algorithm::SlidingLog => times(after / period + 1),
        // Short requests may follow one another at any rate.
        Algorithm::Concurrent => u64::MAX.into(),
    }
}

/// Returns a linear upper bound of [`most_in`], as `(burst, units, time)`.
///
/// The bound is `burst` units at once, plus `units` units every `time` nanoseconds.
fn line(quota: &Quota) -> (u128, u128, u128) {
    let (at_once, period) = (most_at_once(quota), u128::from(quota.period_nanos()));
    match quota.counted_by() {
        Algorithm::Gcra => (at_once, 1, quota.interval_nanos().into()),
        Algorithm::TokenBucket => {
            (at_once + u128::from(quota.units()), quota.units().into(), period)
        }
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => (2 * at_once, at_once, period),
        Algorithm::SlidingWindow { buckets } => {
            (at_once + at_once.div_ceil(buckets.into()), at_once, period)
        }
        Algorithm::SlidingLog => (at_once, at_once, period),
        Algorithm::Concurrent => (u64::MAX.into(), 1, 1),
    }
}
