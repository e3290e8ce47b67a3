//! Layers, rules, denials and health as JSON.

use std::{cmp::Reverse, sync::atomic::Ordering::Relaxed, time::Duration, time::SystemTime};

use serde_json::{Value, json};

use super::{
    denials::DeniedKey,
    key,
    managed::{self, ManagedLayer},
};
use crate::{quota::Quota, rule::RuleInfo, store::Health};

/// Returns the layers with their switches and rules.
pub(super) fn layers(layers: &[ManagedLayer]) -> Value {
    all(layers.iter().map(|layer| {
        json!({
            "layer": &*layer.name,
            "on": layer.switch.is_on(),
            "report_only": layer.report_only.is_on(),
            "rules": layer.rules().iter().map(|info| rule(layer, info)).collect::<Vec<_>>(),
        })
    }))
}

fn rule(layer: &ManagedLayer, info: &RuleInfo<'_>) -> Value {
    let quota = |quota: &Quota| {
        json!({
            "text": quota.to_string(),
            "algorithm": quota.algorithm(),
            "limit": quota.burst(),
            "units": quota.units(),
            "period_ms": millis(quota.period()),
            "max_debt": quota.max_debt_units(),
        })
    };
    let quotas = managed::own_quotas(info);
    let record = layer.denial_log.find(info.name);
    json!({
        "rule": info.name,
        "quotas": quotas.map(|all| all.charged().iter().map(quota).collect::<Vec<_>>()),
        "quotas_are": match (info.quotas, info.live) {
            (Some(_), _) => "fixed",
            (None, Some(_)) => "live",
            (None, None) => "per request",
        },
        "cost": info.cost,
        "headroom": info.headroom,
        "queues": info.queues,
        "report_only": info.report_only,
        "denied": record.map_or(0, |record| record.denied.load(Relaxed)),
        "reported": record.map_or(0, |record| record.reported.load(Relaxed)),
    })
}

/// Returns the latest denials of each rule, newest first, and its most denied keys.
pub(super) fn denials(layers: &[ManagedLayer]) -> Value {
    all(layers.iter().map(|layer| {
        let rules = layer.rules();
        let records = rules.iter().filter_map(|info| {
            let mut listed = layer.denial_log.find(info.name)?.listed();
            listed.top.sort_by_key(|it| Reverse(it.denied));
            let top: Vec<_> = listed.top.iter().map(|it| denied_key(layer, it)).collect();
            Some(json!({ "rule": info.name, "recent": listed.last, "top": top }))
        });
        json!({ "layer": &*layer.name, "rules": records.collect::<Vec<_>>() })
    }))
}

fn denied_key(layer: &ManagedLayer, listed: &DeniedKey) -> Value {
    let now = SystemTime::now();
    let blocked = listed.blocked_until.and_then(|until| until.duration_since(now).ok());
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
