//! Layers that the router manages, and their rules, denials and health as JSON.

use std::{
    any::Any,
    cmp::Reverse,
    convert::Infallible,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Problem,
    denials::{DenialLog, DeniedKey},
    key,
};
use crate::{
    fingerprint::FingerprintKey,
    key::Key,
    middleware::{RateLimitLayer, Toggle},
    quota::Quota,
    rule::{LivePlan, Quotas, RuleInfo, RuleName, Rules},
    store::{Charge, DynStore, Health, Store, StoreExt},
};

/// A layer that the router manages, with its name.
#[derive(Clone)]
pub(super) struct ManagedLayer {
    pub(super) name: Arc<str>,
    rules: Arc<dyn Rules + Send + Sync>,
    pub(super) store: Arc<DynStore<Infallible>>,
    pub(super) switch: Toggle,
    pub(super) report_only: Toggle,
    pub(super) denial_log: DenialLog,
    pub(super) secret: FingerprintKey,
    /// `true` if the most denied keys are shown in clear text.
    pub(super) shows_keys: bool,
}

impl ManagedLayer {
    /// Creates an entry for a layer, and makes the layer record its denials.
    pub(super) fn new<K, S, R>(
        name: &str,
        layer: &mut RateLimitLayer<K, S, R>,
        secret: FingerprintKey,
        shows_keys: bool,
    ) -> Self
    where
        K: Rules + Send + Sync + 'static,
        S: Store<Error = Infallible> + Send + Sync + 'static,
    {
        let rules: Arc<dyn Rules + Send + Sync> = layer.rules.clone();
        let settings = &mut layer.settings;
        let secret = *settings.secret.get_or_insert(secret);
        // Two routers with the same layer show the same denials.
        let hooks = &mut settings.observers.hooks;
        let known = hooks.iter().find_map(|hook| (&**hook as &dyn Any).downcast_ref::<DenialLog>());
        let denial_log = known.cloned().unwrap_or_else(|| {
            let mut infos = Vec::new();
            rules.info(&mut infos);
            let denial_log = DenialLog::new(infos.iter().map(|info| info.name));
            hooks.push(Arc::new(denial_log.clone()));
            denial_log
        });
        Self {
            name: name.into(),
            denial_log,
            switch: settings.enabled.clone(),
            report_only: settings.report_only.clone(),
            store: layer.store.clone().boxed(),
            rules,
            secret,
            shows_keys,
        }
    }

    /// Returns the current state of all rules.
    pub(super) fn rules(&self) -> Vec<RuleInfo<'_>> {
        let mut infos = Vec::new();
        self.rules.info(&mut infos);
        infos
    }

    /// Finds a rule by its name. If several rules have this name, one with quotas is preferred.
    pub(super) fn rule(&self, name: &str) -> Result<RuleInfo<'_>, Problem> {
        let rules = self.rules();
        let named = rules.iter().filter(|info| info.name.as_str() == name);
        let found = named.min_by_key(|info| info.quotas.is_some_and(<[_]>::is_empty)).cloned();
        let known = || rules.iter().map(|info| info.name.as_str()).collect::<Vec<_>>();
        found.ok_or_else(|| Problem::unknown("rule", name, &known()))
    }

    /// Finds a key among the most denied keys of a rule.
    pub(super) fn listed_key(&self, rule: RuleName, given: &str) -> Result<Key, String> {
        let record = self.denial_log.find(rule);
        let listed = record.and_then(|record| {
            let listed = record.listed();
            let found = listed.top.iter().find(|it| it.fingerprint.to_string() == given);
            found.map(|it| it.key.clone())
        });
        listed.ok_or_else(|| {
            format!(
                "fingerprint is {given:?}, which is not in the list of the most denied keys of \
                 rule {rule:?}; give the key"
            )
        })
    }

    /// Turns report-only on or off, for the whole layer or for one rule.
    pub(super) fn set_report_only(&self, rule: Option<&str>, on: bool) -> Result<(), Problem> {
        let Some(rule) = rule else {
            self.report_only.set(on);
            return Ok(());
        };
        let info = self.rule(rule)?;
        let conflict = |why: &str| {
            let fix = "omit rule to switch the layer";
            Problem::new(StatusCode::CONFLICT, format!("rule is {rule:?}, {why}; {fix}"))
        };
        let toggle = info.report_only_toggle.ok_or_else(|| conflict("which has no toggle"))?;
        if let Some(quotas) = own_quotas(&info).filter(|_| on) {
            let anyone = Key::everyone();
            let charge = usual_charge(&info, &anyone, &quotas).with_report_only();
            self.store.supports(&[charge]).map_err(|why| {
                conflict(&format!("which the store does not support as report-only: {why}"))
            })?;
        }
        toggle.set(on);
        Ok(())
    }

    /// Returns the health of the store. A store is failing if it does not respond in time.
    pub(super) fn health(&self) -> impl Future<Output = Health> + Send + use<> {
        let health = self.store.health();
        async move {
            let health = tokio::time::timeout(Duration::from_secs(5), health).await;
            health.unwrap_or_else(|_| Health::failing("store", "no response within 5s"))
        }
    }
}

/// Returns the quotas of a rule, or `None` if the rule chooses them per request.
pub(super) fn own_quotas(info: &RuleInfo<'_>) -> Option<Quotas> {
    info.quotas.map(Quotas::from).or_else(|| info.live.map(LivePlan::quotas))
}

/// Creates the charge of a request. A cost that is read from the request counts as 1.
pub(super) fn usual_charge<'a>(
    info: &RuleInfo<'a>,
    key: &'a Key,
    quotas: &'a Quotas,
) -> Charge<'a> {
    let charge = Charge::new(info.name, key, quotas.charged());
    charge.with_cost(info.cost.unwrap_or(1)).with_headroom(info.headroom.unwrap_or(0))
}

/// Finds a layer by its name.
pub(super) fn find<'a>(
    layers: &'a [ManagedLayer],
    name: &str,
) -> Result<&'a ManagedLayer, Problem> {
    let known = || layers.iter().map(|layer| &*layer.name).collect::<Vec<_>>();
    let found = layers.iter().find(|layer| &*layer.name == name);
    found.ok_or_else(|| Problem::unknown("layer", name, &known()))
}

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
    let quotas = own_quotas(info);
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
