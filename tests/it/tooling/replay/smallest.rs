//! The smallest limit: a replay with it has no denial, and with one unit less it has one.

use std::time::Duration;

use http::Request;
use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Algorithm, Cost, Quota, Rule,
    key::{Everyone, HeaderKey},
    rule::{RuleName, Rules},
};

use super::{
    least::SmallestBurst,
    simulate::{Call, Simulator, Verdict},
};
use crate::support::{
    driven::{millis, secs},
    get, quota,
};

/// Algorithms for which the smallest limit can be computed.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::fixed_window(),
    Algorithm::FixedWindow { carry_over: 0, paced: true },
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow { buckets: 1 },
    Algorithm::SlidingWindow { buckets: 5 },
    Algorithm::SlidingLog,
];

fn costly(n: &'static str) -> Cost {
    Cost::from_fn(move |head| {
        head.headers.get(n).and_then(|units| units.to_str().ok()?.parse().ok()).unwrap_or(0)
    })
}

fn call(at: Duration, key: &str, cost: u32, room: u32) -> Call {
    let request = Request::get("/").header("x-key", key);
    let request = request.header("x-cost", cost).header("x-room", room).body(());
    Call { at, parts: request.expect("a request").into_parts().0 }
}

/// Decides all calls of a trace, and returns the smallest limits.
fn play(rules: impl Rules, trace: &[Call]) -> (Vec<Verdict>, Vec<SmallestBurst>) {
    let mut simulator = Simulator::new(rules, 16_384).measure(16_384);
    let verdicts = trace.iter().map(|call| simulator.decide(call)).collect();
    (verdicts, simulator.least().to_vec())
}

fn least(rules: impl Rules, trace: &[Call]) -> Vec<SmallestBurst> {
    play(rules, trace).1
}

/// Two keys, with pauses from zero to several periods of a second.
fn trace() -> impl Strategy<Value = Vec<Call>> {
    let pause = prop_oneof![
        3 => Just(0),
        3 => 0..40_000_000_u64,
        2 => 0..1_100_000_000_u64,
        1 => 0..7_000_000_000_u64,
    ];
    let one = (pause, prop::sample::select(vec!["a", "b"]), 0..4_u32, 0..3_u32);
    vec(one, 1..50).prop_map(|calls| {
        let mut at = secs(1_000_000);
        let moved = |(pause, key, cost, room): (u64, &'static str, u32, u32)| {
            at += Duration::from_nanos(pause);
            call(at, key, cost, room)
        };
        calls.into_iter().map(moved).collect()
    })
}

fn rule(quotas: &[Quota]) -> Rule<HeaderKey> {
    let rule = Rule::new("user", HeaderKey::new("x-key"), quotas.to_vec());
    rule.cost(costly("x-cost")).headroom(costly("x-room"))
}

fn limits(quotas: &[Quota], trace: &[Call]) -> bool {
    play(rule(quotas), trace).0.iter().any(Verdict::is_limited)
}

fn counted(units: u32, algorithm: Algorithm) -> Quota {
    Quota::per_second(units).with_algorithm(algorithm)
}

/// Returns the quota with one unit less, if such a quota exists.
fn less(quota: &Quota) -> Option<Quota> {
    let units = quota.limit() - 1;
    match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket => quota.try_with_burst(units).ok(),
        _ => {
            let plain = Quota::new(units, quota.period()).ok()?;
            plain.try_with_algorithm(quota.algorithm()).ok()
        }
    }
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn the_smallest_limit_denies_nothing_and_one_unit_less_does(
        trace in trace(), at in 0..ALGORITHMS.len(), units in 1..9_u32
    ) {
        let given = counted(units, ALGORITHMS[at]);
        let found = least(rule(&[given]), &trace);
        prop_assert_eq!(found.len(), 1);
        let Some(enough) = found[0].quota() else {
            // only pacing makes a burst impossible: its first instant has one unit
            prop_assert_eq!(given.algorithm(), Algorithm::FixedWindow { carry_over: 0, paced: true });
            let most = Quota::per_second(1_000_000).with_algorithm(given.algorithm());
            prop_assert!(limits(&[most], &trace));
            return Ok(());
        };
        prop_assert!(!limits(&[enough], &trace), "{}", enough);
        prop_assert_eq!(enough.algorithm(), given.algorithm());
        if let Some(less) = less(&enough) {
            prop_assert!(limits(&[less], &trace), "{}", less);
        }
    }

    /// The quotas of a rule are charged together, and each is minimal given the others.
    #[test]
    fn each_of_several_quotas_is_minimal(
        trace in trace(), one in 0..ALGORITHMS.len(), other in 0..ALGORITHMS.len(),
        units in 1..9_u32
    ) {
        let slow = Quota::new(units, secs(10)).expect("a quota").with_algorithm(ALGORITHMS[other]);
        let found = least(rule(&[counted(units, ALGORITHMS[one]), slow]), &trace);
        prop_assert_eq!(found.len(), 2);
        let quotas: Option<Vec<_>> = found.iter().map(SmallestBurst::quota).collect();
        if let Some(quotas) = quotas {
            prop_assert!(!limits(&quotas, &trace));
            for at in 0..2 {
                if let Some(less) = less(&quotas[at]) {
                    let mut lesser = quotas.clone();
                    lesser[at] = less;
                    prop_assert!(limits(&lesser, &trace), "{}", less);
                }
            }
        }
    }
}

fn at(millis_of: &[u64]) -> Vec<Call> {
    let call = |at: &u64| Call { at: millis(*at), parts: get("/").into_parts().0 };
    millis_of.iter().map(call).collect()
}

fn site(quota: Quota) -> Rule<Everyone> {
    Rule::new("site", Everyone, quota)
}

fn smallest(rule: Rule<Everyone>, trace: &[u64]) -> Option<String> {
    least(rule, &at(trace))[0].quota().map(|quota| quota.to_string())
}

#[test]
fn the_smallest_limit_equals_a_count_by_hand() {
    let burst = [0, 0, 0, 400, 400, 1_000, 1_000];
    let of = |algorithm| smallest(site(counted(5, algorithm)), &burst);
    // five, less the two that refilled until 400
    assert_eq!(of(Algorithm::Gcra).as_deref(), Some("5/s burst 3"));
    // all requests before the first refill
    assert_eq!(of(Algorithm::TokenBucket).as_deref(), Some("5/s"));
    assert_eq!(of(Algorithm::fixed_window()).as_deref(), Some("5/s"));
    assert_eq!(of(Algorithm::SlidingLog).as_deref(), Some("5/s"));
    assert_eq!(
        of(Algorithm::FixedWindow { carry_over: 0, paced: true }),
        None,
        "three in the first instant"
    );
    assert_eq!(smallest(site(counted(5, ALGORITHMS[3])), &[0, 400, 500]).as_deref(), Some("4/s"));
}

#[test]
fn queueing_rules_soft_quotas_and_report_only_rules_are_measured_too() {
    let burst = [0, 0, 0];
    let one = Quota::per_second(1);
    for rule in [
        site(one).max_wait(secs(60)),
        site(one.with_soft(5)),
        site(one).report_only(true),
        site(one),
    ] {
        let (verdicts, _) = play(rule.clone(), &at(&burst));
        assert_eq!(verdicts.iter().filter(|verdict| verdict.is_limited()).count(), 2);
        assert_eq!(smallest(rule, &burst).as_deref(), Some("1/s burst 3"));
    }
}

#[test]
fn a_smallest_limit_that_cannot_be_computed_is_missing() {
    let lends = Algorithm::FixedWindow { carry_over: 2, paced: false };
    for quota in [Quota::concurrent(5), counted(5, lends), Quota::blocked()] {
        assert_eq!(smallest(site(quota), &[0]), None, "{quota}");
    }
    // one per day, and more than ten years of it
    assert_eq!(smallest(site(Quota::per_day(1)), &[0; 3_651]), None);
    assert_eq!(smallest(site(Quota::per_day(1)), &[0; 3_650]).as_deref(), Some("1/day burst 3650"));
    let log = |n| smallest(site(counted(5, Algorithm::SlidingLog)), &vec![0; n]);
    assert_eq!((log(10_000).as_deref(), log(10_001)), (Some("10000/s"), None));
}

#[test]
fn the_smallest_limit_allows_at_least_one_request() {
    let rule = site(quota("5/s burst 9")).cost(3).headroom(1);
    assert_eq!(smallest(rule.clone(), &[]).as_deref(), Some("5/s burst 4"));
    assert_eq!(smallest(rule, &[0]).as_deref(), Some("5/s burst 4"));
    assert_eq!(smallest(site(quota("5/s burst 9")), &[]).as_deref(), Some("5/s burst 1"));
}

#[test]
fn every_plan_is_measured_separately() {
    let plan = tower_sluice::Plan::from_fn(|head, _| {
        let units = if head.headers["x-key"] == "gold" { 20 } else { 10 };
        Quota::per_second(units).into()
    });
    let rule = Rule::new("user", HeaderKey::new("x-key"), plan);
    let keys = ["gold", "tin", "gold", "tin", "gold", "lead"];
    let found = least(rule, &keys.map(|key| call(secs(1), key, 1, 0)));
    let smallest: Vec<_> =
        found.iter().filter_map(SmallestBurst::quota).map(|quota| quota.to_string()).collect();
    assert_eq!(smallest, ["20/s burst 3", "10/s burst 2"]);
    assert!(found.iter().all(|least| least.rule == RuleName::new("user").expect("a name")));
    assert_eq!(found[0].given, Quota::per_second(20));
}

/// Without `measure`, no smallest limit is computed.
#[test]
fn without_measuring_there_is_no_smallest_limit() {
    let mut simulator = Simulator::new(site(quota("1/s")), 16);
    let limited = at(&[0, 0]).iter().filter(|call| simulator.decide(call).is_limited()).count();
    assert_eq!((limited, simulator.least().len()), (1, 0));
}
