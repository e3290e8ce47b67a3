//! The numbers of the published scenario tables, to the nanosecond.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;
use tower_sluice::{
    Charge, Decision, Key, LocalStore, Outcome, Quota, RuleName, Store, testing::FakeClock,
};

#[derive(Deserialize)]
struct Case {
    name: String,
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct QuotaRow {
    algorithm: String,
    units: u32,
    per: u64,
    burst: Option<u32>,
    initial: Option<serde_json::Value>,
    soft: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Step {
    at: u64,
    op: String,
    units: i64,
    #[serde(default)]
    headroom: u32,
    allowed: Option<bool>,
    #[serde(default)]
    wait: u64,
    outcomes: Vec<Row>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Row {
    remaining: u32,
    full: u64,
    next: u64,
    /// Nanoseconds or "never"; absent on `settle`.
    retry: Option<serde_json::Value>,
}

/// The tables lie beside the project; `SLUICE_SCENARIOS` names another place.
fn cases(file: &str) -> Vec<Case> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/scenarios");
    let folder = std::env::var_os("SLUICE_SCENARIOS").map_or(beside, PathBuf::from);
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; set SLUICE_SCENARIOS", path.display()));
    serde_json::from_str(&text).expect("a list of cases")
}

/// Whether this version of the store knows what the case uses.
fn known(case: &Case) -> bool {
    let gcra = |q: &QuotaRow| q.algorithm == "gcra" && q.initial.is_none() && q.soft.is_none();
    case.quotas.iter().all(gcra) && !case.wall_clock
}

fn quota(row: &QuotaRow) -> Quota {
    let quota = Quota::new(row.units, Duration::from_nanos(row.per)).expect("a quota");
    row.burst.map_or(quota, |burst| quota.try_burst(burst).expect("a burst"))
}

fn row(outcome: &Outcome, settled: bool) -> Row {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("fits");
    let retry = outcome.retry_after().map_or("never".into(), |wait| nanos(wait).into());
    Row {
        remaining: outcome.remaining(),
        full: nanos(outcome.reset_after()),
        next: nanos(outcome.next_after()),
        retry: (!settled).then_some(retry),
    }
}

fn play(case: &Case) {
    let clock = FakeClock::new();
    let store: LocalStore = clock.store(64);
    let quotas: Vec<Quota> = case.quotas.iter().map(quota).collect();
    let key = Key::from("somebody");
    let mut now = 0;
    for (at, step) in case.steps.iter().enumerate() {
        let place = format!("{} step {at}", case.name);
        clock.advance(Duration::from_nanos(step.at - now));
        now = step.at;
        let settled = step.op == "settle";
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let decision: Decision = if settled {
            store.settle(&charge, step.units).now()
        } else {
            let cost = u32::try_from(step.units).expect("a cost");
            let wait = Duration::from_nanos(case.max_wait);
            store.take(&[charge.cost(cost).headroom(step.headroom).max_wait(wait)]).now()
        };
        if let Some(allowed) = step.allowed {
            assert_eq!(decision.is_allowed(), allowed, "{place}: allowed");
            assert_eq!(decision.wait(), Duration::from_nanos(step.wait), "{place}: wait");
        }
        let rows: Vec<Row> = decision.outcomes().iter().map(|o| row(o, settled)).collect();
        assert_eq!(rows, step.outcomes, "{place}");
    }
}

#[test]
fn gcra_equals_its_table() {
    let cases = cases("gcra.json");
    let played: Vec<_> = cases.iter().filter(|case| known(case)).collect();
    played.iter().for_each(|case| play(case));
    // all but two with `initial` and one for a clock that steps back
    assert_eq!(cases.len() - played.len(), 3);
    assert!(played.len() >= 16);
}

#[test]
fn combined_cases_of_gcra_equal_their_tables() {
    let cases = cases("combined.json");
    let played: Vec<_> = cases.iter().filter(|case| known(case)).collect();
    played.iter().for_each(|case| play(case));
    let names: Vec<_> = played.iter().map(|case| case.name.as_str()).collect();
    for name in ["several_quotas_all_or_nothing", "two_tier_shaping", "uniform_queue", "headroom"] {
        assert!(names.contains(&name), "{name} was not played");
    }
}
