//! Limits from a file that is read again when it changes, without a restart.
//!
//! Run `cargo run -p dev --features serde --example config`, then edit `examples/limits.toml`. To
//! use another file, pass its path after `--`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{
    collections::HashMap,
    env, error, fs,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::{Router, routing::get};
use serde::Deserialize;
use tokio::{net::TcpListener, signal::ctrl_c, time::interval};
use tower_sluice::{
    LocalStore, Plan, RateLimitLayer,
    key::{Everyone, HeaderKey},
    rule::{Quotas, RuleSettings},
};

type Result<T> = std::result::Result<T, Box<dyn error::Error + Send + Sync>>;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    site: RuleSettings,
    user: RuleSettings,
    /// Quotas by name of the plan.
    plans: HashMap<String, Quotas>,
    /// Plans by API key of the customer.
    customers: HashMap<String, String>,
}

impl Limits {
    fn read(text: &str) -> Result<Self> {
        let limits: Self = toml::from_str(text)?;
        // A layer with fixed quotas detects invalid combinations, so every plan is tried.
        let small = || LocalStore::with_capacity(16);
        drop(RateLimitLayer::try_rules(limits.site.rule(Everyone), small())?);
        for quotas in limits.plans.values().chain([&limits.user.quotas]) {
            let user = limits.user.rule(Everyone).plan(quotas.clone());
            drop(RateLimitLayer::try_rules(user, small())?);
        }
        match limits.customers.iter().find(|(_, plan)| !limits.plans.contains_key(*plan)) {
            None => Ok(limits),
            Some((who, plan)) => Err(format!("{who}: there is no plan {plan:?}; add it").into()),
        }
    }

    /// Returns the quotas of the customer with this API key.
    fn of(&self, key: Option<&str>) -> Quotas {
        let plan = key.and_then(|key| self.customers.get(key));
        plan.and_then(|plan| self.plans.get(plan)).unwrap_or(&self.user.quotas).clone()
    }
}

/// The current limits. Each request reads them, so that all of them change at once.
struct Live {
    started: Limits,
    now: RwLock<Limits>,
}

impl Live {
    fn plan<C>(self: &Arc<Self>, choose: C) -> Plan
    where
        C: Fn(&Limits, Option<&str>) -> Quotas + Send + Sync + 'static,
    {
        let live = self.clone();
        Plan::from_fn(move |head, _| {
            // Trimmed, as the key of the account is.
            let key = head.headers.get("x-api-key").and_then(|key| key.to_str().ok());
            let key = key.map(str::trim);
            choose(&live.now.read().unwrap_or_else(PoisonError::into_inner), key)
        })
    }

    fn replace(&self, text: &str) -> Result<()> {
        let (new, started) = (Limits::read(text)?, &self.started);
        for (old, new) in [(&started.site, &new.site), (&started.user, &new.user)] {
            if let Some(field) = old.needs_restart(new) {
                println!("{}: {field} stays as it is until a restart", old.name);
            }
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

/// Reads the file four times per second and compares its text. This works for editors that write
/// the file, for those that replace it, and for changed links. A text that is read twice in a row
/// is complete.
async fn watch(path: PathBuf, live: Arc<Live>, mut applied: String) {
    let (mut clock, mut last) = (interval(Duration::from_millis(250)), applied.clone());
    loop {
        clock.tick().await;
        let Ok(text) = tokio::fs::read_to_string(&path).await else { continue };
        if text == last && text != applied {
            match live.replace(&text) {
                Ok(()) => println!("{}: the new limits apply", path.display()),
                Err(why) => println!("{}: the old limits stay: {why}", path.display()),
            }
            applied.clone_from(&text);
        }
        last = text;
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/limits.toml");
    let path = env::args_os().nth(1).map_or_else(|| here.into(), PathBuf::from);
    let Err(why) = serve(path.clone()).await else { return ExitCode::SUCCESS };
    eprintln!("{}: {why}", path.display());
    ExitCode::FAILURE
}

async fn serve(path: PathBuf) -> Result<()> {
    let text = fs::read_to_string(&path)?;
    let limits = Limits::read(&text)?;
    let live = Arc::new(Live { started: limits.clone(), now: RwLock::new(limits.clone()) });

    let site = limits.site.rule(Everyone).plan(live.plan(|limits, _| limits.site.quotas.clone()));
    let user = limits.user.rule(HeaderKey::new("x-api-key")).plan(live.plan(Limits::of));
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::rules((site, user), LocalStore::new()));

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    println!("listening on http://{here}; try:\ncurl -i -H 'x-api-key: alice' http://{here}/");
    tokio::spawn(watch(path, live, text));
    let ended = async { drop(ctrl_c().await) };
    Ok(axum::serve(listener, app).with_graceful_shutdown(ended).await?)
}
