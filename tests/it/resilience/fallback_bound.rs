//! The units that processes with local fallbacks allow together, for every kind of failure.
//!
//! They are at most the quota, plus rounding. Time advances only by the tests.

use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::{Algorithm, Decision, Quota};

use crate::support::{
    all_algorithms,
    driven::{Time, millis, secs},
    process::Process,
    shaky::Mood,
};

/// Units of one key that all processes allowed and did not undo.
#[derive(Default)]
struct Admitted(i64);

impl Admitted {
    fn add(&mut self, decision: &Decision, units: u32) {
        self.0 += if decision.is_allowed() { i64::from(units) } else { 0 };
    }

    fn at_most(&self, most: u128) -> bool {
        self.0 <= i64::try_from(most).expect("few")
    }
}

/// The most that one store allows in this time: `more` at once, and the refilled units, rounded up
/// together each time.
fn bound(quota: Quota, time: Duration, more: u32) -> u128 {
    let (limit, units) = (u128::from(quota.limit() + more), u128::from(quota.units() + more));
    let (time, period) = (time.as_nanos(), quota.period().as_nanos());
    match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket => {
            limit + time * u128::from(quota.units()) / period
        }
        _ => (time / period + 1) * units,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

/// The process that calls and the milliseconds before the call.
fn requests() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let later = prop_oneof![4 => Just(0), 2 => 0..300_u64, 1 => 0..20_000_u64];
    prop::collection::vec((0..6_usize, later), 0..400)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let gcra = (1..40_u32, 1..40_u32).prop_map(|(n, burst)| Quota::per_second(n).with_burst(burst));
    let bucket = gcra.clone().prop_map(|quota| quota.with_algorithm(Algorithm::TokenBucket));
    let window =
        (1..40_u32).prop_map(|n| Quota::per_second(n).with_algorithm(Algorithm::fixed_window()));
    prop_oneof![2 => gcra, 1 => bucket, 1 => window]
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn processes_with_local_fallbacks_together_allow_the_quota_plus_rounding(
        n in 1..=6_u32,
        quota in quotas(),
        used in 0..40_u32,
        requests in requests(),
    ) {
        runtime().block_on(async {
            let time = Time::default();
            let first = Process::one_of(n, &time);
            let mut processes = vec![first.clone()];
            processes.extend((1..n).map(|_| Process::beside(&first.shared, n, &time)));
            let before = first.take("alice", quota, used.min(quota.limit())).await;
            prop_assert!(before.is_allowed());
            for process in &processes {
                drop(process.take("alice", quota, 0).await);
            }
            first.shared.set_mood(Mood::Failing);
            // the units that the warm key had before the outage are part of its quota
            let (mut alice, mut bob) =
                (Admitted(used.min(quota.limit()).into()), Admitted::default());
            for (who, later) in requests {
                time.pass(millis(later)).await;
                let process = &processes[who % processes.len()];
                alice.add(&process.take("alice", quota, 1).await, 1);
                bob.add(&process.take("bob", quota, 1).await, 1);
                let most = bound(quota, time.0.now(), n);
                prop_assert!(alice.at_most(most), "warm: {} of {most}, {quota:?}", alice.0);
                prop_assert!(bob.at_most(most), "fresh: {} of {most}, {quota:?}", bob.0);
            }
            Ok(())
        })?;
    }
}

/// A greedy client sends costs in turns, at several rates. In each of ten periods, the processes
/// together allow at most the quota of that period.
#[tokio::test(start_paused = true)]
async fn a_share_does_not_depend_on_the_cost_of_a_call() {
    const PERIODS: u32 = 10;
    let rates = [secs(10), millis(3_333), secs(1), millis(100)];
    for algorithm in all_algorithms() {
        for n in 2..=6_u32 {
            let quota = Quota::new(20, secs(10)).expect("valid").with_algorithm(algorithm);
            for costs in [&[1][..], &[10, 1], &[1, 10], &[10, 7, 1, 3], &[20, 1, 3, 1]] {
                for later in rates {
                    let time = Time::default();
                    let process = Process::one_of(n, &time);
                    process.shared.set_mood(Mood::Failing);
                    let (mut admitted, mut costs) = (0, costs.iter().cycle());
                    while time.0.now() < PERIODS * secs(10) {
                        let cost = *costs.next().expect("a cycle");
                        let taken = process.take("alice", quota, cost).await;
                        admitted += if taken.is_allowed() { cost } else { 0 };
                        time.pass(later).await;
                    }
                    // The burst and what refills, or a share for each period.
                    let most = 20 * (PERIODS + 1) / n;
                    assert!(
                        admitted <= most,
                        "{algorithm:?}, {n}, {later:?}: {admitted} of {most}"
                    );
                }
            }
        }
    }
}
