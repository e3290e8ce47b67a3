//! The model of slots against the published table, with several processes.

use serde::Deserialize;
use serde_json::Value;

use super::model::{Denied, Model, Slots};

#[derive(Deserialize)]
struct Case {
    name: String,
    quotas: Vec<Value>,
    lease: Option<u64>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    at: u64,
    op: String,
    #[serde(default)]
    units: u64,
    #[serde(default)]
    hold: String,
    #[serde(default)]
    headroom: u64,
    #[serde(default)]
    process: String,
    #[serde(default)]
    limit: u64,
    allowed: Option<bool>,
    #[serde(default)]
    overage: bool,
    outcomes: Vec<Value>,
}

/// Returns the quotas of slots, each with its index among all quotas.
fn slots(quotas: &[Value]) -> Vec<(usize, Slots)> {
    let is_slots = |(_, quota): &(usize, &Value)| quota["algorithm"] == "concurrent";
    let all = quotas.iter().enumerate().filter(is_slots);
    let read = |(index, quota): (usize, &Value)| {
        let limit = quota["limit"].as_u64().expect("a limit");
        (index, Slots { limit, soft: quota["soft"].as_u64().unwrap_or(0) })
    };
    all.map(read).collect()
}

/// Returns `true` if the rates of a case allow a step. The model has no rates.
fn rates_allow(step: &Step) -> bool {
    let rates = step.outcomes.iter().filter(|outcome| outcome.get("held").is_none());
    rates.clone().all(|rate| rate["retry"] == 0)
}

fn play(case: &Case) {
    let (mut model, mut all) = (Model::new(case.lease), slots(&case.quotas));
    for (at, step) in case.steps.iter().enumerate() {
        let what = format!("{}, step {at}", case.name);
        model.expire(step.at);
        let mut results = Vec::new();
        match step.op.as_str() {
            "take" => {
                let quotas: Vec<_> = all.iter().map(|(_, quota)| *quota).collect();
                results = model.look(&quotas, step.units, step.headroom);
                let allowed = rates_allow(step) && results.iter().all(Option::is_none);
                assert_eq!(Some(allowed), step.allowed, "{what}");
                let overage = allowed && model.is_overage(&quotas, step.units, step.headroom);
                assert_eq!(overage, step.overage, "{what}");
                if allowed {
                    model.hold(&step.process, &step.hold, step.units, step.at);
                }
            }
            "release" => model.release(&step.process, &step.hold),
            "renew" => model.renew(&step.process, step.at),
            "limit" => all[0].1.limit = step.limit,
            op => panic!("{what}: {op}"),
        }
        for (at, (index, quota)) in all.iter().enumerate() {
            let expected = &step.outcomes[*index];
            assert_eq!(expected["held"], model.held(), "{what}");
            assert_eq!(expected["remaining"], quota.limit.saturating_sub(model.held()), "{what}");
            let retry = results.get(at).map(|result| match result {
                None => Value::from(0),
                Some(Denied::UnknownWait) => "unknown".into(),
                Some(Denied::Never) => "never".into(),
            });
            assert_eq!(expected.get("retry"), retry.as_ref(), "{what}");
        }
    }
}

#[test]
fn the_model_equals_the_published_table() {
    let text = include_str!("../../scenarios/slots.json");
    let cases: Vec<Case> = serde_json::from_str(text).expect("a list of cases");
    assert_eq!((cases.len(), cases.iter().filter(|it| it.lease.is_some()).count()), (69, 39));
    cases.iter().for_each(play);
}
