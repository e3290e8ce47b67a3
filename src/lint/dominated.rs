//! Which quotas of a rule can never be the one that refuses.
//!
//! All quotas of a rule are charged alike, or none is. So the charges that reach the looser of two
//! are those that the tighter one admitted: if the looser one admits every sequence of those, it
//! is as good as not there. That is shown in one of two ways.
//!
//! - The two keep the same account, in units, or the looser one never owes more, and has more room.
//! - Whatever the tighter one admits in a span of time, the looser one admits: its arrival curve
//!   stays below the other's service (as in network calculus, Le Boudec and Thiran, chapter 1).
//!
//! A request's headroom changes nothing: a charge that would have to leave units over is judged as
//! a last one of that size. What neither way shows is not said.

use crate::quota::{Algorithm, Quota};

/// Places of quotas that never refuse, each with that of one which refuses whatever it would.
/// Of two that admit the same the earlier one counts. Where charges may also be taken back or come
/// late, accounts that differ may part: `only_alike`.
pub(super) fn pairs(quotas: &[Quota], only_alike: bool) -> Vec<(usize, usize)> {
    let under = |loose: usize, tight: usize| {
        let (loose, tight) = (&quotas[loose], &quotas[tight]);
        loose.counts_like(tight) || (!only_alike && never_refuses(loose, tight))
    };
    let by = |loose: usize| {
        let tighter = |tight: &usize| {
            *tight != loose && under(loose, *tight) && (*tight < loose || !under(*tight, loose))
        };
        (0..quotas.len()).find(tighter).map(|tight| (loose, tight))
    };
    (0..quotas.len()).filter_map(by).collect()
}

/// Whether `loose` admits whatever `tight` admits.
fn never_refuses(loose: &Quota, tight: &Quota) -> bool {
    if tight.is_blocked() || loose.is_blocked() {
        return tight.is_blocked();
    }
    // one that has been idle would start anew, below what the other has
    starts_full(loose) && (owes_no_more(loose, tight) || admits_curve(loose, tight))
}

fn starts_full(quota: &Quota) -> bool {
    quota.initial_units().is_none_or(|initial| initial == quota.limit())
}

/// Whether `loose` never owes more units than `tight`, and has room for at least as many.
fn owes_no_more(loose: &Quota, tight: &Quota) -> bool {
    use Algorithm::{AnchoredWindow, FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};

    let (period, other) = (loose.period_nanos(), tight.period_nanos());
    let keeps_up = match (loose.counted_by(), tight.counted_by()) {
        (Gcra, Gcra) => loose.interval_nanos() <= tight.interval_nanos(),
        // with another refill one is full before the other, and then begins another grid
        (TokenBucket, TokenBucket) => {
            period == other && loose.units() == tight.units() && starts_full(tight)
        }
        (AnchoredWindow, AnchoredWindow) | (SlidingLog, SlidingLog) => period == other,
        (SlidingWindow { buckets: a }, SlidingWindow { buckets: b }) => period == other && a == b,
        (FixedWindow { paced: false, .. }, FixedWindow { .. }) => {
            return holds_windows(loose, tight);
        }
        _ => false,
    };
    keeps_up && loose.limit() >= tight.limit() && loose.raised_limit() >= tight.raised_limit()
}

/// Aligned windows: each of the one kind lies within one of the other.
fn holds_windows(loose: &Quota, tight: &Quota) -> bool {
    let (period, other) = (loose.period_nanos(), tight.period_nanos());
    let windows = match (other.is_multiple_of(period), period.is_multiple_of(other)) {
        (true, _) => 1,
        (_, true) => u128::from(period / other),
        _ => return false,
    };
    // overage may have filled the windows before
    let before = (windows - 1) * most_at_once(tight);
    let raised = before + most_at_once(tight);
    let plain = raised - u128::from(tight.soft_units());
    plain <= loose.limit().into() && raised <= loose.raised_limit().into()
}

/// Units that pass at once, overage and what was lent among them.
fn most_at_once(quota: &Quota) -> u128 {
    let lent = match quota.counted_by() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over.min(quota.units()),
        _ => 0,
    };
    u128::from(quota.raised_limit()) + u128::from(lent)
}

/// Whether `loose` admits, without overage, whatever fits under the arrival curve of `tight`.
fn admits_curve(loose: &Quota, tight: &Quota) -> bool {
    let limit = u128::from(loose.limit());
    let period = loose.period_nanos();
    let within = |span: u64| most_in(tight, span) <= limit;
    match loose.counted_by() {
        // it gives `period / interval` back in a period, a nanosecond's worth at a time
        Algorithm::Gcra => {
            let (burst, units, time) = line(tight);
            burst <= limit && units * u128::from(loose.interval_nanos()) <= time
        }
        // the same in units, but right before a refill a whole period's worth is missing
        Algorithm::TokenBucket => {
            let (burst, units, time) = line(tight);
            burst + units * u128::from(period - 1) / time <= limit
                && units * u128::from(period) <= u128::from(loose.units()) * time
        }
        Algorithm::FixedWindow { paced: true, .. } => false,
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow | Algorithm::SlidingLog => {
            within(period)
        }
        // with the bucket that is leaving
        Algorithm::SlidingWindow { buckets } => within(period + period / u64::from(buckets)),
    }
}

/// The most that passes within `span` instants, a nanosecond apart.
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

/// A line above [`most_in`]: so many units at once, and so many more in each time.
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
