//! Layers that the router manages, and their rules, denials and health as JSON.

use std::{
    cmp::Reverse,
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Problem, denials::DenialLog};
use crate::{
    fingerprint::FingerprintKey,
    key::Key,
    middleware::Toggle,
    rule::{LivePlan, Quotas, RuleInfo, RuleName, Rules, infos},
    store::{Charge, DynStore, Health, Store},
};

/// The time in which a store reports its health.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// A layer that the router manages, with its name.
#[derive(Clone)]
pub(super) struct ManagedLayer {
    pub(super) name: RuleName,
    pub(super) rules: Arc<dyn Rules + Send + Sync>,
    pub(super) store: Arc<DynStore<Infallible>>,
    pub(super) switch: Toggle,
    pub(super) report_only: Toggle,
    pub(super) denial_log: DenialLog,
    pub(super) secret: FingerprintKey,
    /// `true` if the most denied keys are shown in clear text.
    pub(super) shows_keys: bool,
}

impl ManagedLayer {
    /// Finds a rule by its name. If several rules have this name, one with quotas is preferred.
    pub(super) fn rule(&self, name: &str) -> Result<RuleInfo<'_>, Problem> {
        let rules = infos(&*self.rules);
        let named = rules.iter().filter(|info| info.name.as_str() == name);
        let found = named.min_by_key(|info| info.quotas.is_some_and(<[_]>::is_empty));
        found.cloned().ok_or_else(|| unknown("rule", name))
    }

    /// Finds a key among the most denied keys of a rule.
    pub(super) fn listed_key(&self, rule: RuleName, given: &str) -> Result<Key, String> {
        if let Some(record) = self.denial_log.find(rule) {
            let listed = record.listed.lock();
            for denied in &listed.top {
                if denied.fingerprint.to_string() == given {
                    return Ok(denied.key.clone());
                }
            }
        }
        Err(format!(
            "fingerprint is {given:?}, which rule {rule:?} does not list; give the key"
        ))
    }

    /// Returns the reason for which a request that a rule denies runs, if it does.
    pub(super) fn reason_to_allow(&self, rule: &RuleInfo<'_>) -> Option<&'static str> {
        if !self.switch.is_on() {
            Some("the layer is off")
        } else if self.report_only.is_on() {
            Some("the layer only reports")
        } else if rule.report_only.is_on() {
            Some("the rule only reports")
        } else if rule.cost == Some(0) {
            Some("a request costs nothing")
        } else {
            None
        }
    }

    /// Turns report-only on or off, for the whole layer or for one rule.
    pub(super) fn set_report_only(&self, rule: Option<&str>, on: bool) -> Result<(), Problem> {
        let Some(rule) = rule else {
            self.report_only.set(on);
            return Ok(());
        };
        let info = self.rule(rule)?;
        if let Some(quotas) = own_quotas(&info).filter(|_| on) {
            let anyone = Key::everyone();
            let charge = Charge::new(info.name, &anyone, quotas.charged()).with_report_only(true);
            self.store.supports(&[charge]).map_err(|why| {
                let fix = "omit rule to switch the layer";
                let why = format!("the store does not support rule {rule:?} as report-only: {why}");
                Problem(StatusCode::CONFLICT, format!("{why}; {fix}"))
            })?;
        }
        info.report_only.set(on);
        Ok(())
    }

    /// Returns a rule with its denials, newest first, and its most denied keys.
    fn report(&self, info: &RuleInfo<'_>) -> Option<Value> {
        let record = self.denial_log.find(info.name)?;
        let mut listed = record.listed.lock().clone();
        listed.top.sort_by_key(|denied| Reverse(denied.denied));
        for it in listed.top.iter_mut().filter(|_| self.shows_keys) {
            it.clear = Some(it.key.clear_text());
        }
        Some(json!({
            "rule": info.name,
            "quotas": own_quotas(info).map(|all| all.charged().to_vec()),
            "live": info.live.is_some(),
            "cost": info.cost,
            "headroom": info.headroom,
            "queues": info.queues,
            "report_only": info.report_only.is_on(),
            "denied": record.denied.load(Relaxed),
            "reported": record.reported.load(Relaxed),
            "recent": listed.recent,
            "top": listed.top,
        }))
    }
}

/// Returns the quotas of a rule, or `None` if the rule chooses them per request.
pub(super) fn own_quotas(info: &RuleInfo<'_>) -> Option<Quotas> {
    info.quotas
        .map(Quotas::from)
        .or_else(|| info.live.map(LivePlan::quotas))
}

/// Finds a layer by its name.
pub(super) fn find<'a>(
    layers: &'a [ManagedLayer],
    name: &str,
) -> Result<&'a ManagedLayer, Problem> {
    let found = layers.iter().find(|layer| layer.name.as_str() == name);
    found.ok_or_else(|| unknown("layer", name))
}

fn unknown(field: &str, name: &str) -> Problem {
    let why = format!("{field} is {name:?}; api/layers has the names of each {field}");
    Problem(StatusCode::NOT_FOUND, why)
}

/// Returns the layers with their switches and rules.
pub(super) fn layers(layers: &[ManagedLayer]) -> Value {
    let mut reports = Vec::new();
    for layer in layers {
        let rules = infos(&*layer.rules);
        reports.push(json!({
            "layer": layer.name,
            "on": layer.switch.is_on(),
            "report_only": layer.report_only.is_on(),
            "rules": rules.iter().filter_map(|info| layer.report(info)).collect::<Vec<_>>(),
        }));
    }
    json!({ "layers": reports })
}

/// Returns the health of each store. A store is failing if it does not respond in time.
pub(super) async fn health(layers: &[ManagedLayer]) -> Value {
    // Concurrent, because a store may be slow.
    let checks = layers
        .iter()
        .map(|layer| tokio::spawn(timeout(HEALTH_TIMEOUT, layer.store.health())));
    let checks: Vec<_> = checks.collect();
    let mut reports = Vec::new();
    for (layer, check) in layers.iter().zip(checks) {
        // `None` after a panic, too.
        let health = check.await.ok().and_then(Result::ok);
        let health = health.unwrap_or_else(|| Health::failing("store", "no response within 5s"));
        reports.push(json!({ "layer": layer.name, "health": health }));
    }
    json!({ "layers": reports })
}
