//! Layers that the router manages.

use std::{any::Any, convert::Infallible, sync::Arc, time::Duration};

use http::StatusCode;

use super::{body::Problem, denials::DenialLog};
use crate::{
    fingerprint::FingerprintKey,
    key::Key,
    middleware::{RateLimitLayer, Toggle},
    rule::{LivePlan, Quotas, RuleInfo, Rules},
    store::{Charge, DynStore, Health, Store, StoreExt, Unsupported},
};

/// The maximum length of a layer's name, in characters.
const MAX_NAME_LEN: usize = 64;

/// The timeout of a health check of a store.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

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

    /// Calls `read` with the current state of all rules.
    pub(super) fn infos<T>(&self, read: impl FnOnce(&[RuleInfo<'_>]) -> T) -> T {
        let mut infos = Vec::new();
        self.rules.info(&mut infos);
        read(&infos)
    }

    /// Calls `read` with the rule `name`.
    ///
    /// If several rules have this name, a rule with quotas is preferred.
    pub(super) fn rule<T>(
        &self,
        name: &str,
        read: impl FnOnce(&RuleInfo<'_>) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        self.infos(|infos| {
            let named = || infos.iter().filter(|info| info.name.as_str() == name);
            let limits = |info: &&RuleInfo<'_>| info.quotas.is_none_or(|all| !all.is_empty());
            match named().find(limits).or_else(|| named().next()) {
                Some(info) => read(info),
                None => {
                    let known = infos.iter().map(|info| info.name.as_str());
                    Err(Problem::unknown("rule", name, known))
                }
            }
        })
    }

    /// Turns report-only on or off, for the whole layer or for one rule.
    pub(super) fn report_only(&self, rule: Option<&str>, on: bool) -> Result<(), Problem> {
        let Some(rule) = rule else {
            self.report_only.set(on);
            return Ok(());
        };
        self.rule(rule, |info| {
            let conflict = |why| {
                let fix = "omit rule to switch the layer";
                Problem::new(StatusCode::CONFLICT, format!("rule is {rule:?}, {why}; {fix}"))
            };
            let toggle = info.report_only_toggle;
            let toggle = toggle.ok_or_else(|| conflict("which has no toggle".into()))?;
            if on {
                let unsupported = |why| {
                    conflict(format!("which the store does not support as report-only: {why}"))
                };
                self.check_report_only(info).map_err(unsupported)?;
            }
            toggle.set(on);
            Ok(())
        })
    }

    /// Checks that the store supports this rule in report-only mode.
    fn check_report_only(&self, info: &RuleInfo<'_>) -> Result<(), Unsupported> {
        let Some(quotas) = own_quotas(info) else { return Ok(()) };
        let anyone = Key::everyone();
        let charge = Charge::new(info.name, &anyone, quotas.charged()).with_report_only();
        let charge =
            charge.with_cost(info.cost.unwrap_or(1)).with_headroom(info.headroom.unwrap_or(0));
        self.store.supports(&[charge])
    }

    /// Returns the health of the store. A store is failing if it does not respond in time.
    pub(super) fn health(&self) -> impl Future<Output = Health> + Send + use<> {
        let health = self.store.health();
        async move {
            let health = tokio::time::timeout(HEALTH_TIMEOUT, health).await;
            health.unwrap_or_else(|_| Health::failing("store", "no response within 5s"))
        }
    }
}

/// Returns the quotas of a rule, or `None` if the rule chooses them per request.
pub(super) fn own_quotas(info: &RuleInfo<'_>) -> Option<Quotas> {
    info.quotas.map(Quotas::from).or_else(|| info.live.map(LivePlan::quotas))
}

/// Finds a layer by its name.
pub(super) fn find<'a>(
    layers: &'a [ManagedLayer],
    name: &str,
) -> Result<&'a ManagedLayer, Problem> {
    let known = || layers.iter().map(|layer| &*layer.name);
    let found = layers.iter().find(|layer| &*layer.name == name);
    found.ok_or_else(|| Problem::unknown("layer", name, known()))
}

/// Panics if the name is invalid or already taken.
#[track_caller]
pub(super) fn check_name(name: &str, taken: bool) {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    assert!(!taken, "another layer has the name {name:?}; give another name");
    assert!(
        (1..=MAX_NAME_LEN).contains(&name.len()) && name.chars().all(safe),
        "invalid name {name:?} of a layer; give 1 to {MAX_NAME_LEN} of A-Z, a-z, 0-9, -, ., _ and ~"
    );
}
