//! What is shown: layers and rules, refusals, health.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{
    kind,
    watched::{self, Watched},
};
use crate::{observe::Refusal, quota::Quota, rule::Shape, store::Condition};

/// Layers, their switches and their rules.
pub(super) fn layers(layers: &[Watched]) -> Value {
    all(layers.iter().map(|layer| {
        let rule = |shape: &Shape<'_>| rule(layer, shape);
        json!({
            "layer": &*layer.name,
            "on": layer.switch.is_on(),
            "report_only": layer.report_only.is_on(),
            "rules": layer.shapes(|shapes| shapes.iter().map(rule).collect::<Vec<_>>()),
        })
    }))
}

fn rule(layer: &Watched, shape: &Shape<'_>) -> Value {
    let quotas = watched::own_quotas(shape);
    let quotas = quotas.map(|quotas| quotas.charged().iter().map(quota).collect::<Vec<_>>());
    let from = match (shape.quotas, shape.live) {
        (Some(_), _) => "fixed",
        (None, Some(_)) => "live",
        (None, None) => "per request",
    };
    let counted = layer.noted.counted(shape.name);
    json!({
        "rule": shape.name,
        "key_kind": kind::json(&shape.key_kind),
        "quotas": quotas,
        "quotas_are": from,
        "cost": shape.cost,
        "headroom": shape.headroom,
        "queues": shape.queues,
        "report_only": shape.report_only,
        "refused": counted.refused,
        "reported": counted.reported,
    })
}

fn quota(quota: &Quota) -> Value {
    json!({
        "text": quota.to_string(),
        "algorithm": quota.counted_by(),
        "limit": quota.limit(),
        "units": quota.units(),
        "period_ms": millis(quota.period()),
        "max_debt": quota.max_debt_units(),
    })
}

/// The last refusals of each rule, newest first.
pub(super) fn refusals(layers: &[Watched]) -> Value {
    all(layers.iter().map(|layer| {
        let rule = |shape: &Shape<'_>| {
            let recent = layer.noted.last(shape.name);
            let recent: Vec<_> = recent.iter().map(refusal).collect();
            json!({ "rule": shape.name, "recent": recent })
        };
        let rules: Vec<_> = layer.shapes(|shapes| shapes.iter().map(rule).collect());
        json!({ "layer": &*layer.name, "rules": rules })
    }))
}

fn refusal(refusal: &Refusal) -> Value {
    let at = refusal.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "at_ms": millis(at),
        "key": refusal.key,
        "result": refusal.result,
        "retry_after_ms": refusal.retry_after.map(millis),
    })
}

/// What each store says of itself.
pub(super) async fn health(layers: &[Watched]) -> Value {
    // all at once, since each may take its time
    let asked: Vec<_> = layers.iter().map(|layer| tokio::spawn(layer.health())).collect();
    let mut shown = Vec::with_capacity(layers.len());
    for (layer, told) in layers.iter().zip(asked) {
        let told = told.await.unwrap_or_else(|_| Condition::failing("store", "it panicked"));
        shown.push(json!({ "layer": &*layer.name, "health": told }));
    }
    all(shown.into_iter())
}

fn all(layers: impl Iterator<Item = Value>) -> Value {
    json!({ "layers": layers.collect::<Vec<_>>() })
}

/// Whole milliseconds, rounded up: nobody is told too little.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
