//! Layers, rules, denials and health as JSON.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{
    denials::{DeniedKey, RecordedDenial},
    key,
    managed::{self, ManagedLayer},
};
use crate::{quota::Quota, rule::RuleInfo, store::Health};

/// Returns the layers with their switches and rules.
pub(super) fn layers(layers: &[ManagedLayer]) -> Value {
    all(layers.iter().map(|layer| {
        let rule = |info: &RuleInfo<'_>| rule(layer, info);
        json!({
            "layer": &*layer.name,
            "on": layer.switch.is_on(),
            "report_only": layer.report_only.is_on(),
            "rules": layer.infos(|infos| infos.iter().map(rule).collect::<Vec<_>>()),
        })
    }))
}

fn rule(layer: &ManagedLayer, info: &RuleInfo<'_>) -> Value {
    let quotas = managed::own_quotas(info);
    let quotas = quotas.map(|quotas| quotas.charged().iter().map(quota).collect::<Vec<_>>());
    let from = match (info.quotas, info.live) {
        (Some(_), _) => "fixed",
        (None, Some(_)) => "live",
        (None, None) => "per request",
    };
    let (denied, reported) = layer.denial_log.counted(info.name);
    json!({
        "rule": info.name,
        "quotas": quotas,
        "quotas_are": from,
        "cost": info.cost,
        "headroom": info.headroom,
        "queues": info.queues,
        "report_only": info.report_only,
        "denied": denied,
        "reported": reported,
    })
}

fn quota(quota: &Quota) -> Value {
    json!({
        "text": quota.to_string(),
        "algorithm": quota.algorithm(),
        "limit": quota.burst(),
        "units": quota.units(),
        "period_ms": millis(quota.period()),
        "max_debt": quota.max_debt_units(),
    })
}

/// Returns the latest denials of each rule, newest first, and its most denied keys.
pub(super) fn denials(layers: &[ManagedLayer]) -> Value {
    all(layers.iter().map(|layer| {
        let rule = |info: &RuleInfo<'_>| {
            let recent = layer.denial_log.last(info.name);
            let recent: Vec<_> = recent.iter().map(denial).collect();
            let top = layer.denial_log.top(info.name);
            let top: Vec<_> = top.iter().map(|top| denied_key(layer, top)).collect();
            json!({ "rule": info.name, "recent": recent, "top": top })
        };
        let rules: Vec<_> = layer.infos(|infos| infos.iter().map(rule).collect());
        json!({ "layer": &*layer.name, "rules": rules })
    }))
}

fn denial(denial: &RecordedDenial) -> Value {
    let at = denial.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "at_ms": millis(at),
        "key": denial.key,
        "result": denial.result,
        "retry_after_ms": denial.retry_after.map(millis),
    })
}

fn denied_key(layer: &ManagedLayer, listed: &DeniedKey) -> Value {
    let blocked =
        listed.blocked_until.and_then(|until| until.duration_since(SystemTime::now()).ok());
    let mut shown = json!({
        "key": listed.fingerprint,
        "denied": listed.denied,
        "blocked_ms": blocked.map(millis),
    });
    if layer.shows_keys {
        shown["clear"] = key::written(&listed.key);
    }
    shown
}

/// Returns the health of each store.
pub(super) async fn health(layers: &[ManagedLayer]) -> Value {
    // Concurrent, because a store may be slow.
    let checks: Vec<_> = layers.iter().map(|layer| tokio::spawn(layer.health())).collect();
    let mut reports = Vec::with_capacity(layers.len());
    for (layer, check) in layers.iter().zip(checks) {
        let panicked = |_| Health::failing("store", "its health check panicked");
        let health = check.await.unwrap_or_else(panicked);
        reports.push(json!({ "layer": &*layer.name, "health": health }));
    }
    all(reports.into_iter())
}

fn all(layers: impl Iterator<Item = Value>) -> Value {
    json!({ "layers": layers.collect::<Vec<_>>() })
}

/// Converts a time to milliseconds, rounded up so that no client retries too early.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
