//! A layer that is watched: its rules, its store, its switches, what it refused.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use http::StatusCode;

use super::problem::Problem;
use crate::{
    fingerprint::Secret,
    key::Key,
    layer::RateLimitLayer,
    load::Switch,
    observe::Noted,
    rule::{LivePlan, Quotas, Rules, Shape},
    store::{Charge, Condition, DynStore, Store, Unsupported},
};

/// The longest name, in characters.
const MOST: usize = 64;

/// How long a store may take to tell how it is doing.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a layer by its name.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) name: Arc<str>,
    rules: Arc<dyn Rules + Send + Sync>,
    pub(super) store: Arc<DynStore<Infallible>>,
    pub(super) switch: Switch,
    pub(super) report_only: Switch,
    pub(super) noted: Noted,
    pub(super) secret: Secret,
}

impl Watched {
    /// From now on the layer and its clones note what they refuse.
    pub(super) fn new<K, S, R>(
        name: &str,
        layer: &mut RateLimitLayer<K, S, R>,
        secret: Secret,
    ) -> Self
    where
        K: Rules + Send + Sync + 'static,
        S: Store<Error = Infallible> + Send + Sync + 'static,
    {
        let rules: Arc<dyn Rules + Send + Sync> = layer.rules.clone();
        let settings = &mut layer.settings;
        let secret = *settings.secret.get_or_insert(secret);
        // who watches it already is to see the same
        if !settings.meter.noted().watches() {
            let mut shapes = Vec::new();
            rules.describe(&mut shapes);
            let noted = Noted::watching(shapes.iter().map(|shape| shape.name));
            settings.meter = settings.meter.clone().noting(noted);
        }
        Self {
            name: name.into(),
            noted: settings.meter.noted().clone(),
            switch: settings.switch.clone(),
            report_only: settings.report_only.clone(),
            store: layer.store.clone().boxed(),
            rules,
            secret,
        }
    }

    /// Lends the shapes of its rules, as they are now.
    pub(super) fn shapes<T>(&self, read: impl FnOnce(&[Shape<'_>]) -> T) -> T {
        let mut shapes = Vec::new();
        self.rules.describe(&mut shapes);
        read(&shapes)
    }

    /// Lends the rule of this name; of several, the one that limits.
    pub(super) fn rule<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Shape<'_>) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        self.shapes(|shapes| {
            let named = || shapes.iter().filter(|shape| shape.name.as_str() == name);
            let limits = |shape: &&Shape<'_>| shape.quotas.is_none_or(|all| !all.is_empty());
            match named().find(limits).or_else(|| named().next()) {
                Some(shape) => read(shape),
                None => {
                    let known = shapes.iter().map(|shape| shape.name.as_str());
                    Err(Problem::unknown("rule", name, known))
                }
            }
        })
    }

    /// Sets the switch by which the layer, or one of its rules, only reports.
    pub(super) fn report_only(&self, rule: Option<&str>, on: bool) -> Result<(), Problem> {
        let Some(rule) = rule else {
            self.report_only.set(on);
            return Ok(());
        };
        self.rule(rule, |shape| {
            let conflict = |why| {
                let fix = "leave rule out to switch the layer";
                Problem::new(StatusCode::CONFLICT, format!("rule is {rule:?}, {why}; {fix}"))
            };
            let switch = shape.report_only_switch;
            let switch = switch.ok_or_else(|| conflict("which brings no switch".into()))?;
            if on {
                let cannot =
                    |why| conflict(format!("which the store cannot only report of: {why}"));
                self.check_report(shape).map_err(cannot)?;
            }
            switch.set(on);
            Ok(())
        })
    }

    /// Whether the store can do what the rule asks of it when it only reports, as far as its quotas
    /// are known.
    fn check_report(&self, shape: &Shape<'_>) -> Result<(), Unsupported> {
        let Some(quotas) = own_quotas(shape) else { return Ok(()) };
        let anyone = Key::everyone();
        let charge = Charge::new(shape.name, &anyone, quotas.charged()).report_only();
        let charge = charge.cost(shape.cost.unwrap_or(1)).headroom(shape.headroom.unwrap_or(0));
        self.store.check(&[charge])
    }

    /// How its store is doing; one that says nothing for so long is not well.
    pub(super) fn health(&self) -> impl Future<Output = Condition> + Send + use<> {
        let health = self.store.health();
        async move {
            let told = tokio::time::timeout(PATIENCE, health).await;
            told.unwrap_or_else(|_| Condition::failing("store", "it has not told within 5s"))
        }
    }
}

/// The quotas of a rule that does not choose them per request.
pub(super) fn own_quotas(shape: &Shape<'_>) -> Option<Quotas> {
    shape.quotas.map(Quotas::from).or_else(|| shape.live.map(LivePlan::quotas))
}

/// The layer of this name.
pub(super) fn find<'a>(layers: &'a [Watched], name: &str) -> Result<&'a Watched, Problem> {
    let known = || layers.iter().map(|layer| &*layer.name);
    let found = layers.iter().find(|layer| &*layer.name == name);
    found.ok_or_else(|| Problem::unknown("layer", name, known()))
}

/// Whether a layer can have this name.
pub(super) fn check(name: &str, taken: bool) -> Result<(), WatchError> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    if taken {
        Err(WatchError::Taken(name.to_owned()))
    } else if name.is_empty() || name.len() > MOST || !name.chars().all(safe) {
        Err(WatchError::Name(name.to_owned()))
    } else {
        Ok(())
    }
}

/// Why a layer cannot be watched under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchError {
    /// Another layer is watched under it.
    Taken(String),
    /// It is empty, longer than 64 characters, or has one that a URL does not take as it is.
    Name(String),
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(name) => {
                write!(f, "name {name:?}: another layer is watched under it; give another")
            }
            Self::Name(name) => write!(
                f,
                "name {name:?}: it names a layer for operators; give 1 to {MOST} of A-Z, a-z, 0-9, \
                 -, ., _ and ~"
            ),
        }
    }
}

impl std::error::Error for WatchError {}
