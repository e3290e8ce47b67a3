//! Finds quotas of a rule that never deny a request, because another quota denies it first.
//!
//! A request is charged to all quotas of a rule, at the same cost, or to none of them. Therefore
//! the looser of two quotas receives only charges that the tighter quota allowed. If the looser
//! quota allows every sequence of such charges, it has no effect. Two proofs are tried:
//!
//! - The looser quota never has more used units than the tighter quota, and has at least the same
//!   capacity.
//! - The looser quota allows everything that the tighter quota allows in a time span: the arrival
//!   curve of the tighter quota stays below the service curve of the looser one (network calculus,
//!   Le Boudec and Thiran, chapter 1).
//!
//! The headroom of a request does not change the proofs, because it acts like a final charge of the
//! same size. Quotas are not reported if neither proof succeeds.

use crate::quota::{Algorithm, Quota};

/// Returns pairs of indices. The first quota of a pair never denies a request, and the second quota
/// dominates it. If two quotas allow the same requests, the earlier quota dominates.
///
/// If `only_alike` is `true`, only quotas that count alike are compared. Other accounts can diverge
/// if charges are refunded or made late.
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
    // After an idle time, an account with a low `initial` would start with fewer units than the
    // tighter account.
    starts_full(loose) && (uses_no_more(loose, tight) || allows_curve(loose, tight))
}

fn starts_full(quota: &Quota) -> bool {
    quota.initial_units().is_none_or(|initial| initial == quota.limit())
}

/// Returns `true` if `loose` never has more used units than `tight`, and has at least the capacity
/// of `tight`.
fn uses_no_more(loose: &Quota, tight: &Quota) -> bool {
    use Algorithm::{AnchoredWindow, FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};

    let (period, other) = (loose.period_nanos(), tight.period_nanos());
    let keeps_up = match (loose.counted_by(), tight.counted_by()) {
        (Gcra, Gcra) => loose.interval_nanos() <= tight.interval_nanos(),
        // If the refills differ, one bucket is full earlier and then refills at other instants.
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

/// Compares aligned windows. Each window of the shorter period lies within a window of the longer
/// period.
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

/// Returns the maximum number of units that are allowed in one instant, including overage and
/// carry-over.
fn most_at_once(quota: &Quota) -> u128 {
    let carried = match quota.counted_by() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over.min(quota.units()),
        _ => 0,
    };
    u128::from(quota.raised_limit()) + u128::from(carried)
}

/// Returns `true` if `loose` allows every sequence of charges under the arrival curve of `tight`,
/// without overage.
fn allows_curve(loose: &Quota, tight: &Quota) -> bool {
    let limit = u128::from(loose.limit());
    let period = loose.period_nanos();
    let within = |span: u64| most_in(tight, span) <= limit;
    match loose.counted_by() {
        // GCRA replenishes one unit per interval. It does so continuously, nanosecond by
        // nanosecond.
        Algorithm::Gcra => {
            let (burst, units, time) = line(tight);
            burst <= limit && units * u128::from(loose.interval_nanos()) <= time
        }
        // This case is like GCRA, but immediately before a refill the units of a whole period are
        // missing.
        Algorithm::TokenBucket => {
            let (burst, units, time) = line(tight);
            burst + units * u128::from(period - 1) / time <= limit
                && units * u128::from(period) <= u128::from(loose.units()) * time
        }
        Algorithm::FixedWindow { paced: true, .. } => false,
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow | Algorithm::SlidingLog => {
            within(period)
        }
        // The time span includes the bucket that is leaving the window.
        Algorithm::SlidingWindow { buckets } => within(period + period / u64::from(buckets)),
    }
}

/// Returns the maximum number of units that are allowed within `span` instants, which are one
/// nanosecond apart.
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
    }
}

/// Returns a linear upper bound of [`most_in`]: the units in the first instant, the number of
/// further units, and the time in nanoseconds in which the further units are allowed.
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
    }
}
