//! Random quotas, instants at their boundaries, and the numbers of a decision.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::{Decision, Quota, decision::Outcome};

/// Remaining, full, next, retry.
pub(crate) type Row = (u32, Duration, Duration, Option<Duration>);

fn row(outcome: &Outcome) -> Row {
    let retry = outcome.retry_after().filter(|_| !outcome.is_estimated());
    (outcome.remaining(), outcome.reset_after(), outcome.next_after(), retry)
}

/// Returns the wait of a decision, unless it is an estimate, which two stores need not share.
pub(crate) fn exact_wait(decision: &Decision) -> Option<Duration> {
    let is_deciding = |it: &&Outcome| !it.is_report_only() && !it.is_passed_over();
    let is_estimated = decision.outcomes().iter().filter(is_deciding).any(Outcome::is_estimated);
    decision.retry_after().filter(|_| decision.is_allowed() || !is_estimated)
}

pub(crate) fn rows(decision: &Decision) -> Vec<Row> {
    decision.outcomes().iter().map(row).collect()
}

fn quota_of(units: u32, period: u64, burst: u32) -> Option<Quota> {
    Quota::new(units, Duration::from_nanos(period)).ok()?.try_with_burst(burst).ok()
}

/// Quotas whose interval is often rounded, from nanoseconds to days.
pub(crate) fn quota() -> impl Strategy<Value = Quota> {
    let period =
        prop_oneof![1..200_u64, 1_000_000_000..2_000_000_000_u64, 1..400_000_000_000_000_u64];
    (1..30_u32, period, 1..30_u32).prop_filter_map("too fast", |(n, p, b)| quota_of(n, p, b))
}

/// A time near a third of an interval. The interval is that of `quota`.
pub(crate) fn time() -> impl Strategy<Value = (u64, u64)> {
    (prop_oneof![Just(0), 0..8_u64, 0..200_u64], 0..3_u64)
}

pub(crate) fn nanos((thirds, more): (u64, u64), quota: &Quota) -> Duration {
    Duration::from_nanos(nanos_of(quota.interval()) * thirds / 3 + more)
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("fits")
}
