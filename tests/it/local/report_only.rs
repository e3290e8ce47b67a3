//! A report-only rule denies no decision, with any other accounts in the decision.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use tower_sluice::{
    Key, LocalStore, Quota, StoreExt, decision::Outcome, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use super::table::full;
use crate::support::ALGORITHMS;

const THREADS: u32 = 4;
/// Decisions of each thread.
const CALLS: u32 = 40;
/// Units of a report-only rule, and of a binding rule.
const TRIAL: u32 = 30;
const REAL: u32 = 90;

/// Decides in several threads, by `trials` report-only rules and `reals` binding rules with the
/// quotas `per_hour(units)`, `per_hour(units + 1)`, … of each rule. Checks every decision.
fn decide(store: &LocalStore, own_keys: bool, trials: usize, reals: usize, quotas: [&[Quota]; 2]) {
    let rules = ["a", "b", "c"].map(|name| RuleName::new(name).expect("a name"));
    let (start, allowed) = (Barrier::new(THREADS as usize), AtomicU32::new(0));
    let charged = [const { AtomicU32::new(0) }; 3];
    let run = |thread: u32| {
        let key = Key::from(if own_keys { 100 + thread } else { 100 });
        let charges = (0..trials + reals).map(|at| {
            let is_trial = at < trials;
            let charge = Charge::new(rules[at], &key, quotas[usize::from(!is_trial)]);
            charge.with_report_only(is_trial)
        });
        let charges: Vec<_> = charges.collect();
        start.wait();
        for _ in 0..CALLS {
            let decision = store.take(&charges).now();
            let denied = |outcome: &&Outcome| outcome.is_denied() && !outcome.is_report_only();
            let binding = decision.outcomes().iter().find(denied);
            assert_eq!(decision.is_allowed(), binding.is_none(), "{decision:?}");
            allowed.fetch_add(decision.is_allowed().into(), Relaxed);
            for (at, charged) in charged.iter().enumerate().take(trials) {
                let mut all = decision.outcomes().iter();
                let fits = all.all(|outcome| outcome.rule() != rules[at] || !outcome.is_denied());
                charged.fetch_add((decision.is_allowed() && fits).into(), Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let run = &run;
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || run(thread))));
    });
    let most = if reals == 0 { THREADS * CALLS } else { REAL };
    assert_eq!(allowed.into_inner(), most, "{trials} report-only and {reals} binding rules");
    for charged in charged.into_iter().take(trials) {
        assert_eq!(charged.into_inner(), TRIAL, "charges of a report-only rule");
    }
}

#[test]
fn a_report_only_rule_denies_no_decision_of_any_algorithm() {
    for (algorithm, several, shared) in ALGORITHMS.into_iter().flat_map(|algorithm| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(several, shared)| (algorithm, several, shared))
    }) {
        let of = |units| {
            let all = if several { vec![units + 2, units, units + 1] } else { vec![units] };
            all.into_iter()
                .map(|n| Quota::per_hour(n).with_algorithm(algorithm))
                .collect::<Vec<_>>()
        };
        let (trial, real) = (of(TRIAL), of(REAL));
        for (trials, reals) in [(2, 0), (1, 1), (3, 0), (2, 1), (1, 2)] {
            let clock = FakeClock::new();
            let store = if shared { full(&clock) } else { clock.store(64) };
            decide(&store, shared, trials, reals, [&trial, &real]);
            let overflowed = store.stats().overflowed;
            assert_eq!(overflowed, if shared { u64::from(THREADS * CALLS) } else { 0 });
        }
    }
}
